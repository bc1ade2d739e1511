"""A pick on a Ray cluster: work of a lost machine is done elsewhere, and equal decisions give equal bits."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import etude
from etude.errors import WriteError
from etude.pick import ray_pool
from etude.pick.ray_pool import RayPool
from etude.pick.worker_pool import Job
from etude.world import World
from tests.study.test_ray_cluster import open_cluster, start_patiently

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster() -> Iterator[Any]:
    with open_cluster() as cluster:
        yield cluster


def _wait_for_both(text: str, folder: str) -> str:
    """Work that ends some seconds after two pieces of it have begun."""
    job = json.loads(text)
    place, name = Path(job["store"]), job["work"]["name"]
    (place / f"begun-{name}-{time.time()}").touch()
    until = time.monotonic() + 120
    while len({path.name.split("-")[1] for path in place.glob("begun-*")}) < 2 and time.monotonic() < until:
        time.sleep(0.1)
    time.sleep(6)
    return json.dumps({"error": None if Path.cwd().is_dir() and folder else "no folder", "unwritten": False})


def test_work_of_a_lost_machine_is_done_elsewhere(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_pool, "run_remote", _wait_for_both)
    second = start_patiently(lambda: cluster.add_node(num_cpus=1))
    pool = RayPool(tmp_path, "cpu")
    assert pool.slots == 2
    deadline = time.monotonic() + 300
    jobs = [pool.submit(Job("finetune", {"name": name}, tmp_path, deadline)) for name in ("one", "two")]
    while len(list(tmp_path.glob("begun-*"))) < 2:  # until both run, one on each machine
        time.sleep(0.1)
    cluster.remove_node(second, allow_graceful=False)
    assert [job.result() for job in jobs] == [None, None]
    assert len(list(tmp_path.glob("begun-*"))) == 3  # the lost one again, and no other
    pool.close()


def _end_process(text: str, folder: str) -> str:
    os._exit(1)


def test_work_that_ends_its_process_or_has_no_time_is_told(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = RayPool(tmp_path, "cpu")
    lost = Job("finetune", {}, tmp_path / "nowhere", time.monotonic() + 100)
    with pytest.raises(WriteError, match="all machines must see the folder"):
        pool.submit(lost).result()
    monkeypatch.setattr(ray_pool, "run_remote", _end_process)
    assert "Ray lost it" in str(pool.submit(Job("finetune", {}, tmp_path, time.monotonic() + 100)).result())
    assert pool.submit(Job("finetune", {}, tmp_path, time.monotonic() - 1)).result() == "there was no time for it"
    pool.close()


def read_answers(out: Path) -> dict[str, str]:
    """The answers of every trial, by its key."""
    return {path.parent.name: path.read_text(encoding="utf-8") for path in (out / "cells").glob("*/answers.jsonl")}


def test_equal_decisions_give_equal_bits(
    cluster: Any, base: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Minutes are no exact budget: what a pick decided by its clock is given to the other, which computes it anew."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    labels = tmp_path / "labels.jsonl"
    labels.write_text("".join(json.dumps(record) + "\n" for record in World().task("topic", "train", 60)))
    arguments: dict[str, Any] = {"task": "classify", "train": labels, "minutes": 6, "device": "cpu"}
    arguments["start"] = [f"small={base('bert')}"]
    here = etude.pick(**arguments, out=tmp_path / "here")

    journal = json.loads((tmp_path / "here" / "pick.json").read_text(encoding="utf-8"))
    journal |= {"spent": 0.0, "finished": False}
    there = tmp_path / "there"
    there.mkdir()
    (there / "pick.json").write_text(json.dumps(journal), encoding="utf-8")
    second = start_patiently(lambda: cluster.add_node(num_cpus=1))
    replies: list[str | None] = []
    run = RayPool._run

    def record(pool: RayPool, job: Job) -> str | None:
        replies.append(run(pool, job))
        return replies[-1]

    def lose_machine() -> None:
        while not list(there.glob("cells/*.work/run")) and threading.main_thread().is_alive():
            time.sleep(0.05)
        cluster.remove_node(second, allow_graceful=False)

    monkeypatch.setattr(RayPool, "_run", record)
    watcher = threading.Thread(target=lose_machine, daemon=True)
    watcher.start()
    on_ray = etude.pick(**arguments, out=there, on="ray")
    watcher.join(1)
    assert not watcher.is_alive(), "no fine-tuning began on the cluster"
    assert len(replies) >= 3 and replies == [None] * len(replies)
    assert read_answers(there) == read_answers(tmp_path / "here")
    assert on_ray.winner == here.winner and on_ray.results["held_out"] == here.results["held_out"]
    scores = [[(row["name"], row["score"]) for row in result.results["rows"]] for result in (here, on_ray)]
    assert scores[0] == scores[1] and any(name.startswith("small fine-tuned") for name, _ in scores[0])
    weights = [sorted(result.model.glob("*.safetensors")) for result in (here, on_ray)]
    assert [path.read_bytes() for path in weights[0]] == [path.read_bytes() for path in weights[1]]
