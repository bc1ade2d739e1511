"""Scores of taggers: entities by conlleval's rules or strictly, and tags one by one.

An entity is correct if its type and both its ends are (Tjong Kim Sang & De Meulder 2003). Precision is
correct/predicted, recall correct/gold; the micro F1 adds the counts of all types up first, the macro F1 is the mean of
the F1 of each type that occurs in gold or prediction (KLUE: macro, strict IOB2). Sentences are counted and forgotten,
so memory grows with the number of types and tags alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from etude.tasks.outcomes import CORRECT, GOLD, PREDICTED
from etude.tasks.tag.encodings import Scheme, spans

Counts = np.ndarray  # (3,) or (..., 3) int64: CORRECT, PREDICTED, GOLD


@dataclass(frozen=True)
class Ratio:
    """Precision, recall and their harmonic mean; 0 where nothing was predicted, or nothing is gold."""

    precision: float
    recall: float
    f1: float
    gold: int

    @classmethod
    def of(cls, counts: Counts) -> Ratio:
        correct, predicted, gold = (int(value) for value in counts)
        precision = correct / predicted if predicted else 0.0
        recall = correct / gold if gold else 0.0
        total = precision + recall
        return cls(precision, recall, 2 * precision * recall / total if total else 0.0, gold)


def compare(gold: Sequence[str], predicted: Sequence[str], strict: Scheme | None = None) -> dict[str, Counts]:
    """Of one sentence: for each type, how many entities are correct, predicted and gold."""
    if len(gold) != len(predicted):
        raise ValueError(f"{len(predicted)} predicted tags for a sentence of {len(gold)} words")
    gold_chunks, predicted_chunks = set(spans(gold, strict)), set(spans(predicted, strict))
    counts: dict[str, Counts] = defaultdict(lambda: np.zeros(3, dtype=np.int64))
    for place, chunks in (
        (CORRECT, gold_chunks & predicted_chunks),
        (PREDICTED, predicted_chunks),
        (GOLD, gold_chunks),
    ):
        for chunk in chunks:
            counts[chunk.kind][place] += 1
    return dict(counts)


class EntityScore:
    """Entities of any number of sentences, added one by one."""

    def __init__(self, strict: Scheme | None = None) -> None:
        self.strict: Scheme | None = strict
        self.counts: dict[str, Counts] = {}  # of each type

    def add(self, gold: Sequence[str], predicted: Sequence[str]) -> None:
        self.add_counts(compare(gold, predicted, self.strict))

    def add_counts(self, counts: Mapping[str, Counts]) -> None:
        for kind, value in counts.items():
            self.counts[kind] = self.counts.get(kind, np.zeros(3, dtype=np.int64)) + value

    @property
    def micro(self) -> Ratio:
        return Ratio.of(sum(self.counts.values(), start=np.zeros(3, dtype=np.int64)))

    @property
    def by_type(self) -> dict[str, Ratio]:
        return {kind: Ratio.of(self.counts[kind]) for kind in sorted(self.counts)}

    @property
    def macro(self) -> Ratio:
        """Means over types; its F1 is the mean of F1s, not that of the mean precision and recall."""
        ratios = list(self.by_type.values())
        if not ratios:
            return Ratio(0.0, 0.0, 0.0, 0)
        precision, recall, f1 = np.mean(
            [(ratio.precision, ratio.recall, ratio.f1) for ratio in ratios], axis=0
        ).tolist()
        return Ratio(precision, recall, f1, sum(ratio.gold for ratio in ratios))


class TagScore:
    """Tags one by one, O included: the accuracy of POS taggers, and a macro F1 over tags (KLUE's by character)."""

    def __init__(self) -> None:
        self.counts: dict[str, Counts] = {}  # of each tag

    def add(self, gold: Sequence[str], predicted: Sequence[str]) -> None:
        for gold_tag, predicted_tag in zip(gold, predicted, strict=True):
            self._of(gold_tag)[GOLD] += 1
            self._of(predicted_tag)[PREDICTED] += 1
            self._of(gold_tag)[CORRECT] += gold_tag == predicted_tag

    def _of(self, tag: str) -> Counts:
        if tag not in self.counts:
            self.counts[tag] = np.zeros(3, dtype=np.int64)
        return self.counts[tag]

    @property
    def accuracy(self) -> float:
        correct, _, gold = sum(self.counts.values(), start=np.zeros(3, dtype=np.int64))
        if not gold:
            raise ValueError("no tag was added, so there is no score")
        return float(correct / gold)

    @property
    def macro_f1(self) -> float:
        """Mean over the tags that occur, in gold or prediction."""
        return float(np.mean([Ratio.of(self.counts[tag]).f1 for tag in sorted(self.counts)]))
