"""Cells on a Ray cluster of several machines: those of a lost one go to another, and small ones share a GPU."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from etude.study import executors
from etude.study.cells import Cell
from etude.study.execute import CellResult
from tests.study.test_killed import SOURCE, end, finished, outcome, start
from tests.study.tiny_study import TINY

pytestmark = pytest.mark.slow


def start_patiently(start: Callable[[], Any]) -> Any:
    """Start a machine of a cluster; on a busy one Ray's own patience of 30 s is too short."""
    for _ in range(4):
        try:
            return start()
        except Exception as error:
            if "timed out during startup" not in str(error):
                raise
    return start()


@contextmanager
def open_cluster() -> Iterator[Any]:
    """A head that runs nothing, and one machine beside it, both of them on this one."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'etude[ray]'")
    import ray
    from ray.cluster_utils import Cluster

    cluster = start_patiently(lambda: Cluster(initialize_head=True, head_node_args={"num_cpus": 0}))
    start_patiently(lambda: cluster.add_node(num_cpus=1, num_gpus=1))
    names = ["src", ".", *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    variables = {"PYTHONPATH": os.pathsep.join(str(Path(name).resolve()) for name in names), "OMP_NUM_THREADS": "1"}
    ray.init(address=cluster.address, runtime_env={"env_vars": variables}, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def cluster() -> Iterator[Any]:
    with open_cluster() as cluster:
        yield cluster


def _meet_others(cell: str, folder: str, is_last: bool) -> str:
    """A cell that ends when as many run as its arguments say: only if they all run at once."""
    parsed = Cell.parse(cell)
    place = Path(folder)
    (place / f"begun-{parsed.key}-{time.time()}-{os.environ.get('CUDA_VISIBLE_DEVICES')}").touch()
    deadline = time.monotonic() + 120
    while len({path.name.split("-")[1] for path in place.glob(parsed.arguments["others"])}) < parsed.arguments["count"]:
        if time.monotonic() > deadline:
            return json.dumps(vars(CellResult(parsed.key, "nobody came")))
        time.sleep(0.1)
    time.sleep(parsed.arguments["seconds"])
    return json.dumps(vars(CellResult(parsed.key)))


def test_a_lost_cell_goes_elsewhere_and_small_cells_share_a_gpu(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "_run_remote", _meet_others)
    second = start_patiently(lambda: cluster.add_node(num_cpus=1))
    together = {"others": "begun-k*", "count": 4, "seconds": 0}
    needs = {"cpus": 0.25, "gpus": 0.25}
    small = [Cell(f"k{number}", "majority", "", together, {}, needs=needs) for number in range(4)]
    with executors.RayExecutor(tmp_path) as executor:
        assert executor.slots == 4
        for cell in small:
            executor.submit(cell)
        assert [executor.wait().error for _ in small] == [None] * 4
        assert sorted(path.name[-2:] for path in tmp_path.glob("begun-k*")) == ["-0"] * 4  # once each, on one GPU
        for key in ("one", "two"):
            whole = {"others": "begun-[ot]*", "count": 2, "seconds": 6}
            executor.submit(Cell(key, "majority", "", whole, {}, needs={"cpus": 1}))
        while len(list(tmp_path.glob("begun-[ot]*"))) < 2:  # until both run, one on each machine
            time.sleep(0.1)
        cluster.remove_node(second, allow_graceful=False)
        results = [executor.wait(), executor.wait()]
        assert sorted(result.key for result in results) == ["one", "two"] and not any(r.error for r in results)
        assert len(list(tmp_path.glob("begun-[ot]*"))) == 3  # the lost one again, and no other


def test_a_whole_study_loses_a_machine_and_gains_another(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    second = start_patiently(lambda: cluster.add_node(num_cpus=1))
    file, plain, lossy = tmp_path / "tiny.yaml", tmp_path / "plain", tmp_path / "lossy"
    file.write_text(TINY, encoding="utf-8")
    end(start(file, plain))
    ray.shutdown()  # the study is a process of its own, as on a cluster
    paths = os.pathsep.join([str(SOURCE), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    monkeypatch.setenv("PYTHONPATH", paths)
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    process = start(file, lossy, "--on", "ray")
    while process.poll() is None and not finished(lossy / "cells"):
        time.sleep(0.05)
    assert process.poll() is None, "it was over before a machine could be lost"
    cluster.remove_node(second, allow_graceful=False)
    cluster.add_node(num_cpus=1)
    end(process)
    assert outcome(lossy) == outcome(plain)
    assert not [path.name for path in (lossy / "cells").iterdir() if path.suffix in (".work", ".failed")]
