"""A visit to a machine: which cells run first in the minutes there are, and what is taken home.

Order: verdicts are given when all cells of a claim are done, so the claim that needs the fewest seconds comes first,
with its cells seed by seed and each pre-training before its transfers; then the claim that needs the fewest besides,
and so on; last come cells that no claim waits for. Several studies share one order, and the cells they have in common;
in turn, the claims of the first come before all of the second, so that the longest does not begin last.
A cell is not started when it would end after the visit, and a pre-training not unless its transfers end in time, too:
its weights stay here. For the same reason nothing else is started that could keep such transfers from their end: near
the end of a visit they come before all others. Cells that share a GPU slow each other down: a pre-training too long to
end beside as many as there are slots runs beside fewer, and what comes after it in the order waits until they are.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

from etude.runs.model_card import describe_versions
from etude.study.cell_archive import export_cells, refuse_loss
from etude.study.cells import PRETRAININGS, Cell, CellStore
from etude.study.claim_scope import claim_cells
from etude.study.plan import Plan

SAFETY = 1.2  # a cell may take so many times what the others took
RESERVE = 2.0  # the same of transfers whose weights stay here: a late one costs its pre-training, an early one nothing
STARTUP = 15.0  # seconds in which a model is compiled and its data read, where no curve tells
SHORT = 2.0  # planned seconds below which start-up is all that a duration tells
ALIKE = 0.1  # logarithm of the ratio of two planned speeds, below which they are one


def order_cells(plans: Sequence[Plan], store: CellStore, in_turn: bool = False) -> list[Cell]:
    """Order the cells of all plans: those of the claim that is cheapest to finish first, or those of the first plan.

    Of a study that has trials of pre-training to run, only those: what else it needs is not known before. What a claim
    needs without pre-training comes after its pre-trainings: those take longest, and what is short finds a gap.
    """
    cells = {cell.key: cell for plan in plans for cell in plan.ready_cells()}
    places = {key: place for place, key in enumerate(cells)}
    durations = Durations(store, cells.values())
    pending = {key for key in cells if store.state(key) != "done"}
    pending |= {*missing_bases(store, cells.values()), *chain(*list_outdated(store, cells.values()).values())}
    waiting = [(turn if in_turn else 0, pending & set(plan.tuning_cells if plan.untuned else claim_cells(plan, claim)))
               for turn, plan in enumerate(plans) for claim in plan.study.claims]  # fmt: skip
    seconds = {key: durations.estimate(cells[key]) for key in set[str]().union(*(keys for _, keys in waiting))}
    ordered: list[str] = []
    while waiting := [(turn, keys - set(ordered)) for turn, keys in waiting if keys - set(ordered)]:
        _, cheapest = min(waiting, key=lambda claim: (claim[0], sum(seconds[key] for key in claim[1])))
        ordered += sorted(cheapest, key=lambda key: (not is_pretrained(cells, key), places[key]))
    placed = set(ordered)
    return [cells[key] for key in [*ordered, *(key for key in cells if key not in placed)]]


def is_pretrained(cells: Mapping[str, Cell], key: str | None) -> bool:
    """Whether a cell is a pre-training or starts from one, directly or not."""
    while key is not None and key in cells:
        if cells[key].kind in PRETRAININGS:
            return True
        key = cells[key].depends_on
    return False


def missing_bases(store: CellStore, cells: Iterable[Cell]) -> list[str]:
    """List pre-trainings that are done elsewhere and whose weights a pending cell needs here, directly or not."""
    by_key = {cell.key: cell for cell in cells}
    pending = [key for key in by_key if store.state(key) not in ("done", "failed")]
    missing: dict[str, None] = {}
    while pending:
        cell = by_key.get(pending.pop())
        base = None if cell is None else cell.depends_on
        if base is not None and base not in missing and store.state(base) == "done" and not store.has_run(base):
            missing[base] = None
            pending.append(base)  # a student that is trained again needs its teacher's weights
    return list(missing)


def list_outdated(store: CellStore, cells: Iterable[Cell]) -> dict[str, list[str]]:
    """List, by pre-training that runs again (see `missing_bases`), the finished cells that its new weights outdate.

    The same version of code and libraries trains the same weights again. Of another version they are others, and the
    tasks of one seed would be scored on two models.
    """
    cells = list(cells)
    by_key = {cell.key: cell for cell in cells}
    outdated: dict[str, list[str]] = {}
    for base in missing_bases(store, cells):
        result = store.result(base)
        if (result.get("code"), result.get("versions")) == (by_key[base].code, describe_versions()):
            continue
        changed = [base]
        for key in changed:  # grows: a student of other weights has transfers of its own
            changed += [cell.key for cell in cells if cell.depends_on == key and cell.key not in changed]
        outdated[base] = [key for key in changed[1:] if store.state(key) == "done"]
    return outdated


class Durations:
    """Seconds of cells: as measured on cells of the same place in the grid, or as planned and slowed down alike.

    Plans hold the speed of each model alone on the machine; cells that share it are slower by a factor, beside a
    start-up that does not grow with their length: compiling may take longer than a whole trial. The curve of a pre-
    training, whose points have their times, tells one from the other. A small model waits for its launches and a
    large one for the GPU, so the factor is that of the cells that ended whose planned FLOPs a second are nearest: a
    contender's own trials, as a rule. Trials are far shorter than what follows them, so seconds alone would not
    carry over.

    The factor is one for a cell that is alone, and grows evenly with the number of cells at once.
    """

    def __init__(
        self, store: CellStore, cells: Iterable[Cell], at_once: Mapping[str, float] = MappingProxyType({})
    ) -> None:
        """Read what is in the store; of the cells of this visit, `at_once` says beside how many they ran."""
        self.alike: dict[tuple[object, ...], Observation] = {}
        self.slowdowns: dict[str, list[Observation]] = {}
        self.startups: dict[str, list[float]] = {}
        self.assumed_startups: dict[str, list[float]] = {}  # where no curve tells
        for cell in cells:
            if store.state(cell.key) == "done":
                result = store.result(cell.key)
                self.observe(cell, float(result["seconds"]), result.get("curve", ()), at_once.get(cell.key))

    def observe(
        self, cell: Cell, seconds: float, curve: Sequence[Mapping[str, Any]] = (), at_once: float | None = None
    ) -> None:
        """Take in how long a cell took; `curve` are its points, with the FLOPs and the seconds until each.

        `at_once` cells ran on average, this one among them; of earlier visits nobody knows.
        """
        steady = _measure_steady_seconds(cell, curve)
        startups = self.startups if steady is not None else self.assumed_startups
        if steady is None:
            steady = max(seconds - STARTUP, seconds / 4)
        if cell.seconds < SHORT:
            self.alike[_describe_place(cell)] = Observation(seconds, 0.0, 1.0, at_once)
            return
        startups.setdefault(cell.kind, []).append(max(0.0, seconds - steady))
        observation = Observation(seconds, cell.flops / cell.seconds, steady / cell.seconds, at_once)
        self.alike[_describe_place(cell)] = observation
        self.slowdowns.setdefault(cell.kind, []).append(observation)

    def estimate(self, cell: Cell, at_once: int | None = None, usual: int | None = None) -> float:
        """Estimate the seconds of a cell: beside as many as were observed, or with `at_once` cells in all.

        Earlier visits are taken to have had the `usual` number at once.
        """
        measured = self.alike.get(_describe_place(cell))
        if measured is not None:
            return measured.seconds + cell.seconds * (measured.rescale(at_once, usual) - measured.slowdown)
        observed = self.slowdowns.get(cell.kind)
        if not observed or cell.seconds < SHORT:
            return cell.seconds
        distances = [_compare_speeds(cell.flops / cell.seconds, each.speed) for each in observed]
        limit = min(distances) + ALIKE
        nearest = [each.rescale(at_once, usual) for each, far in zip(observed, distances, strict=True) if far <= limit]
        startups = self.startups.get(cell.kind) or self.assumed_startups[cell.kind]
        return median(startups) + cell.seconds * median(nearest)


@dataclass(frozen=True)
class Observation:
    """How long a cell took, and beside how many others."""

    seconds: float
    speed: float  # planned FLOPs a second
    slowdown: float  # against the plan, start-up aside
    at_once: float | None  # cells, this one among them, on average

    def rescale(self, at_once: int | None, usual: int | None) -> float:
        """Return the slowdown with another number of cells at once; what slows a cell that is alone stays."""
        own = self.at_once if self.at_once is not None else usual
        if at_once is None or own is None or own <= 1 or self.slowdown <= 1:
            return self.slowdown
        return 1 + (self.slowdown - 1) * (at_once - 1) / (own - 1)


def _measure_steady_seconds(cell: Cell, curve: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the seconds that all FLOPs of a cell take at the speed between the first and the last point of its curve.

    None where there are no two of them.
    """
    timed = [(float(point["flops"]), float(point["seconds"])) for point in curve if {"flops", "seconds"} <= set(point)]
    if len(timed) < 2:
        return None
    flops, seconds = (last - first for first, last in zip(timed[0], timed[-1], strict=True))
    return seconds * cell.flops / flops if flops > 0 and seconds > 0 else None


