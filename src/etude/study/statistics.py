"""Statistics of a study: intervals over seeds and examples, corrections and verdicts.

How sure a difference is, is said in `uncertainty.py`: contenders are paired by seed (which draws the same labels for
all of them) and by example. Many comparisons are corrected by Holm's step-down rule (Holm 1979). Effect sizes are
Hedges' g over the seeds (Hedges 1981). A single pre-training seed tells nothing about others, so it settles nothing,
unless the rule says that only these runs are judged (`over: examples`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from etude.study.sections import Rule
from etude.study.uncertainty import Estimate

Verdict = Literal["holds", "fails", "not settled", "not tested"]


@dataclass(frozen=True)
class Summary:
    mean: float
    deviation: float | None  # over seeds
    low: float
    high: float
    seeds: list[float]

    def json(self) -> dict[str, Any]:
        return vars(self).copy()


def summarize(values: Sequence[float], estimate: Estimate, level: float, least: float = 0.0) -> Summary:
    """Summarise a contender's scores per seed; no score is above 1, or below `least`."""
    low, high = estimate.interval(level)
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    seeds = [float(value) for value in values]
    return Summary(float(np.mean(values)), deviation, max(least, low), min(1.0, high), seeds)


@dataclass(frozen=True)
class Difference:
    """Difference of two contenders' scores, paired over seeds and examples."""

    mean: float
    low: float
    high: float
    p: float  # two-sided, of no difference beyond the margin
    effect: float | None  # Hedges' g
    seeds: list[float]  # the difference of each seed
    error: float  # standard error of the mean
    seed_share: float  # of its variance; examples have the rest
    pretrainings: int  # seeds of pre-training

    def json(self) -> dict[str, Any]:
        return vars(self).copy()


def compare(
    left: Sequence[float],
    right: Sequence[float],
    estimate: Estimate,
    level: float,
    margin: float = 0.0,
    pretrainings: int | None = None,
) -> Difference:
    """Compare two contenders; `left` and `right` are scores per seed, `estimate` that of their difference.

    `pretrainings` are the seeds of pre-training among them, where they are fewer than the estimate's.
    """
    low, high = estimate.interval(level)
    seeds = [a - b for a, b in zip(left, right, strict=True)]
    return Difference(
        float(np.mean(seeds)), low, high, estimate.p_value(margin), hedges_g(left, right), seeds,
        estimate.error, estimate.seed_share, estimate.seeds if pretrainings is None else pretrainings,
    )  # fmt: skip


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
    """Decide a claim by the study's rule; `p` is corrected where the rule says so.

    Where several looks are planned, each has its part of the error, so that all of them together keep it.
    """
    if difference.pretrainings < 2 and rule.over == "seeds and examples":
        return "not settled"
    if p >= rule.error_at(difference.pretrainings):
        return "not settled"
    side = 1 if difference.mean > margin else -1
    if rule.seeds == "all" and any(side * (value - margin) <= 0 for value in difference.seeds):
        return "not settled"
    return "holds" if side > 0 else "fails"
