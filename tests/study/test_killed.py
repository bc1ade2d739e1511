"""A study that is killed at any moment, ten times over, ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from etude.study.cells import RESULT
from tests.study.test_runner import timeless
from tests.study.tiny_study import TINY

SOURCE = Path(__file__).resolve().parents[2] / "src"


def start(file: Path, folder: Path, *words: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", "etude.cli.main", "study", str(file), "-o", str(folder), "--quiet", *words]
    return subprocess.Popen(line, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def end(process: subprocess.Popen[bytes]) -> None:
    _, told = process.communicate(timeout=600)
    assert process.returncode == 0, told.decode()[-2000:]


def outcome(folder: Path) -> Any:
    return timeless(json.loads((folder / "results.json").read_text(encoding="utf-8")))


def finished(cells: Path) -> int:
    return sum((cell / RESULT).is_file() for cell in cells.iterdir()) if cells.is_dir() else 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kills", "words"),
    [(10, ("seeds.pretrain=3",)), (3, ("--workers", "2"))],  # three seeds: enough to do for ten lives
    ids=["here", "processes"],
)
def test_killed_again_and_again(kills: int, words: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(TINY, encoding="utf-8")
    plain, killed = tmp_path / "plain", tmp_path / "killed"
    end(start(file, plain, *words))
    chance, cells = random.Random(7), killed / "cells"
    done: list[int] = []
    for _ in range(kills):
        process = start(file, killed, *words)
        while process.poll() is None and not (killed / "registered.json").exists():
            time.sleep(0.02)  # Python itself is still starting
        began, there = time.monotonic(), finished(cells)
        # at any moment: of the imports in the first lives, later once there is a cell more, or in the middle of one
        patience = chance.uniform(0.0, 2.0) if len(done) < 2 else 60.0
        while process.poll() is None and time.monotonic() < began + patience and finished(cells) == there:
            time.sleep(0.02)
        time.sleep(chance.uniform(0.0, 0.5))
        if process.poll() is not None:
            break  # it was faster than we are: nothing is left to kill
        process.send_signal(signal.SIGKILL)
        process.wait()
        done.append(finished(cells))
    print("cells that were whole at each kill:", done)
    assert len(done) == kills and done == sorted(done), "what was whole stays whole"
    end(start(file, killed, *words))
    assert outcome(killed) == outcome(plain)
    left = [path.name for path in cells.iterdir() if path.suffix in (".work", ".failed")]
    assert not left
