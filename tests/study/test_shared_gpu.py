"""A visit whose cells share one GPU, simulated: long pre-trainings end in time, beside as few others as that takes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from etude.study import visit as visits
from etude.study.cells import Cell, CellStore
from etude.study.execute import CellResult
from etude.study.queue import run_cells
from etude.study.visit import STARTUP, Visit
from tests.study.test_queue import make_cell


class SharedGPU:
    """A GPU that one cell fills: of several, each gets an equal part. Start-up takes no part of it."""

    def __init__(self, store: CellStore, slots: int) -> None:
        self.store, self.slots, self.now = store, slots, 0.0
        self.running: dict[str, tuple[Cell, float, float]] = {}  # and the seconds left of its start-up and on the GPU
        self.began: dict[str, float] = {}
        self.ended: dict[str, float] = {}  # by title
        self.most: dict[str, int] = {}  # by title: the most cells at once while it ran

    def monotonic(self) -> float:
        return self.now

    def submit(self, cell: Cell) -> None:
        self.running[cell.key] = cell, STARTUP, cell.seconds
        self.began[cell.key] = self.now
        for each, *_ in self.running.values():
            self.most[each.title] = max(self.most.get(each.title, 0), len(self.running))

    def wait(self) -> CellResult:
        while True:
            parts = max(1, sum(not startup for _, startup, _ in self.running.values()))
            step = min(startup or work * parts for _, startup, work in self.running.values())
            self.now += step
            for key, (cell, startup, work) in self.running.items():
                left = work if startup else max(0.0, work - step / parts)
                self.running[key] = cell, max(0.0, startup - step), 0.0 if left < 1e-9 else left
            for key, (cell, startup, work) in self.running.items():
                if not startup and not work:
                    return self._finish(key, cell)

    def _finish(self, key: str, cell: Cell) -> CellResult:
        del self.running[key]
        self.ended[cell.title] = self.now
        with self.store.lock(key):
            self.store.finish(key, {"seconds": self.now - self.began[key], "kind": cell.kind})
        return CellResult(key)

    def shares_memory(self, cell: Cell) -> bool:
        return True

    def __enter__(self) -> SharedGPU:
        return self

    def __exit__(self, *_: object) -> None:
        return


def simulate(
    tmp_path: Path, patch: pytest.MonkeyPatch, trials: list[Cell], cells: list[Cell], others: list[Cell],
    minutes: float, slots: int,
) -> SharedGPU:  # fmt: skip
    """Run trials and others, and when the trials have ended, what they are trials of, which comes first."""
    store = CellStore(tmp_path / "cells")
    store.folder.mkdir()
    gpu = SharedGPU(store, slots)
    patch.setattr(visits, "time", gpu)
    tuned: list[Cell] = []

    def replan() -> list[Cell] | None:
        if tuned or not {cell.title for cell in trials} <= set(gpu.ended):
            return None
        tuned.extend(cells)
        return [*trials, *cells, *others]

    errors = run_cells(store, [*trials, *others], gpu, lambda _: None, Visit(minutes, start=0.0), replan)
    assert not errors and not gpu.running
    return gpu


def list_long(count: int, seconds: float) -> list[Cell]:
    """Long pre-trainings, each with two transfers."""
    result = []
    for number in range(count):
        result += [make_cell(f"long {number}", seconds=seconds)]
        result += [make_cell(f"task {number} {n}", f"long {number}", 5.0, "transfer") for n in range(2)]
    return result


def list_short(name: str, count: int) -> list[Cell]:
    return [make_cell(f"{name} {number}", seconds=14.0) for number in range(count)]


def test_long_cells_end_in_time_beside_fewer_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As seen: with ten at once, a run of 140 s alone would take 1,430 s of 1,200, and three were never begun."""
    trials, others = list_short("trial", 4), list_short("other", 60)
    gpu = simulate(tmp_path, monkeypatch, trials, list_long(3, 140.0), others, minutes=20, slots=10)
    assert {f"long {n}" for n in range(3)} | {f"task {n} {m}" for n in range(3) for m in range(2)} <= set(gpu.ended)
    assert max(gpu.ended.values()) <= 1205, "whatever was begun has ended, to a second"
    assert max(gpu.most.values()) == 10, "all slots were in use while there was time"
    assert 3 <= max(gpu.most[f"long {n}"] for n in range(3)) < 10
    work = sum(5 if "task" in title else 140 if "long" in title else 14 for title in gpu.ended)
    assert work > 0.75 * 1200, "room for some is not bought with an idle GPU"


def test_what_cannot_end_even_alone_keeps_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trials, others = list_short("trial", 2), list_short("other", 20)
    gpu = simulate(tmp_path, monkeypatch, trials, list_long(1, 300.0), others, minutes=5, slots=10)
    assert "long 0" not in gpu.ended and sum("other" in title for title in gpu.ended) >= 8
    assert max(gpu.ended.values()) <= 300


def test_a_second_long_cell_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a run that takes half of the time there is, another has no room, and small ones go on."""
    trials, others = list_short("trial", 2), list_short("other", 40)
    gpu = simulate(tmp_path, monkeypatch, trials, list_long(2, 300.0), others, minutes=10, slots=4)
    assert "long 0" in gpu.ended and "long 1" not in gpu.ended
    assert sum("other" in title for title in gpu.ended) >= 5 and max(gpu.ended.values()) <= 600


def test_cells_that_do_not_share_have_all_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing was slowed down, fewer at once would help nobody."""
    store = CellStore(tmp_path / "cells")
    cells = [make_cell(title, seconds=100.0) for title in ("a", "b")]
    visit = Visit(minutes=3.0, start=0.0)
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(visits, "time", clock)
    visit.open(store, cells)
    assert visit.find_room(cells[0], 8, lambda _: False) == 8
    visit.begin(cells[0])
    clock.now = 70.0
    assert visit.find_room(cells[1], 8, lambda _: False) == 0
