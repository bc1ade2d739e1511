"""The queue: cells in their order, and new ones as soon as the outcome of others says which."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from etude.study.cells import Cell, CellStore
from etude.study.execute import CellResult
from etude.study.queue import _estimate_remaining, run_cells
from etude.study.visit import Durations, Visit


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

    def shares_memory(self, cell: Cell) -> bool:
        return True

    def __enter__(self) -> InstantExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        return


def make_cell(title: str, depends_on: str | None = None, seconds: float = 1.0, kind: str = "pretrain") -> Cell:
    key = title.encode().hex().ljust(32, "0")[:32]
    return Cell(
        key=key, kind=kind, title=title, arguments={}, position={"row": title},
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
    find_room, asked = Visit.find_room, [0]

    def counted(self: Visit, *arguments: Any) -> int:
        asked[0] += 1
        return find_room(self, *arguments)

    monkeypatch.setattr(Visit, "find_room", counted)
    cells = [make_cell(f"cell {number}") for number in range(60)]
    executor = InstantExecutor(store)
    assert not run_cells(store, cells, executor, lambda _: None, Visit(minutes=100.0))
    assert executor.order == [cell.title for cell in cells] and asked[0] <= 2 * len(cells)


class FullGpu:
    """Runs cells that take memory, so many seconds each; one that finds too little runs out, as all others go on."""

    def __init__(self, store: CellStore, sizes: dict[str, int], memory: int, slots: int) -> None:
        self.store, self.sizes, self.memory, self.slots = store, sizes, memory, slots
        self.running: dict[str, Cell] = {}
        self.refused: list[CellResult] = []
        self.order: list[str] = []
        self.crowds: list[int] = []
        self.is_shared = True

    def submit(self, cell: Cell) -> None:
        self.order.append(cell.title)
        assert len(self.running) + len(self.refused) < self.slots
        if sum(self.sizes[other.title] for other in self.running.values()) + self.sizes[cell.title] > self.memory:
            self.refused.append(CellResult(cell.key, "Memory ran out on the GPU (4 rows).", out_of_memory=True))
        else:
            self.running[cell.key] = cell

    def wait(self) -> CellResult:
        if self.refused:
            return self.refused.pop(0)
        self.crowds.append(len(self.running))
        key, cell = next(iter(self.running.items()))
        del self.running[key]
        with self.store.lock(key):
            self.store.finish(key, {"seconds": 1.0, "kind": cell.kind})
        return CellResult(key)

    def shares_memory(self, cell: Cell) -> bool:
        return self.is_shared

    def __enter__(self) -> FullGpu:
        return self

    def __exit__(self, *_: object) -> None:
        return


@pytest.fixture
def store(tmp_path: Path) -> CellStore:
    store = CellStore(tmp_path / "cells")
    store.folder.mkdir()
    return store


def test_cells_whose_memory_ran_out_beside_others_are_tried_again(store: CellStore) -> None:
    """On a GPU that holds six of them, 22 of 34 cells failed for ever."""
    cells = [make_cell(f"cell {number}") for number in range(34)]
    executor = FullGpu(store, {cell.title: 1 for cell in cells}, memory=6, slots=12)
    messages: list[str] = []
    assert run_cells(store, cells, executor, messages.append) == {}
    assert {store.state(cell.key) for cell in cells} == {"done"}
    again = [line for line in messages if "memory ran out" in line]
    assert again[0] == "cell 6: memory ran out beside 11 other cells; it is tried again, with at most 11 at once"
    assert len(again) <= 12, "six too many at first, and a few trials of seven later"
    assert min(executor.crowds[:-6]) >= 5, "the GPU is not emptier than it has to be"
    assert messages[-1].startswith("[34/34]")


def test_what_took_the_memory_may_end(store: CellStore) -> None:
    """Five evaluations leave room for one cell; after them all slots are used again."""
    cells = [make_cell(f"evaluation {number}", seconds=9.0) for number in range(5)]
    cells += [make_cell(f"cell {number:03d}") for number in range(400)]
    sizes = {cell.title: 23 if cell.title.startswith("evaluation") else 5 for cell in cells}
    executor = FullGpu(store, sizes, memory=120, slots=12)
    assert run_cells(store, cells, executor, lambda _: None) == {}
    assert executor.crowds[-20] == 12
    assert len(executor.order) - len(cells) <= 12


def test_a_cell_that_is_too_large_alone_fails_and_the_rest_is_done(store: CellStore) -> None:
    cells = [make_cell(f"cell {number}") for number in range(30)]
    cells[0] = make_cell("large", seconds=9.0)
    executor = FullGpu(store, {cell.title: 7 if cell.title == "large" else 1 for cell in cells}, memory=6, slots=12)
    errors = run_cells(store, cells, executor, lambda _: None)
    assert errors == {cells[0].key: "Memory ran out on the GPU (4 rows)."}
    assert executor.order.count("large") <= 6, "beside 11, 10, 8, 4 others, and alone"
    assert [store.state(cell.key) for cell in cells] == ["absent", *["done"] * 29]


def test_a_large_cell_gets_the_whole_gpu(store: CellStore) -> None:
    cells = [*(make_cell(f"cell {number}") for number in range(30)), make_cell("large"), make_cell("child", "large")]
    executor = FullGpu(store, {cell.title: 6 if cell.title == "large" else 1 for cell in cells}, memory=6, slots=12)
    assert run_cells(store, cells, executor, lambda _: None) == {}
    assert executor.order[-1] != "large", "it does not wait until nothing else is left"


def test_cells_that_share_no_memory_are_not_tried_again(store: CellStore) -> None:
    """One process a GPU: fewer of them would not help."""
    cells = [make_cell(f"cell {number}") for number in range(4)]
    executor = FullGpu(store, {cell.title: 7 if cell.title == "cell 0" else 1 for cell in cells}, memory=6, slots=2)
    executor.is_shared = False
    assert list(run_cells(store, cells, executor, lambda _: None)) == [cells[0].key]
    assert executor.order.count("cell 0") == 1


def test_cells_are_tried_again_in_a_visit_and_when_the_plan_changes(store: CellStore) -> None:
    cells = [make_cell(f"cell {number}") for number in range(20)]
    late = [make_cell(f"late {number}") for number in range(20)]
    executor = FullGpu(store, {cell.title: 1 for cell in [*cells, *late]}, memory=6, slots=12)
    plans = iter([None] * 3 + [[*cells, *late]])
    messages: list[str] = []
    visit = Visit(minutes=100.0)
    assert run_cells(store, cells, executor, messages.append, visit, lambda: next(plans, None)) == {}
    assert {store.state(cell.key) for cell in [*cells, *late]} == {"done"}
    assert messages[-1].startswith("[40/40]")
    assert executor.order.index("cell 19") < executor.order.index("late 0"), "in the order of the visit"


def test_time_that_is_up_leaves_a_cell_whose_memory_ran_out(store: CellStore, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [make_cell(f"cell {number}") for number in range(8)]
    executor, visit, messages = FullGpu(store, {cell.title: 1 for cell in cells}, 6, 8), Visit(minutes=100.0), []
    submit = executor.submit

    def be_late(cell: Cell) -> None:
        submit(cell)
        visit.minutes = 1e-9 if len(executor.order) == 8 else visit.minutes

    monkeypatch.setattr(executor, "submit", be_late)
    assert run_cells(store, cells, executor, messages.append, visit) == {}
    assert messages[-1] == "The time is up: 2 of 8 cells are left for the next visit."


def test_no_room_is_made_for_a_cell_that_has_no_time_left(store: CellStore) -> None:
    """It would have left one slot of twelve for the rest of the visit."""
    cells = [make_cell("large"), *(make_cell(f"cell {number}") for number in range(60))]
    executor = FullGpu(store, {cell.title: 13 if cell.title == "large" else 1 for cell in cells}, memory=12, slots=12)

    class ShortVisit(Visit):
        def find_room(self, cell: Cell, slots: int, *_: Any) -> int:
            is_late = cell.title == "large" and any("with at most 1 at once" in line for line in messages)
            return 0 if is_late else slots

    messages: list[str] = []
    assert run_cells(store, cells, executor, messages.append, ShortVisit(minutes=100.0)) == {}
    assert messages[-1] == "The time is up: 1 of 61 cells are left for the next visit."
    assert max(executor.crowds[-30:]) >= 8


class LosingExecutor(InstantExecutor):
    """Loses the GPU of some cells, so many times each."""

    def __init__(self, store: CellStore, losses: dict[str, int]) -> None:
        super().__init__(store)
        self.losses = losses

    def wait(self) -> CellResult:
        title = self.running[0].title
        if self.losses.get(title, 0):
            self.losses[title] -= 1
            return CellResult(self.running.pop(0).key, "its GPU failed (CUDA error).", lost=True)
        return super().wait()


def test_a_cell_whose_gpu_was_lost_is_tried_once_more(store: CellStore) -> None:
    cells = [make_cell("once"), make_cell("twice"), make_cell("never")]
    executor, messages = LosingExecutor(store, {"once": 1, "twice": 2}), list[str]()
    errors = run_cells(store, cells, executor, messages.append)
    assert errors == {cells[1].key: "its GPU failed (CUDA error)."}
    assert [store.state(cell.key) for cell in cells] == ["done", "absent", "done"]
    assert messages[0] == "once: its GPU failed; it is tried once more, in a new process"


def test_a_stored_failure_of_memory_is_cleared_when_its_cell_begins(store: CellStore) -> None:
    cell = make_cell("cell")
    store.fail(cell.key, "")
    (store.failure_folder(cell.key) / "checksums.json").unlink()
    (store.failure_folder(cell.key) / "error.json").write_text('{"message": "Memory ran out on the GPU (4 rows)."}')
    assert run_cells(store, [cell], InstantExecutor(store), lambda _: None) == {}
    assert store.state(cell.key) == "done" and not store.failure_folder(cell.key).exists()


class TimedExecutor(InstantExecutor):
    """Lets a clock of its own go on by the seconds that cells were planned for, in as many slots."""

    def __init__(self, store: CellStore, slots: int) -> None:
        super().__init__(store)
        self.slots, self.now = slots, 0.0
        self.ends: dict[str, float] = {}
        self.began: dict[str, float] = {}

    def submit(self, cell: Cell) -> None:
        super().submit(cell)
        assert len(self.running) <= self.slots
        self.began[cell.title], self.ends[cell.key] = self.now, self.now + cell.seconds

    def wait(self) -> CellResult:
        self.running.sort(key=lambda cell: self.ends[cell.key])
        self.now = self.ends[self.running[0].key]
        return super().wait()


def run_visit(
    store: CellStore, cells: list[Cell], seconds: float, slots: int, monkeypatch: pytest.MonkeyPatch
) -> TimedExecutor:
    """Run a visit of so many seconds in which each cell takes as long as planned."""
    executor = TimedExecutor(store, slots)
    monkeypatch.setattr("etude.study.visit.time", SimpleNamespace(monotonic=lambda: executor.now))
    monkeypatch.setattr(Durations, "observe", lambda *_: None)  # all cells take what the plan says
    assert run_cells(store, cells, executor, lambda _: None, Visit(minutes=seconds / 60, start=0.0)) == {}
    assert executor.now <= seconds
    return executor


@pytest.mark.parametrize(("slots", "seconds"), [(1, 90.0), (2, 56.0), (3, 50.0)])
@pytest.mark.parametrize("first", ["pretrain", "transfer"])
def test_transfers_of_a_finished_pretraining_come_before_what_can_wait(
    store: CellStore, monkeypatch: pytest.MonkeyPatch, slots: int, seconds: float, first: str
) -> None:
    """Another pre-training, or controls, took the last minutes, and weights were lost with transfers half done."""
    base = make_cell("base", seconds=30.0)
    others = [make_cell(f"other {number}", seconds=30.0 if first == "pretrain" else 11.0, kind=first)
              for number in range(slots + 2)]  # fmt: skip
    transfers = [make_cell(f"transfer {number}", "base", 8.0, "transfer") for number in range(4)]
    executor = run_visit(store, [base, *others, *transfers], seconds, slots, monkeypatch)
    assert {cell.title for cell in transfers} <= set(executor.order)


def test_with_time_for_all_a_visit_keeps_its_order(store: CellStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """What settles a claim soonest comes first, as long as no transfer is in danger."""
    cells = [make_cell("base", seconds=30.0), make_cell("control", seconds=20.0, kind="transfer"),
             make_cell("other", seconds=30.0), make_cell("transfer", "base", 8.0, "transfer")]  # fmt: skip
    assert run_visit(store, cells, 200.0, 1, monkeypatch).order == ["base", "control", "other", "transfer"]


@pytest.mark.parametrize("is_beside", [False, True])
def test_a_short_cell_is_begun_in_the_last_seconds(
    store: CellStore, monkeypatch: pytest.MonkeyPatch, is_beside: bool
) -> None:
    """Whatever is under way, and though a longer one that comes first has no time left."""
    base, short = make_cell("base"), make_cell("short", "base", 5.0, "transfer")
    with store.lock(base.key) as work:
        (work / "run").mkdir(parents=True)
        store.finish(base.key, {"seconds": 50.0, "kind": "pretrain"})
    cells = [base, make_cell("long", "base", 30.0, "transfer"), short]
    if is_beside:
        cells.insert(1, make_cell("beside", seconds=8.0, kind="transfer"))
    executor = run_visit(store, cells, 10.0, 1 + is_beside, monkeypatch)
    assert executor.began["short"] == 0.0 and "long" not in executor.order


def test_a_transfer_that_failed_keeps_no_time(store: CellStore, monkeypatch: pytest.MonkeyPatch) -> None:
    base, failing = make_cell("base", seconds=5.0), make_cell("failing", "base", 20.0, "transfer")
    other = make_cell("other", seconds=20.0)
    executor = TimedExecutor(store, 1)
    executor.failing = ("failing",)
    monkeypatch.setattr("etude.study.visit.time", SimpleNamespace(monotonic=lambda: executor.now))
    errors = run_cells(store, [base, failing, other], executor, lambda _: None, Visit(minutes=55 / 60, start=0.0))
    assert errors == {failing.key: "it failed"} and executor.order == ["base", "failing", "other"]


def test_a_pretraining_elsewhere_runs_before_what_a_new_plan_starts_from_it(store: CellStore) -> None:
    """It counted as finished since no cell of the first plan needed its weights, and its transfers failed without."""
    trial, base, child = make_cell("trial"), make_cell("base"), make_cell("child", "base")
    with store.lock(base.key):
        store.finish(base.key, {"seconds": 7.0, "kind": "pretrain"})
    executor = InstantExecutor(store)
    plans = iter([[trial, child, base]])
    assert run_cells(store, [trial, base], executor, lambda _: None, replan=lambda: next(plans, None)) == {}
    assert executor.order == ["trial", "base", "child"]
