"""Rates that a short trial bears and a whole run does not.

A trial of a tenth of the budget may end before a model gets worse. Of 235 pre-trainings on Wikipedia (1e14 to 5e16
FLOPs, without discriminators) 232 ended within 0.05 % of their lowest held-out loss; the other three, two towers at the
rate at which their trials had learnt fastest, ended 1.4 to 11 % above it (docs/results/studies.md).

So where one of the study's own runs ends more than 1 % above its lowest held-out loss, or diverges, the next lower rate
that was tried is trained in full, too, and the one that ends lower stays; and so on, as long as runs at the lower rate
get worse as well. Scores of tasks have no part in it. Where several looks are planned, the seeds of the first decide:
what comes later takes back no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from etude.study.cells import DIVERGENCE, Cell, CellStore
from etude.study.plan import FullRuns, Tuning

LARGEST_RISE = 0.01  # of the lowest loss


@dataclass(frozen=True)
class Ending:
    """The held-out loss of a run that has ended; infinite where it diverged."""

    lowest: float
    last: float

    @property
    def got_worse(self) -> bool:
        return math.isinf(self.last) or self.last > self.lowest * (1 + LARGEST_RISE)


def find_ending(result: Mapping[str, Any]) -> Ending | None:
    """Return the lowest and the last held-out loss of a finished pre-training; None where they say nothing.

    The task of a discriminator grows harder as its generator learns, so its loss may rise by right.
    """
    curve = [point for point in result.get("curve") or [] if "loss" in point]
    if not curve or any("discriminator" in point for point in curve):
        return None
    losses = [math.inf if point["loss"] is None else float(point["loss"]) for point in curve]  # null: not finite
    return Ending(min(losses), losses[-1])


def read_ending(store: CellStore, key: str) -> Ending | None:
    """Return how a cell has ended: None if it has not, or where its losses say nothing."""
    state = store.state(key)
    if state == "failed":
        return Ending(math.inf, math.inf) if DIVERGENCE.match(store.error(key)) else None
    return find_ending(store.result(key)) if state == "done" else None


def has_worse(store: CellStore, runs: FullRuns) -> bool:
    """Whether any of some runs has ended and got worse while it trained."""
    return any(ending.got_worse for key in runs.keys if (ending := read_ending(store, key)) is not None)


def settle_rate(
    store: CellStore, tuning: Tuning, rates: Sequence[float], plan_runs: Callable[[float], list[Cell]]
) -> None:
    """Go down from the rate that trials chose, as far as whole runs ask for it.

    rates: Those tried that are not above the chosen one, it among them.
    plan_runs: Plans the whole runs at a rate, one a seed of the first look.
    """
    left = sorted(rates, reverse=True)
    wants_lower = True
    while wants_lower and left:
        rate = left.pop(0)
        tuning.tried.append(FullRuns(rate, tuple(cell.key for cell in plan_runs(rate))))
        tuning.chosen_index, wants_lower = choose_runs(store, tuning.tried)
    tuning.has_lower = bool(left)
    tuning.ended = count_ended(store, tuning)


def choose_runs(store: CellStore, tried: Sequence[FullRuns]) -> tuple[int, bool]:
    """Choose among the rates that whole runs have; returns its index, and whether a lower one is asked for."""
    for index, runs in enumerate(tried):
        if index and _ends_higher(store, runs, tried[index - 1]):
            return index - 1, False
        if not has_worse(store, runs):
            return index, False
    return len(tried) - 1, True


def has_other_rate(store: CellStore, tuning: Tuning) -> bool:
    """Whether whole runs have ended since their contender was planned, so that it takes another rate."""
    if count_ended(store, tuning) == tuning.ended:
        return False
    index, wants_lower = choose_runs(store, tuning.tried)
    return index != tuning.chosen_index or (wants_lower and tuning.has_lower)


def count_ended(store: CellStore, tuning: Tuning) -> int:
    return sum(has_ended(store, key) for runs in tuning.tried for key in runs.keys)


def has_ended(store: CellStore, key: str) -> bool:
    return store.state(key) in ("done", "failed")


def _ends_higher(store: CellStore, runs: FullRuns, above: FullRuns) -> bool:
    """Whether runs at a lower rate end no lower than those above, by the seeds that have ended at both."""
    if not (all(has_ended(store, key) for key in runs.keys) or has_worse(store, runs)):
        return False
    pairs = [
        (low.last, high.last)
        for key, key_above in zip(runs.keys, above.keys, strict=True)
        if (low := read_ending(store, key)) and (high := read_ending(store, key_above))
    ]
    if not pairs:
        return False
    lower, higher = fmean(low for low, _ in pairs), fmean(high for _, high in pairs)
    return math.isfinite(higher) and lower >= higher


def describe_endings(store: CellStore, runs: FullRuns) -> dict[str, Any]:
    """Return how many runs have ended, and the held-out losses of those that got worse; None is infinite."""
    endings = [ending for key in runs.keys if (ending := read_ending(store, key)) is not None and ending.got_worse]
    rises = [
        {name: value if math.isfinite(value) else None for name, value in asdict(ending).items()} for ending in endings
    ]
    return {"runs": sum(has_ended(store, key) for key in runs.keys), "rises": rises}


def describe_change(before: Tuning, after: Tuning) -> str:
    """Say why a contender has another rate than before."""
    old = before.tried[before.chosen_index].rate
    if not after.tried:
        return f"{before.entry} is tuned again: the rate of its teacher is another one."
    new = after.tried[after.chosen_index].rate
    if new > old:
        return f"{before.entry}: whole runs at train.lr={old:g} end no lower than at {new:g}, which stays."
    return f"{before.entry}: a run at train.lr={old:g} got worse while it trained, so all are made again at {new:g}."
