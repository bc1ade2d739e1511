"""The queue: cells in their order, and new ones as soon as the outcome of others says which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from etude.study.cells import Cell, CellStore
from etude.study.execute import CellResult
from etude.study.queue import _estimate_remaining, run_cells
from etude.study.visit import Visit


class InstantExecutor:
    """Finishes cells in the order they came, two in flight."""

    slots = 2

    def __init__(self, store: CellStore, failing: tuple[str, ...] = ()) -> None:
        self.store, self.failing = store, failing
        self.running: list[Cell] = []
        self.order: list[str] = []

    def submit(self, cell: Cell) -> None:
        self.running.append(cell)
        self.order.append(cell.title)

    def wait(self) -> CellResult:
        cell = self.running.pop(0)
        if cell.title in self.failing:
            return CellResult(cell.key, "it failed")
        with self.store.lock(cell.key) as work:
            work.mkdir(exist_ok=True)
            self.store.finish(cell.key, {"seconds": 1.0, "kind": cell.kind})
        return CellResult(cell.key)

    def __enter__(self) -> InstantExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        return


def make_cell(title: str, depends_on: str | None = None, seconds: float = 1.0) -> Cell:
    key = title.encode().hex().ljust(32, "0")[:32]
    return Cell(
        key=key, kind="pretrain", title=title, arguments={}, position={"row": title},
        depends_on=None if depends_on is None else depends_on.encode().hex().ljust(32, "0")[:32], seconds=seconds,
    )  # fmt: skip


def test_a_study_goes_on_when_its_trials_end_not_when_all_others_do(tmp_path: Path) -> None:
    """Two trials decide on a cell that nobody knew of; long cells of another study are still waiting by then."""
    store = CellStore(tmp_path / "cells")
    store.folder.mkdir()
    trials, others = [make_cell("trial a"), make_cell("trial b")], [make_cell(f"other {n}") for n in range(4)]
    chosen = make_cell("chosen")
    executor = InstantExecutor(store)
    replans = 0

    def replan() -> list[Cell] | None:
        nonlocal replans
        if replans or not all(store.state(cell.key) == "done" for cell in trials):
            return None
        replans += 1
        return [chosen, *others]

    messages: list[str] = []
    errors = run_cells(store, [*trials, *others], executor, messages.append, replan=replan)
    assert errors == {} and replans == 1
    assert executor.order.index("chosen") < executor.order.index("other 1"), "it does not wait for the rest"
    assert sorted(executor.order) == sorted(cell.title for cell in [*trials, *others, chosen]), "each of them once"
    assert messages[-1].startswith("[7/7]")


def test_what_failed_before_the_plan_changed_is_not_tried_again(tmp_path: Path) -> None:
    store = CellStore(tmp_path / "cells")
    store.folder.mkdir()
    first, child, late = make_cell("first"), make_cell("child", "first"), make_cell("late")
    executor = InstantExecutor(store, failing=("first",))
    lists = iter([[first, child, late]])
    errors = run_cells(store, [first, child], executor, lambda _: None, replan=lambda: next(lists, None))
    assert executor.order == ["first", "late"]
    assert errors[first.key] == "it failed" and "what it starts from failed" in errors[child.key]


def test_the_time_left_of_short_cells_counts_their_start_and_no_factor() -> None:
    """The first cell of a demo on a busy machine was planned for a second and took 22: eight hours were announced."""
    pending = [make_cell(str(number), seconds=10.0) for number in range(40)]
    assert _estimate_remaining(22.0, 1.0, 1, pending) == 400 + 40 * 21
    assert _estimate_remaining(20.0, 10.0, 1, pending[:1]) == 20
    assert _estimate_remaining(5.0, 10.0, 2, pending) == 200  # two at a time
    assert _estimate_remaining(5.0, 0.0, 1, pending) == _estimate_remaining(5.0, 1.0, 1, []) == 0


def test_a_result_from_elsewhere_is_kept_until_its_cell_begins_again(tmp_path: Path) -> None:
    """A visit that has no time for a pre-training whose weights are elsewhere must not lose its curve and cost."""
    store = CellStore(tmp_path / "cells")
    store.folder.mkdir()
    base, child = make_cell("base"), make_cell("child", "base")
    with store.lock(base.key):
        store.finish(base.key, {"seconds": 7.0, "kind": "pretrain"})
    executor = InstantExecutor(store)
    run_cells(store, [base, child], executor, lambda _: None, Visit(minutes=1e-9))
    assert executor.order == [] and store.result(base.key)["seconds"] == 7.0
    run_cells(store, [base, child], executor, lambda _: None)
    assert executor.order == ["base", "child"] and store.result(base.key)["seconds"] == 1.0


def test_a_long_queue_is_not_looked_through_for_each_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A visit of limited time asks of a cell whether it fits: of those that are next, not of all that are ready."""
    store = CellStore(tmp_path / "cells")
    store.folder.mkdir()
    fits, asked = Visit.fits, [0]

    def counted(self: Visit, *arguments: Any) -> bool:
        asked[0] += 1
        return fits(self, *arguments)

    monkeypatch.setattr(Visit, "fits", counted)
    cells = [make_cell(f"cell {number}") for number in range(60)]
    executor = InstantExecutor(store)
    assert not run_cells(store, cells, executor, lambda _: None, Visit(minutes=100.0))
    assert executor.order == [cell.title for cell in cells] and asked[0] <= 2 * len(cells)
