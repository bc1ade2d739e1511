"""Uncertainty of a score or a difference: pre-training seeds, transfer seeds and test examples together.

A mean over seeds on one test set is uncertain for two reasons. Other seeds would have learnt something else: that is
seen in the spread between pre-training seeds, which holds the noise of transfer seeds and of examples that only some
seeds answer. And another test set would have held other examples: all seeds share the set, so this part neither
averages out over seeds nor shows in their spread. Seeds and examples are two crossed random factors,

    variance of the mean = (between seeds) / seeds + (between examples) / examples

where the variance between the examples' means also holds their interaction with seeds, which the first term has
already, so it is taken off (Dorfman, Berbaum and Metz 1992, for readers and cases). Scores that are no means of
examples (F1, Matthews, correlations) enter by their jackknife pseudo-values.

Few seeds estimate their spread badly. Satterthwaite's degrees of freedom, the usual remedy, take the estimate itself to
say how good it is, and decide up to 8 % of true nulls at 5 % and 2.5 % at 0.5 % with three seeds. Here the tail
probability is that of Student's t with (seeds - 1) degrees of freedom and that of the normal, weighted by the shares of
the variance: exact where one part is all, at most 1.05 times the level between (`benchmarks/calibration.py`).

With two seeds that weighting would decide up to 1.6 times the level of 5 % and 4 times that of 0.5 %: they are often
alike by chance. There the squared limits are weighted instead, share * t^2 + (1 - share) * z^2. The chance that a true
null is beyond sqrt(x) deviations is convex in x, so it is never above the level, whatever the true share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import chdtri, ndtr, ndtri, stdtr, stdtrit

from etude.tasks.outcomes import STATISTICS, Outcome

POWER = 0.8  # the chance that a difference of the smallest size counted as detectable is settled
QUANTILES = 200  # of the estimated spread, over which power is averaged
BISECTIONS = 60
Floats = np.ndarray  # of any shape: every function here works on whole simulations, too


def pseudo_values(outcome: Outcome) -> np.ndarray:
    """Return (examples,) jackknife pseudo-values; of a mean, these are the values themselves."""
    count = len(outcome.parts)
    score = outcome.score()
    if count < 2:
        return np.full(count, float(score))
    without = STATISTICS[outcome.statistic](outcome.parts.sum(0) - outcome.parts)  # (examples,)
    return count * score - (count - 1) * without


def example_variance(table: np.ndarray) -> np.ndarray:
    """Return the variance of the grand mean of (..., seeds, examples) that is due to the draw of examples.

    Never below what a single example moves: contenders that agree on all examples here would not on all others.
    """
    seeds, examples = table.shape[-2:]
    floor = 1 / examples**2
    if examples < 2:
        return np.full(table.shape[:-2], floor)
    by_example = table.mean(-2)  # (..., examples)
    variance: np.ndarray = by_example.var(-1, ddof=1) / examples
    if seeds > 1:
        grand = by_example.mean(-1)[..., None, None]
        residual = table - table.mean(-1, keepdims=True) - by_example[..., None, :] + grand
        interaction = (residual**2).sum((-1, -2)) / ((seeds - 1) * (examples - 1))
        variance = variance - interaction / (seeds * examples)
    return np.maximum(variance, floor)


def seed_variance(scores: np.ndarray, answer: float = 0.0) -> np.ndarray:
    """Return the variance of the mean of (..., seeds) scores that is due to the draw of seeds; 0 of a single one.

    answer: What one answer of one seed moves, squared: that of two seeds is never below it, which often have equally
        many right answers; three seldom have.
    """
    seeds = scores.shape[-1]
    if seeds < 2:
        return np.zeros(scores.shape[:-1])
    variance: np.ndarray = scores.var(-1, ddof=1) / seeds
    return np.maximum(variance, answer) if seeds == 2 else variance


def tail_probability(statistic: Floats, share: Floats, degrees: int) -> Floats:
    """Return the two-sided p-value of a standardised difference; `share` is the seeds' share of its variance."""
    beyond = -np.abs(statistic)
    student, normal = 2 * stdtr(max(1, degrees), beyond), 2 * ndtr(beyond)
    if degrees != 1:
        return share * student + (1 - share) * normal
    low, high = normal, student
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        is_within = np.abs(statistic) < _two_seeds_limit(middle, share)
        low, high = np.where(is_within, middle, low), np.where(is_within, high, middle)
    return high