def _compare_speeds(speed: float, observed_speed: float) -> float:
    """How many times as fast, as a logarithm without its sign; cells without FLOPs are alike, and far from others."""
    if speed > 0 and observed_speed > 0:
        return abs(math.log(speed / observed_speed))
    return 0.0 if speed == observed_speed else math.inf


def _describe_place(cell: Cell) -> tuple[object, ...]:
    length = cell.flops if cell.kind == "pretrain" else 0.0  # a trial is shorter than what it is a trial of
    return cell.kind, cell.position.get("row"), cell.position.get("column"), length


@dataclass
class Visit:
    """Time and luggage of a visit; without either, cells run in the order of the plan."""

    minutes: float | None = None
    archive: Path | None = None
    study_folder: Path | None = None
    in_turn: bool = False  # claims of the first of several studies come first
    start: float = field(default_factory=time.monotonic)
    _durations: Durations | None = None
    _pretrainings: set[str] = field(default_factory=set)
    _following: dict[str, list[Cell]] = field(default_factory=dict)  # by the cell that they start from
    _started: dict[str, tuple[float, float]] = field(default_factory=dict)  # and `_cell_seconds` by then
    _running: dict[str, Cell] = field(default_factory=dict)
    _reserved: dict[str, float] = field(default_factory=dict)  # seconds of transfers that wait for nothing but a slot
    _cell_seconds: float = 0.0  # of all cells together, until the number of those under way last changed
    _changed: float = 0.0
    _at_once: dict[str, float] = field(default_factory=dict)  # cells on average while one ran that has ended

    def open(self, store: CellStore, cells: Sequence[Cell]) -> None:
        self._pretrainings = {cell.key for cell in cells if cell.kind in PRETRAININGS}
        self._following = {}
        for cell in cells:
            if cell.depends_on is not None:
                self._following.setdefault(cell.depends_on, []).append(cell)
        self._durations = Durations(store, cells, self._at_once) if self.minutes is not None else None

    @property
    def keeps_order(self) -> bool:
        return self.minutes is not None

    def remaining(self) -> float:
        return float("inf") if self.minutes is None else self.start + 60 * self.minutes - time.monotonic()

    def reserve(self, waiting: Iterable[Cell], is_here: Callable[[str], bool]) -> None:
        """Keep time for the transfers whose pre-training is done here, or under way."""
        if self._durations is not None:
            self._reserved = {
                cell.key: self._durations.estimate(cell)
                for cell in waiting
                if cell.kind not in PRETRAININGS
                and cell.depends_on in self._pretrainings
                and (cell.depends_on in self._running or is_here(cell.depends_on))
            }

    def find_room(self, cell: Cell, slots: int, is_settled: Callable[[str], bool]) -> int:
        """Return the most cells at once, this one among them, beside which it would end in time: `slots` or fewer.

        For a pre-training that is too long to end beside as many as there are slots, fewer may do; until they are so
        few, it has to wait. 0 where it would not end at all.
        """
        if self._durations is None or self._fits(cell, slots, slots, 0.0, is_settled):
            return slots
        if cell.kind in PRETRAININGS:
            for at_once in range(slots - 1, 0, -1):
                wait = self._estimate_wait(at_once)
                if wait < self.remaining() and self._fits(cell, at_once, slots, wait, is_settled):
                    return at_once
        return 0

    def _fits(self, cell: Cell, at_once: int, slots: int, wait: float, is_settled: Callable[[str], bool]) -> bool:
        """Return whether a cell would end in time, and with it, of a pre-training, the transfers that need it.

        What time is kept for ends in time beside it, too.
        """
        assert self._durations is not None
        own, remaining = self._durations.estimate(cell, at_once, slots), self.remaining() - wait
        transfers = [other for other in self._following.get(cell.key, ()) if not is_settled(other.key)]
        following = [self._durations.estimate(other) for other in transfers]
        if SAFETY * (own + max([*following, sum(following) / slots], default=0.0)) >= remaining:
            return False
        # one that is too long for the time that is left is lost whatever is done
        reserved = sum(seconds for seconds in self._reserved.values() if SAFETY * seconds < remaining)
        if cell.key in self._reserved or not reserved:
            return True
        busy = sum(self._list_left(at_once, slots))
        return SAFETY * (own + sum(following) + busy) + RESERVE * reserved < at_once * remaining

    def _list_left(self, at_once: int | None = None, slots: int | None = None) -> list[float]:
        """List the seconds that each cell under way will still take, the shortest first."""
        assert self._durations is not None
        now = time.monotonic()
        left = [
            self._durations.estimate(cell, at_once, slots) - (now - self._started[key][0])
            for key, cell in self._running.items()
        ]
        return sorted(max(0.0, seconds) for seconds in left)

    def _estimate_wait(self, at_once: int) -> float:
        """Seconds until one more cell would make so many."""
        excess = len(self._running) + 1 - at_once
        return self._list_left()[excess - 1] if excess > 0 else 0.0

    def begin(self, cell: Cell) -> None:
        now = self._count_seconds()
        self._started[cell.key] = now, self._cell_seconds
        self._running[cell.key] = cell
        self._reserved.pop(cell.key, None)

    def end(self, cell: Cell) -> None:
        """Count a cell no more among those under way, done or not."""
        self._count_seconds()
        self._running.pop(cell.key, None)

    def _count_seconds(self) -> float:
        """Count the seconds of the cells under way up to now, which is returned."""
        now = time.monotonic()
        self._cell_seconds += len(self._running) * (now - self._changed)
        self._changed = now
        return now

    def finish(self, cell: Cell, store: CellStore) -> None:
        """Note how long a cell took, and write the archive again: a visit that is killed loses the cells in flight."""
        if self._durations is not None:
            curve = store.result(cell.key).get("curve", ()) if store.state(cell.key) == "done" else ()
            began, before = self._started[cell.key]
            seconds = self._changed - began
            if seconds > 0:
                self._at_once[cell.key] = (self._cell_seconds - before) / seconds
            self._durations.observe(cell, seconds, curve, self._at_once.get(cell.key))
        self.export(store)

    def check_archive(self, store: CellStore) -> None:
        """Raise UserError where what is taken home would replace something else; before any cell runs."""
        if self.archive is not None:
            refuse_loss(store, self.archive)

    def export(self, store: CellStore) -> None:
        if self.archive is not None and self.study_folder is not None:
            export_cells(store, self.archive, self.study_folder)
