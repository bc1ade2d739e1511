"""A pick that is killed, again and again, comes to the same choice; one on a machine that slows down ends in time."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from etude.text.run_checksums import CHECKSUMS
from etude.world import World

KILLS = 20  # of each pick: every other one inside a write
SHARE = 0.25  # of an undisturbed pick that a process lives at most
MEASURED = ("seconds", "date", "fit_seconds", "pretraining", "notes", "reason")  # how long things took
SPIN = "while True: pass"


@dataclass
class Server:
    """Runs picks one after another in forked processes (tests/pick/pick_server.py)."""

    process: subprocess.Popen[bytes]
    buffer: bytes = b""

    def _read_number(self, timeout: float | None = None) -> int | None:
        """The next line; None after the timeout."""
        assert self.process.stdout is not None
        while b"\n" not in self.buffer:
            if not select.select([self.process.stdout], [], [], timeout)[0]:
                return None
            part = os.read(self.process.stdout.fileno(), 4096)
            assert part, "the server died"
            self.buffer += part
        line, _, self.buffer = self.buffer.partition(b"\n")
        return int(line)

    def pick(
        self, arguments: dict[str, Any], writes: Path, *, seconds: float | None = None, last_write: int | None = None
    ) -> int:
        """Run a pick, killed after some seconds or inside a write; returns its exit code."""
        assert self.process.stdin is not None
        job = {"arguments": arguments, "writes": str(writes), "last_write": last_write}
        self.process.stdin.write(json.dumps(job).encode() + b"\n")
        self.process.stdin.flush()
        pid = self._read_number()
        assert pid is not None
        code = self._read_number(seconds)
        if code is None:
            os.kill(pid, signal.SIGKILL)
            code = self._read_number()
        assert code is not None
        return code


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.pick.pick_server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    yield Server(process)
    process.kill()
    process.wait()


def write_labels(path: Path, topics: int, count: int) -> Path:
    """Labels of a few topics: their fits take moments."""
    records = World().task("topic", "train", 600)
    names = sorted({record["label"] for record in records})[:topics]
    chosen = [record for record in records if record["label"] in names][:count]
    path.write_text("".join(json.dumps(record) + "\n" for record in chosen), encoding="utf-8")
    return path


def drop_measured(value: Any) -> Any:
    """Results without what is measured anew by every pick."""
    if isinstance(value, dict):
        return {name: drop_measured(part) for name, part in value.items() if name not in MEASURED}
    return [drop_measured(part) for part in value] if isinstance(value, list) else value


def read_results(folder: Path) -> dict[str, Any]:
    results: dict[str, Any] = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return results


def read_model(folder: Path) -> dict[str, bytes]:
    """Every file of the final model and of its export."""
    files = (path for path in sorted((folder / "best").rglob("*")) if path.is_file() and path.name != CHECKSUMS)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def read_answers(folder: Path) -> dict[str, str]:
    """The answers of every trial, by its key."""
    return {path.parent.name: path.read_text(encoding="utf-8") for path in (folder / "cells").glob("*/answers.jsonl")}


def describe_stage(folder: Path) -> str:
    """How far a pick came: what lies in its folder."""
    cells = folder / "cells"
    done = len(list(cells.glob("*/result.json"))) if cells.is_dir() else 0
    parts = [name for name in ("corpora", ".best.writing", "best", "report.html", "results.json")
             if (folder / name).exists()]  # fmt: skip
    return " ".join([f"{done} cells", *parts])


def check_twenty_kills(server: Server, arguments: dict[str, Any], folder: Path) -> None:
    """Kill picks at random moments and inside random writes; all of them must end like one that nothing disturbed.

    One that ends before its next kill is compared, and a new one is begun: so the kills fall on all of a pick's life.
    """
    draw, writes, whole = random.Random(0), folder / "writes", folder / "whole"
    start = time.monotonic()
    assert server.pick({**arguments, "out": str(whole)}, writes) == 0
    seconds, last = SHARE * (time.monotonic() - start), SHARE * int(writes.read_text())
    expected = drop_measured(read_results(whole)), read_model(whole), read_answers(whole)
    stages, number = [], 0
    while len(stages) < KILLS:
        out = folder / f"killed{number}"
        moment = (
            {"last_write": draw.randint(1, int(last))} if len(stages) % 2 else {"seconds": draw.uniform(0, seconds)}
        )
        code = server.pick({**arguments, "out": str(out)}, writes, **moment)
        if code == -signal.SIGKILL:
            stages.append(f"{number}: {describe_stage(out)}")
        else:
            assert code == 0, stages
            check_equal(out, expected, stages)
            number += 1
    out = folder / f"killed{number}"
    assert server.pick({**arguments, "out": str(out)}, writes) == 0, stages
    check_equal(out, expected, stages)
    print(*stages, sep="\n")
    assert len(set(stages)) >= KILLS // 3, stages


def check_equal(
    out: Path, expected: tuple[dict[str, Any], dict[str, bytes], dict[str, str]], stages: list[str]
) -> None:
    results, model, answers = expected
    assert drop_measured(read_results(out)) == results, stages
    assert read_answers(out) == answers, stages
    assert read_model(out) == model, stages
    assert not list(out.rglob(".best.writing")), "nothing half done is left"


@pytest.mark.slow
def test_twenty_kills_change_nothing(server: Server, tmp_path: Path) -> None:
    """Labels and text: baselines, and word vectors that are pre-trained."""
    text = tmp_path / "town.txt"
    text.write_text("\n\n".join(World().text(0.03)) + "\n", encoding="utf-8")
    train = write_labels(tmp_path / "labels.jsonl", 2, 32)
    arguments = {"text": [str(text)], "task": "classify", "train": str(train), "minutes": 5, "device": "cpu"}
    check_twenty_kills(server, arguments, tmp_path)


@pytest.mark.slow
def test_twenty_kills_change_no_fine_tuning(server: Server, base: Callable[[str], Path], tmp_path: Path) -> None:
    """Labels and a start: a linear head, and fine-tunings."""
    train = write_labels(tmp_path / "labels.jsonl", 2, 32)
    start = [f"small={base('bert')}"]
    arguments = {"task": "classify", "train": str(train), "minutes": 5, "device": "cpu", "start": start}
    check_twenty_kills(server, arguments, tmp_path)


def build_command(folder: Path, out: str, minutes: float) -> list[str]:
    return [
        sys.executable, "-m", "etude", "pick", str(folder / "town.txt"), "--task", "classify", "--train",
        str(folder / "labels.jsonl"), "-o", str(folder / out), "--minutes", str(minutes), "--device", "cpu",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_loaded_machine_does_not_make_it_late(tmp_path: Path) -> None:
    """From a third of the time on, as many busy processes as there are cores, and more."""
    town, minutes = World(), 2.0
    (tmp_path / "town.txt").write_text("\n\n".join(town.text(0.3)) + "\n", encoding="utf-8")
    records = town.task("topic", "train", 120)
    (tmp_path / "labels.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    start = time.monotonic()
    process = subprocess.Popen(build_command(tmp_path, "loaded", minutes), stdout=subprocess.DEVNULL)
    time.sleep(20 * minutes)
    busy = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(4)]
    try:
        assert process.wait(timeout=240) == 0
    finally:
        for each in busy:
            each.kill()
            each.wait()
    assert time.monotonic() - start <= 1.1 * 60 * minutes
    assert (tmp_path / "loaded" / "best" / "export").is_dir() and read_results(tmp_path / "loaded")["winner"]