def _two_seeds_limit(p: Floats, share: Floats) -> Floats:
    """Return the standardised difference of two seeds that has this two-sided p-value."""
    return np.sqrt(share * stdtrit(1, p / 2) ** 2 + (1 - share) * ndtri(p / 2) ** 2)


def critical_value(level: float, share: Floats, degrees: int) -> Floats:
    """Return the standardised difference whose `tail_probability` is 1 - level."""
    if degrees == 1:
        return _two_seeds_limit(np.asarray(1 - level), share)
    quantile = (1 + level) / 2
    low = np.full(np.shape(share), float(ndtri(quantile)))
    high = np.full(np.shape(share), float(stdtrit(max(1, degrees), quantile)))
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        is_inside = tail_probability(middle, share, degrees) > 1 - level
        low, high = np.where(is_inside, middle, low), np.where(is_inside, high, middle)
    return high


@dataclass(frozen=True)
class Estimate:
    """A mean with the variance that seeds and examples give it."""

    mean: float
    seed_variance: float  # of the mean
    example_variance: float  # of the mean
    seeds: int  # how many the first was estimated from

    @property
    def error(self) -> float:
        return math.sqrt(self.seed_variance + self.example_variance)

    @property
    def seed_share(self) -> float:
        return self.seed_variance / (self.seed_variance + self.example_variance)

    def interval(self, level: float) -> tuple[float, float]:
        width = self.error * float(critical_value(level, np.asarray(self.seed_share), self.seeds - 1))
        return self.mean - width, self.mean + width

    def p_value(self, margin: float = 0.0) -> float:
        """Return the two-sided p-value of a mean that is equal to the margin."""
        statistic = np.asarray((self.mean - margin) / self.error)
        return float(tail_probability(statistic, np.asarray(self.seed_share), self.seeds - 1))


def estimate_mean(scores: np.ndarray, tables: Sequence[tuple[float, np.ndarray]]) -> Estimate:
    """Estimate a mean from (seeds,) scores and, for each test set, its weight and (seeds, examples) pseudo-values."""
    examples = sum(weight**2 * float(example_variance(table)) for weight, table in tables)
    answer = sum((weight / table.size) ** 2 for weight, table in tables)
    return Estimate(float(scores.mean()), float(seed_variance(scores, answer)), examples, scores.shape[-1])


# --- power ------------------------------------------------------------------------------------------


def compute_power(
    difference: float, seed_variance: float, example_variance: float, seeds: int, level: float = 0.95
) -> float:
    """Compute the chance that a true difference is settled, given the true variances of its mean.

    The spread between seeds is estimated from few of them, so the chance is averaged over what might be estimated.
    """
    if seeds < 2:
        return 0.0
    limits = _settling_limits(seed_variance, example_variance, seeds, level)
    return _chance_beyond(limits, difference, math.sqrt(seed_variance + example_variance))


def _settling_limits(seed_variance: float, example_variance: float, seeds: int, level: float) -> Floats:
    """Return the observed differences from which a claim is settled, for each spread that might be estimated."""
    chances = (np.arange(QUANTILES) + 0.5) / QUANTILES
    estimated = seed_variance * chdtri(seeds - 1, 1 - chances) / (seeds - 1)
    spread = np.sqrt(estimated + example_variance)
    return spread * critical_value(level, estimated / spread**2, seeds - 1)


def _chance_beyond(limits: Floats, difference: float, error: float) -> float:
    """Return the chance that an observed difference is beyond the limits, on average over them."""
    return float((ndtr((difference - limits) / error) + ndtr((-difference - limits) / error)).mean())


def detectable_difference(
    seed_variance: float, example_variance: float, seeds: int, level: float = 0.95, power: float = POWER
) -> float:
    """Compute the smallest true difference that is settled with the given power; infinite with a single seed."""
    if seeds < 2:
        return math.inf
    error = math.sqrt(seed_variance + example_variance)
    limits = _settling_limits(seed_variance, example_variance, seeds, level)
    low, high = 0.0, error
    while _chance_beyond(limits, high, error) < power:
        low, high = high, 2 * high
    for _ in range(30):
        middle = (low + high) / 2
        is_enough = _chance_beyond(limits, middle, error) >= power
        low, high = (low, middle) if is_enough else (middle, high)
    return high
