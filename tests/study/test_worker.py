"""The process that does cells: what it must bear that a cell does inside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from etude.study.cells import Cell
from etude.study.execute import CellResult
from tests.study.forked_workers import ForkedWorker, Prepare, let_cells_fork, let_memory_stay


def send_cells(prepare: Prepare, folder: Path, count: int) -> list[dict[str, Any]]:
    """Start a worker, send a cell so many times and return the replies."""
    cell = Cell(key="abc", kind="majority", title="a guess", arguments={}, position={})
    process = ForkedWorker(prepare, folder)
    replies = []
    for _ in range(count):
        process.stdin.write(cell.dump() + "\n")
        process.stdin.flush()
        replies.append(json.loads(process.stdout.readline()))
    process.stdin.close()  # the end of its input is its end
    assert process.wait(120) == 0
    process.stdout.close()
    return replies


def test_a_cell_may_fork_while_its_process_listens(tmp_path: Path) -> None:
    """As the loader of a GPU run does: its children once waited for ever for the lock of the input."""
    assert send_cells(let_cells_fork, tmp_path, 1) == [vars(CellResult("abc", "ended with 0"))]


def test_memory_is_given_back_after_each_cell(tmp_path: Path) -> None:
    """Whatever became of the cell; memory that stays is told, and a GPU that is lost."""
    first, second, third = send_cells(let_memory_stay, tmp_path, 3)
    assert first == vars(CellResult("abc", "cell"))
    assert second == vars(CellResult("abc", "ValueError: nobody foresaw this", retains_memory=True))
    assert third == vars(CellResult("abc", "cell release cell release cell", lost=True))
