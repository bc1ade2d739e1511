"""Per-example outcomes: a few numbers for each example, whose sums over any examples give the official score.

A bootstrap asks for the score of thousands of resamples. Every score here is a function of sums (correct and all;
counts of entities; cells of a confusion matrix; moments), so a resample is a weighting of examples and all resamples
are one matrix product. Spearman's ranks are those among all examples. A task returns its `Outcome` from
`Scoring.outcome` (tasks/base.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from etude.errors import UserError
from etude.tasks import ngram_scores
from etude.text.checked_files import load_array

CORRECT, PREDICTED, GOLD = 0, 1, 2  # columns of counts, (..., 3)
CANCELLED = 1e-12  # of a sum of squares: what the difference of two equal ones may leave of it


@dataclass(frozen=True)
class Outcome:
    statistic: str  # a key of STATISTICS: from sums to the score
    parts: np.ndarray  # (examples, numbers) float64

    def score(self, weights: np.ndarray | None = None) -> np.ndarray:
        """() of all examples, or (resamples,) for (resamples, examples) weights: how often each holds each example."""
        sums = self.parts.sum(0) if weights is None else weights @ self.parts
        return STATISTICS[self.statistic](sums)

    def save(self, path: Path) -> None:
        with open(path, "wb") as file:
            np.lib.format.write_array(file, self.parts, allow_pickle=False)

    @classmethod
    def load(cls, path: Path, statistic: str) -> Outcome:
        parts = load_array(path, f"Remove {path.parent} to run the cell again.")
        if parts.ndim != 2 or parts.dtype != np.float64:
            raise UserError(f"{path} is damaged: no row of numbers for each example.")
        return cls(statistic, parts)


# --- outcomes of the usual forms ----------------------------------------------------------------------


def mean_outcome(values: Sequence[float]) -> Outcome:
    """One value an example; the score is their mean."""
    return Outcome("mean", np.stack([np.asarray(values, np.float64), np.ones(len(values))], axis=1))


def correlation_outcome(gold: np.ndarray, predicted: np.ndarray) -> Outcome:
    """Moments for Pearson's r; both sides centred by the whole set, so that nothing cancels."""
    x, y = gold - gold.mean(), predicted - predicted.mean()
    return Outcome("pearson", np.stack([np.ones(len(x)), x, y, x * x, y * y, x * y], axis=1))


def count_outcome(statistic: str, counts: Sequence[Mapping[str, np.ndarray]]) -> Outcome:
    """Counts (CORRECT, PREDICTED, GOLD) of each type in each example; "micro" or "macro" F1 over the types."""
    types = sorted({name for example in counts for name in example})
    table = np.zeros((len(counts), len(types), 3))
    for row, example in zip(table, counts, strict=True):
        for name, value in example.items():
            row[types.index(name)] = value
    return Outcome(statistic, table.reshape(len(counts), -1))


# --- sums to scores ---------------------------------------------------------------------------------


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    zeros = np.zeros(np.broadcast_shapes(above.shape, below.shape))
    ratio: np.ndarray = np.divide(above, below, out=zeros, where=below != 0)
    return ratio


def _mean(sums: np.ndarray) -> np.ndarray:
    return _ratio(sums[..., 0], sums[..., 1])


def _f1(counts: np.ndarray) -> np.ndarray:
    """(..., 3) of CORRECT, PREDICTED and GOLD."""
    return _ratio(2 * counts[..., CORRECT], counts[..., PREDICTED] + counts[..., GOLD])


def _macro(sums: np.ndarray) -> np.ndarray:
    """(..., 3 x types): the mean over the types that occur."""
    counts = sums.reshape(*sums.shape[:-1], -1, 3)
    occurs = counts.sum(-1) > 0
    return _ratio((_f1(counts) * occurs).sum(-1), occurs.sum(-1).astype(float))


def _micro(sums: np.ndarray) -> np.ndarray:
    return _f1(sums.reshape(*sums.shape[:-1], -1, 3).sum(-2))


def _mean_f1(sums: np.ndarray) -> np.ndarray:
    """(..., 3): precision, recall and 1 of each example; F1 of the means (loose macro, Ling & Weld 2012)."""
    precision, recall = (_ratio(sums[..., column], sums[..., 2]) for column in (0, 1))
    return _ratio(2 * precision * recall, precision + recall)


def _matthews(sums: np.ndarray) -> np.ndarray:
    """(..., classes x classes) of gold and predicted; Gorodkin 2004."""
    side = round(sums.shape[-1] ** 0.5)
    table = sums.reshape(*sums.shape[:-1], side, side)
    total = table.sum((-1, -2))
    correct = np.trace(table, axis1=-2, axis2=-1)
    gold, predicted = table.sum(-1), table.sum(-2)
    joint = correct * total - (gold * predicted).sum(-1)
    spread = np.sqrt((total**2 - (gold**2).sum(-1)) * (total**2 - (predicted**2).sum(-1)))
    return _ratio(joint, spread)


def _pearson(sums: np.ndarray) -> np.ndarray:
    """(..., 6): 1, x, y, xx, yy, xy."""
    n, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
    return _ratio(n * xy - x * y, _deviation(n, x, xx) * _deviation(n, y, yy))


def _deviation(n: np.ndarray, x: np.ndarray, xx: np.ndarray) -> np.ndarray:
    """n times the deviation; 0 where what is left of the squares is rounding, whatever the scale of the values."""
    squares = n * xx - x * x
    return np.sqrt(np.where(squares > CANCELLED * n * xx, squares, 0.0))


STATISTICS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "mean": _mean, "f1": _f1, "micro": _micro, "macro": _macro, "matthews": _matthews, "pearson": _pearson,
    "mean_f1": _mean_f1, "bleu": ngram_scores.bleu, "chrf": ngram_scores.chrf,
}  # fmt: skip
LEAST = {"matthews": -1.0, "pearson": -1.0}  # possible values; the others are 0 at least
