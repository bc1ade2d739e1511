"""Rates that a short trial bears and a whole run does not.

A trial of a tenth of the budget may end before a model gets worse. Of 193 pre-trainings of language models on Wikipedia
(1e14 to 5e16 FLOPs) 190 ended within 0.05 % of their lowest held-out loss; the other three, two towers at the rate at
which their trials had learnt fastest, ended 1.4 to 11 % above it (docs/results/studies.md).

So where one of the study's own runs ends more than 1 % above its lowest held-out loss, or diverges, the next lower rate
that was tried is trained in full, too, and the one that ends lower stays; and so on, as long as runs at the lower rate
get worse as well. Scores of tasks have no part in it. Where several looks are planned, the seeds of the first decide:
what comes later takes back no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from etude.study.cells import DIVERGENCE, Cell, CellStore
from etude.study.plan import FullRuns, Tuning

MOST = 0.01  # of the lowest loss


@dataclass(frozen=True)
class Ending:
    """The held-out loss of a run that has ended; infinite where it diverged."""

    lowest: float
    last: float

    @property
    def got_worse(self) -> bool:
        return math.isinf(self.last) or self.last > self.lowest * (1 + MOST)


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


def list_worse(store: CellStore, keys: Sequence[str]) -> frozenset[str]:
    """Return those of some runs that have ended and got worse while they trained."""
    endings = {key: read_ending(store, key) for key in keys}
    return frozenset(key for key, ending in endings.items() if ending is not None and ending.got_worse)


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
        tuning.kept, wants_lower = choose_runs(store, tuning.tried)
    tuning.has_lower = bool(left)
    tuning.ended = count_ended(store, tuning)


def choose_runs(store: CellStore, tried: Sequence[FullRuns]) -> tuple[int, bool]:
    """Choose among the rates that whole runs have; returns its number, and whether a lower one is asked for."""
    for number, runs in enumerate(tried):
        if number and _ends_higher(store, runs, tried[number - 1]):
            return number - 1, False
        if not list_worse(store, runs.keys):
            return number, False
    return len(tried) - 1, True


def has_other_rate(store: CellStore, tuning: Tuning) -> bool:
    """Whether whole runs have ended since their contender was planned, so that it takes another rate."""
    if count_ended(store, tuning) == tuning.ended:
        return False
    kept, wants_lower = choose_runs(store, tuning.tried)
    return kept != tuning.kept or (wants_lower and tuning.has_lower)


def count_ended(store: CellStore, tuning: Tuning) -> int:
    return sum(has_ended(store, key) for runs in tuning.tried for key in runs.keys)


def has_ended(store: CellStore, key: str) -> bool:
    return store.state(key) in ("done", "failed")


def _ends_higher(store: CellStore, runs: FullRuns, above: FullRuns) -> bool:
    """Whether runs at a lower rate end no lower than those above, by the seeds that have ended at both."""
    if not (all(has_ended(store, key) for key in runs.keys) or list_worse(store, runs.keys)):
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
