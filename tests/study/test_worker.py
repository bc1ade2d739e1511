"""The process that does cells: what it must bear that a cell does inside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from etude.study.cells import Cell

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
    cell = Cell(key="abc", kind="guess", title="a guess", arguments={}, position={})
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", FORKS, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environment,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(cell.dump() + "\n")
    process.stdin.flush()
    reply = json.loads(process.stdout.readline())
    assert reply == {"key": "abc", "error": "ended with 0", "stopped": False, "unwritten": False}
    process.stdin.close()  # the end of its input is its end
    assert process.wait(120) == 0
    process.stdout.close()
