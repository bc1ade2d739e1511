"""The process that does cells: what it must bear that a cell does inside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from etude.study.cells import Cell
from etude.study.execute import CellResult

FORKS = """
import multiprocessing
from etude.study import execute, worker

def forks(cell, folder):
    child = multiprocessing.get_context("fork").Process(target=int)
    child.start()
    child.join(120)
    return execute.CellResult(cell.key, "hangs" if child.is_alive() else f"ended with {child.exitcode}")

execute.run_cell = forks
worker.main()
"""


def test_a_cell_may_fork_while_its_process_listens(tmp_path: Path) -> None:
    """As the loader of a GPU run does: its children once waited for ever for the lock of the input."""
    assert send_cells(FORKS, tmp_path, 1) == [vars(CellResult("abc", "ended with 0"))]


def send_cells(program: str, folder: Path, count: int) -> list[dict[str, Any]]:
    """Start a worker, send a cell so many times and return the replies."""
    cell = Cell(key="abc", kind="majority", title="a guess", arguments={}, position={})
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environment,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    replies = []
    for _ in range(count):
        process.stdin.write(cell.dump() + "\n")
        process.stdin.flush()
        replies.append(json.loads(process.stdout.readline()))
    process.stdin.close()  # the end of its input is its end
    assert process.wait(120) == 0
    process.stdout.close()
    return replies


RELEASES = """
import torch
from etude.study import execute, worker

states, retained = iter([True, True, False]), iter([False, True])
events = []

def run(cell, folder):
    events.append("cell")
    if len(events) == 3:
        raise ValueError("nobody foresaw this")
    return execute.CellResult(cell.key, " ".join(events))

def release():
    events.append("release")
    return next(states)

execute.run_cell, execute.release_memory, execute.retains_memory = run, release, lambda: next(retained)
worker.main()
"""


def test_memory_is_given_back_after_each_cell(tmp_path: Path) -> None:
    """Whatever became of the cell; memory that stays is told, and a GPU that is lost."""
    first, second, third = send_cells(RELEASES, tmp_path, 3)
    assert first == vars(CellResult("abc", "cell"))
    assert second == vars(CellResult("abc", "ValueError: nobody foresaw this", retains_memory=True))
    assert third == vars(CellResult("abc", "cell release cell release cell", lost=True))
