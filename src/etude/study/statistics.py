"""Statistics of a study: bootstrap intervals over seeds and examples, corrections and verdicts.

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
MAX_CACHED = 50_000_000  # weights cached for the next contender: 200 MB
Unit = tuple[int, int]  # (pre-training seed, transfer seed)
Units = Mapping[Unit, Outcome]
Verdict = Literal["holds", "fails", "not settled", "not tested"]


class Bootstrap:
    """Paired bootstrap: the same draws of seeds and examples for every contender, made on demand."""

    def __init__(self, units: Sequence[Unit], count: int, seed: int = 0) -> None:
        self.units, self.count, self.seed = sorted(units), count, seed
        self.shares = self._shares()  # (draws, units): how much of a draw each unit is
        self.cached: dict[tuple[str, int, int], np.ndarray] = {}

    def _shares(self) -> np.ndarray:
        rng = np.random.default_rng([self.seed, 0])
        outer = len({first for first, _ in self.units})
        inner = len(self.units) // outer  # units are a grid, sorted: those of one pre-training stand together
        runs = rng.integers(outer, size=(self.count, outer, 1))
        columns = runs * inner + rng.integers(inner, size=(self.count, outer, inner))
        places = columns.reshape(self.count, -1) + np.arange(self.count)[:, None] * len(self.units)
        counts = np.bincount(places.ravel(), minlength=self.count * len(self.units))
        return counts.reshape(self.count, -1) / len(self.units)

    def resample(self, name: str, units: Units) -> np.ndarray:
        """Return (draws,): the mean score over the drawn seeds on the drawn examples of the test set called `name`."""
        size = len(next(iter(units.values())).parts)
        scores = np.empty((self.count, len(self.units)))
        for start in range(0, self.count, BATCH_DRAWS):
            weights = self._weights(name, start, size)
            for column, unit in enumerate(self.units):
                scores[start : start + len(weights), column] = units[unit].score(weights)
        return (scores * self.shares).sum(1)

    def _weights(self, name: str, start: int, size: int) -> np.ndarray:
        """Return (draws, examples): how often each is drawn; cached for the next contender where they fit."""
        key = (name, start, size)
        if key not in self.cached:
            count = min(BATCH_DRAWS, self.count - start)
            rng = np.random.default_rng([self.seed, 1, start, *name.encode()])
            drawn = rng.integers(size, size=(count, size)) + np.arange(count)[:, None] * size
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
    """Difference of two contenders' scores, paired over seeds and examples."""

    mean: float
    low: float
    high: float
    p: float  # two-sided, of no difference beyond the margin
    effect: float | None  # Hedges' g
    seeds: list[float]  # the difference of each seed

    def json(self) -> dict[str, Any]:
        return vars(self).copy()


def compare(
    left: Sequence[float], right: Sequence[float], draws: np.ndarray, level: float, margin: float = 0.0
) -> Difference:
    """Compare two contenders; `left` and `right` are scores per seed, `draws` those of their difference."""
    low, high = percentile_interval(draws, level)
    count = len(draws)
    tail = min((draws <= margin).sum(), (draws >= margin).sum())
    seeds = [a - b for a, b in zip(left, right, strict=True)]
    p = min(1.0, 2 * (float(tail) + 1) / (count + 1))
    return Difference(float(np.mean(seeds)), low, high, p, hedges_g(left, right), seeds)


def hedges_g(left: Sequence[float], right: Sequence[float]) -> float | None:
    """Return Hedges' g over seeds: the difference in pooled standard deviations, or None without spread."""
    if len(left) < 2 or len(right) < 2:
        return None
    count = len(left) + len(right) - 2
    squares = np.var(left, ddof=1) * (len(left) - 1) + np.var(right, ddof=1) * (len(right) - 1)
    pooled = math.sqrt(squares / count)
    if pooled < 1e-9:
        return None
    return float((np.mean(left) - np.mean(right)) / pooled * (1 - 3 / (4 * count - 1)))


def holm_adjust(values: Sequence[float]) -> list[float]:
    """Adjust p-values by Holm's step-down rule: the smallest times n, the next times n - 1 …, never falling."""
    order = sorted(range(len(values)), key=lambda number: values[number])
    adjusted = [0.0] * len(values)
    running = 0.0
    for rank, number in enumerate(order):
        running = max(running, min(1.0, (len(values) - rank) * values[number]))
        adjusted[number] = running
    return adjusted


def decide_verdict(difference: Difference, p: float, rule: Rule, margin: float = 0.0) -> Verdict:
    """Decide a claim by the study's rule; `p` is corrected where the rule says so."""
    is_significant = p < 1 - rule.interval

    def all_beyond(sign: int) -> bool:
        return rule.seeds == "ignored" or all(sign * (value - margin) > 0 for value in difference.seeds)

    if is_significant and difference.low > margin and all_beyond(1):
        return "holds"
    if is_significant and difference.high < margin and all_beyond(-1):
        return "fails"
    return "not settled"
