"""Scores with 95 % percentile intervals of a bootstrap over examples (Efron 1979)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

ROUNDS = 1000  # of the bootstrap: the ends of a 95 % interval to about a tenth of its width
CHUNK = 2**20  # numbers of examples drawn at once: 16 MB


@dataclass(frozen=True)
class Score:
    """A value and the 95 % interval of a bootstrap over examples; low = high = value without a bootstrap."""

    value: float
    low: float
    high: float
    count: int  # examples

    def __str__(self) -> str:
        return f"{self.value:.4f} [{self.low:.4f}, {self.high:.4f}] (n = {self.count:,})"

    def json(self) -> dict[str, float]:
        return {"value": self.value, "low": self.low, "high": self.high, "count": self.count}


def bootstrap(
    count: int,
    statistic: Callable[[np.ndarray], float],
    intervals: bool = True,
    seed: int = 0,
    rounds: int = ROUNDS,
) -> Score:
    """A score of `count` examples with its percentile interval (Efron 1979).

    `statistic` takes numbers of examples, drawn with repetition, and gives their score.
    """
    value = float(statistic(np.arange(count)))
    if not intervals or count < 2:
        return Score(value, value, value, count)
    draw = np.random.default_rng(seed)
    values = [statistic(draw.integers(count, size=count)) for _ in range(rounds)]
    low, high = np.percentile(values, [2.5, 97.5])
    return Score(value, float(low), float(high), count)


def bootstrap_counts(counts: np.ndarray, statistic: Callable[[np.ndarray], float], intervals: bool = True) -> Score:
    """The same for a score that needs only counts, such as the cells of a confusion matrix.

    Examples drawn with repetition fall into the cells by a multinomial distribution, so the counts are drawn at once.
    """
    total, value = int(counts.sum()), float(statistic(counts))
    if not intervals or total < 2:
        return Score(value, value, value, total)
    draw, shares = np.random.default_rng(0), counts.ravel() / total
    # one at a time: a thousand labels are a million cells
    values = [statistic(draw.multinomial(total, shares).reshape(counts.shape)) for _ in range(ROUNDS)]
    low, high = np.percentile(values, [2.5, 97.5])
    return Score(value, float(low), float(high), total)


def bootstrap_mean(values: np.ndarray, intervals: bool = True) -> Score:
    """The mean of one value an example."""
    values = np.asarray(values, dtype=np.float64)
    count, value = len(values), float(values.mean())
    if not intervals or count < 2:
        return Score(value, value, value, count)
    draw, means = np.random.default_rng(0), np.empty(0)
    while len(means) < ROUNDS:  # in parts: all resamples at once may not fit
        rounds = min(ROUNDS - len(means), max(1, CHUNK // count))
        means = np.append(means, values[draw.integers(count, size=(rounds, count))].mean(1))
    low, high = np.percentile(means, [2.5, 97.5])
    return Score(value, float(low), float(high), count)
