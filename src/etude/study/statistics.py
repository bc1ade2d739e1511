"""What can be concluded: means and spreads, intervals over seeds and examples, and when a claim holds.

A score is uncertain for two reasons: another seed would have learnt something else, and another test set would have
held other examples. The bootstrap draws both (pre-training seeds, transfer seeds within each, and examples), every
contender meeting the same draws, so that a difference is one of pairs (Efron and Tibshirani 1993; for seeds and
examples together: Ren et al. 2010). Many comparisons are corrected by Holm's step-down rule (Holm 1979). Effect sizes
are Hedges' g over the seeds (Hedges 1981). Few seeds make intervals too narrow, which is why a claim also needs every
seed on its side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from etude.study.settings import Rule
from etude.tasks.outcomes import Outcome

BATCH_DRAWS = 2_000  # draws at a time: (draws, examples) weights of a large test set must fit into memory
MAX_CACHED = 50_000_000  # weights that are kept for the next contender: 200 MB
Unit = tuple[int, int]  # (pre-training seed, transfer seed)
Units = Mapping[Unit, Outcome]
Verdict = Literal["holds", "fails", "not settled", "not tested"]


class Bootstrap:
    """The same draws of seeds and of examples for everybody, made when they are first asked for."""

    def __init__(self, units: Sequence[Unit], count: int, seed: int = 0) -> None:
        self.units, self.count, self.seed = sorted(units), count, seed
        self.shares = self._shares()  # (draws, units): how much of a draw each unit is
        self.cached: dict[tuple[str, int, int], np.ndarray] = {}

    def _shares(self) -> np.ndarray:
        chance = np.random.default_rng([self.seed, 0])
        outer = len({first for first, _ in self.units})
        inner = len(self.units) // outer  # units are a grid, sorted: those of one pre-training stand together
        runs = chance.integers(outer, size=(self.count, outer, 1))
        columns = runs * inner + chance.integers(inner, size=(self.count, outer, inner))
        places = columns.reshape(self.count, -1) + np.arange(self.count)[:, None] * len(self.units)
        counts = np.bincount(places.ravel(), minlength=self.count * len(self.units))
        return counts.reshape(self.count, -1) / len(self.units)

    def resample(self, name: str, units: Units) -> np.ndarray:
        """(draws,) the mean score over the drawn seeds on the drawn examples of the test set called `name`."""
        size = len(next(iter(units.values())).parts)
        scores = np.empty((self.count, len(self.units)))
        for start in range(0, self.count, BATCH_DRAWS):
            weights = self._weights(name, start, size)
            for column, unit in enumerate(self.units):
                scores[start : start + len(weights), column] = units[unit].score(weights)
        return (scores * self.shares).sum(1)

    def _weights(self, name: str, start: int, size: int) -> np.ndarray:
        """(draws, examples): how often each is drawn; kept for the next contender where they fit."""
        key = (name, start, size)
        if key not in self.cached:
            count = min(BATCH_DRAWS, self.count - start)
            chance = np.random.default_rng([self.seed, 1, start, *name.encode()])
            drawn = chance.integers(size, size=(count, size)) + np.arange(count)[:, None] * size
            counts = np.bincount(drawn.ravel(), minlength=count * size).reshape(count, size).astype(np.float32)
            if next(iter(self.cached), key)[0] != name or self.count * size > MAX_CACHED:
                self.cached.clear()
            self.cached[key] = counts
        return self.cached[key]


@dataclass(frozen=True)
class Summary:
    mean: float
    deviation: float | None  # over seeds
    low: float
    high: float
    seeds: list[float]

    def json(self) -> dict[str, Any]:
        return vars(self).copy()


def percentile_interval(draws: np.ndarray, level: float) -> tuple[float, float]:
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def summarize(values: Sequence[float], draws: np.ndarray, level: float) -> Summary:
    low, high = percentile_interval(draws, level)
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Summary(float(np.mean(values)), deviation, low, high, [float(value) for value in values])


@dataclass(frozen=True)
class Difference:
    """One contender's score less another's, both under the same seeds and examples."""

    mean: float
    low: float
    high: float
    p: float  # two-sided, of no difference beyond the margin
    effect: float | None  # Hedges' g
    seeds: list[float]  # the difference of each seed

    def json(self) -> dict[str, Any]:
        return vars(self).copy()


def compare(
    one: Sequence[float], other: Sequence[float], draws: np.ndarray, level: float, margin: float = 0.0
) -> Difference:
    """`draws` of the difference; `one` and `other` the scores of each seed."""
    low, high = percentile_interval(draws, level)
    count = len(draws)
    tail = min((draws <= margin).sum(), (draws >= margin).sum())
    seeds = [a - b for a, b in zip(one, other, strict=True)]
    p = min(1.0, 2 * (float(tail) + 1) / (count + 1))
    return Difference(float(np.mean(seeds)), low, high, p, hedges_g(one, other), seeds)


def hedges_g(one: Sequence[float], other: Sequence[float]) -> float | None:
    """The difference in units of the pooled deviation over seeds, corrected for few of them; None without spread."""
    if len(one) < 2 or len(other) < 2:
        return None
    count = len(one) + len(other) - 2
    squares = np.var(one, ddof=1) * (len(one) - 1) + np.var(other, ddof=1) * (len(other) - 1)
    pooled = math.sqrt(squares / count)
    if pooled < 1e-9:
        return None
    return float((np.mean(one) - np.mean(other)) / pooled * (1 - 3 / (4 * count - 1)))


def holm_adjust(values: Sequence[float]) -> list[float]:
    """Adjusted p-values: the smallest times n, the next times n - 1 …, never falling."""
    order = sorted(range(len(values)), key=lambda number: values[number])
    adjusted = [0.0] * len(values)
    running = 0.0
    for rank, number in enumerate(order):
        running = max(running, min(1.0, (len(values) - rank) * values[number]))
        adjusted[number] = running
    return adjusted


def decide_verdict(found: Difference, p: float, rule: Rule, margin: float = 0.0) -> Verdict:
    """By the rule of the study; `p` is corrected where the rule says so."""
    sure = p < 1 - rule.interval

    def all_beyond(sign: int) -> bool:
        return rule.seeds == "ignored" or all(sign * (value - margin) > 0 for value in found.seeds)

    if sure and found.low > margin and all_beyond(1):
        return "holds"
    if sure and found.high < margin and all_beyond(-1):
        return "fails"
    return "not settled"
