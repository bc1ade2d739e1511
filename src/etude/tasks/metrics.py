"""The official scores of tasks, from streamed counts where counts are enough.

Classification needs only the confusion matrix: accuracy, F1 of one class (GLUE's MRPC and QQP: the positive
one), macro F1, Matthews correlation (CoLA; of several classes: Gorodkin 2004, as scikit-learn has it).
Correlations rank all pairs, so those are kept: two floats each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


class Confusion:
    """Counts of (gold, predicted) classes; adding is all it does with data."""

    def __init__(self, classes: int, counts: np.ndarray | None = None) -> None:
        self.counts = np.zeros((classes, classes), dtype=np.int64) if counts is None else counts  # [gold, predicted]

    def add(self, gold: np.ndarray, predicted: np.ndarray) -> None:
        np.add.at(self.counts, (np.asarray(gold), np.asarray(predicted)), 1)

    @property
    def total(self) -> int:
        total = int(self.counts.sum())
        if not total:
            raise ValueError("no prediction was added, so there is no score")
        return total

    @property
    def accuracy(self) -> float:
        return float(np.trace(self.counts)) / self.total

    def f1(self, positive: int = 1) -> float:
        """Of one class against all others; 0 where it is neither there nor predicted."""
        correct = float(self.counts[positive, positive])
        total = int(self.counts[positive].sum() + self.counts[:, positive].sum())  # gold and predicted
        return 2 * correct / total if total else 0.0

    def micro_f1(self, classes: Sequence[int]) -> float:
        """Of some classes together: counts of correct, predicted and gold are added up first (KLUE-RE, TACRED)."""
        chosen = list(classes)
        correct = float(self.counts[chosen, chosen].sum())
        total = int(self.counts[chosen].sum() + self.counts[:, chosen].sum())
        return 2 * correct / total if total else 0.0

    @property
    def macro_f1(self) -> float:
        """Mean over the classes that occur, in gold or prediction; a class that does neither has no F1."""
        occurs = self.counts.sum(0) + self.counts.sum(1) > 0
        return float(np.mean([self.f1(number) for number in np.flatnonzero(occurs).tolist()]))

    @property
    def mcc(self) -> float:
        """Covariance of gold and predicted classes over their deviations; 0 if one of them is constant."""
        counts = self.counts.astype(np.float64)
        total, gold, predicted = float(self.total), counts.sum(1), counts.sum(0)
        joint = np.trace(counts) * total - gold @ predicted
        spread = math.sqrt(total**2 - gold @ gold) * math.sqrt(total**2 - predicted @ predicted)
        return float(joint / spread) if spread else 0.0


class Correlation:
    """Pairs of real values, gold and predicted."""

    def __init__(self) -> None:
        self.gold: list[np.ndarray] = []
        self.predicted: list[np.ndarray] = []

    def add(self, gold: np.ndarray, predicted: np.ndarray) -> None:
        gold, predicted = np.asarray(gold, np.float64), np.asarray(predicted, np.float64)
        if gold.shape != predicted.shape or gold.ndim != 1:
            raise ValueError(f"gold {gold.shape} and predicted {predicted.shape} are not pairs")
        self.gold.append(gold)
        self.predicted.append(predicted)

    @property
    def pearson(self) -> float:
        gold, predicted = self._pairs()
        return _correlation(gold, predicted)

    @property
    def spearman(self) -> float:
        """Pearson of ranks, ties at their mean rank."""
        from scipy.stats import rankdata  # takes longer to import than torch; no other metric needs it

        gold, predicted = self._pairs()
        return _correlation(rankdata(gold), rankdata(predicted))

    def _pairs(self) -> tuple[np.ndarray, np.ndarray]:
        if sum(map(len, self.gold)) < 2:
            raise ValueError("a correlation needs at least two pairs")
        return np.concatenate(self.gold), np.concatenate(self.predicted)


def _correlation(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Pearson's r without the p-value that scipy works out beside it: a bootstrap asks a thousand times.

    Of a degenerate run, where nothing varies, it is 0, as it is for Matthews.
    """
    if np.ptp(gold) == 0 or np.ptp(predicted) == 0:
        return 0.0
    x, y = gold - gold.mean(), predicted - predicted.mean()
    # scaled first: squares of tiny or huge deviations would leave the range of a float
    x, y = x / np.abs(x).max(), y / np.abs(y).max()
    return float(np.clip(x @ y / math.sqrt((x @ x) * (y @ y)), -1.0, 1.0))


def area_under_curves(gold: np.ndarray, probs: np.ndarray) -> float:
    """The mean over classes that occur of the area under their precision-recall curve, trapezoids as KLUE has them."""
    return float(np.mean([_precision_recall_area(gold == number, probs[:, number]) for number in np.unique(gold)]))


def _precision_recall_area(positive: np.ndarray, scores: np.ndarray) -> float:
    """The area under one curve: a point for each distinct score, lowest first, then precision 1 at recall 0."""
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)  # of the examples with an equal score
    hits = np.cumsum(positive[order])[last]
    precision, recall = np.append(1.0, hits / (last + 1))[::-1], np.append(0.0, hits / hits[-1])[::-1]
    return float(-np.sum(np.diff(recall) * (precision[1:] + precision[:-1]) / 2))  # in scikit-learn's order: equal bits


# --- ranking: one query at a time ----------------------------------------------------------------------


def ranks(scores: np.ndarray, relevant: np.ndarray) -> np.ndarray:
    """The places of the relevant candidates from 1, ascending; of equal scores the relevant come last."""
    order = np.lexsort((relevant, -np.asarray(scores, np.float64)))
    return np.flatnonzero(np.asarray(relevant)[order]) + 1


def reciprocal_rank(scores: np.ndarray, relevant: np.ndarray) -> float:
    return 1.0 / float(ranks(scores, relevant)[0])


def average_precision(scores: np.ndarray, relevant: np.ndarray) -> float:
    """The mean, over relevant candidates, of the precision at their place."""
    places = ranks(scores, relevant)
    return float(np.mean(np.arange(1, len(places) + 1) / places))


def hit(scores: np.ndarray, relevant: np.ndarray, k: int) -> float:
    return float(ranks(scores, relevant)[0] <= k)
