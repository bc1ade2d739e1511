"""Two texts as one sparse vector: what they share, what only one of them has, and how much they overlap.

    common, first, second    n-grams of both texts, of the first alone and of the second alone, by their tf-idf
    overlap                  cosines, shares of common words, lengths and numbers; each in units of its deviation

Nothing but numpy is imported here: an exported baseline holds a copy of this file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from etude.baselines.text_features import SparseVector, TextFeatures, split_words

OVERLAPS = 12  # numbers of `overlaps`


class PairFeatures:
    """Pairs of texts as sparse vectors: three blocks of n-grams, then the overlaps."""

    def __init__(self, text: TextFeatures, mean: np.ndarray, deviation: np.ndarray, ngram_weight: float) -> None:
        """`mean`, `deviation` (OVERLAPS,) of the training pairs; `ngram_weight` of the blocks beside the overlaps."""
        if mean.shape != (OVERLAPS,) or deviation.shape != (OVERLAPS,):
            raise ValueError(f"{len(mean)} overlaps where {OVERLAPS} are expected")
        self.text, self.mean, self.deviation, self.ngram_weight = text, mean, deviation, ngram_weight

    @property
    def columns(self) -> int:
        return 3 * self.text.columns + OVERLAPS

    @classmethod
    def learn(cls, text: TextFeatures, pairs: Sequence[tuple[str, str]], ngram_weight: float) -> PairFeatures:
        """The scale of each overlap."""
        plain = cls(text, np.zeros(OVERLAPS), np.ones(OVERLAPS), ngram_weight)
        table = np.array([plain.overlaps(*pair) for pair in pairs])
        deviation = table.std(0)
        return cls(text, table.mean(0), np.where(deviation > 1e-9, deviation, 1.0), ngram_weight)

    def vector(self, first: str, second: str) -> SparseVector:
        """The columns and values of one pair."""
        scaled = (self.overlaps(first, second) - self.mean) / self.deviation / math.sqrt(OVERLAPS)
        columns = [3 * self.text.columns + np.arange(OVERLAPS)]
        values = [scaled]
        if self.ngram_weight:
            left, right = self.text.vector(first), self.text.vector(second)
            _, places, right_places = np.intersect1d(left[0], right[0], assume_unique=True, return_indices=True)
            shared = np.sqrt(np.abs(left[1][places] * right[1][right_places]))
            width = self.text.columns
            columns += [
                left[0][places],
                width + np.delete(left[0], places),
                2 * width + np.delete(right[0], right_places),
            ]
            values += [
                part * self.ngram_weight
                for part in (shared, np.delete(left[1], places), np.delete(right[1], right_places))
            ]
        return np.concatenate(columns), np.concatenate(values)

    def overlaps(self, first: str, second: str) -> np.ndarray:
        """(OVERLAPS,) how much two texts have in common."""
        left, right = self.text.vector(first), self.text.vector(second)
        words = split_words(first), split_words(second)
        a, b = set(words[0]), set(words[1])
        common = a & b
        numbers = [{word for word in side if word.isdigit()} for side in (a, b)]
        size = [len(side) for side in words]
        weights = {word: self._idf(word) for word in a | b}
        shared = sum(weights[word] for word in common)
        totals = [sum(weights[word] for word in side) for side in (a, b)]
        return np.array([
            _cosine(left, right, 0, self.text.columns),
            _cosine(left, right, 0, len(self.text.words)),
            _cosine(left, right, len(self.text.words), self.text.columns),
            len(common) / max(1, len(a | b)),
            len(common) / max(1, len(a)),
            len(common) / max(1, len(b)),
            shared / max(totals[0], 1e-9),
            shared / max(totals[1], 1e-9),
            math.log((1 + size[0]) / (1 + size[1])),
            abs(math.log((1 + size[0]) / (1 + size[1]))),
            float(numbers[0] == numbers[1]),
            math.log(1 + size[1]),
        ])  # fmt: skip

    def _idf(self, word: str) -> float:
        """Of a word; one that no training text has is the rarest."""
        column = self.text.word_column(word)
        return self.text.largest_idf if column is None else float(self.text.idf[column])

    def describe(self) -> dict[str, Any]:
        return {"text": self.text.describe(), "ngram_weight": self.ngram_weight}

    def arrays(self) -> dict[str, np.ndarray]:
        return {"mean": self.mean, "deviation": self.deviation, **self.text.arrays()}

    @classmethod
    def restore(cls, description: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> PairFeatures:
        text = TextFeatures.restore(description["text"], arrays)
        return cls(text, arrays["mean"], arrays["deviation"], float(description["ngram_weight"]))


def _cosine(left: SparseVector, right: SparseVector, start: int, stop: int) -> float:
    """Of the columns from start to stop."""
    parts = []
    for columns, values in (left, right):
        inside = (columns >= start) & (columns < stop)
        parts.append((columns[inside], values[inside]))
    (columns, values), (others, weights) = parts
    _, places, other_places = np.intersect1d(columns, others, assume_unique=True, return_indices=True)
    lengths = math.sqrt(float(values @ values) * float(weights @ weights))
    return float(values[places] @ weights[other_places]) / max(lengths, 1e-12)
