"""The scores of a tagger with their intervals: counts of each sentence, added up as often as a bootstrap draws them.

entity_f1          micro, by conlleval's rules; entity_precision, entity_recall and entity_f1.TYPE beside it
entity_macro_f1    the mean over types, under the strict rules of the files' scheme (KLUE)
accuracy           of tags one by one, O included
tag_macro_f1       the mean over tags, O included (KLUE's score by character)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np

from etude.errors import UserError
from etude.tasks.base import Score, bootstrap
from etude.tasks.tag.encodings import Scheme
from etude.tasks.tag.entities import GOLD, RIGHT, Ratio, TagScore, compare

Named = Literal["entity_f1", "entity_macro_f1", "accuracy", "tag_macro_f1"]
Sentences = Sequence[Sequence[str]]


def usual(scheme: Scheme | None, characters: bool) -> Named:
    """The official score of such tags."""
    if scheme is None:
        return "accuracy"
    return "entity_macro_f1" if characters else "entity_f1"


def check(score: Named, scheme: Scheme | None) -> None:
    if scheme is None and score.startswith("entity"):
        raise UserError(f"task.score={score} counts entities, and these tags write no chunks: set accuracy.")


def scores(gold: Sentences, predicted: Sentences, scheme: Scheme | None, intervals: bool = True) -> dict[str, Score]:
    count = len(gold)
    pairs = list(zip(gold, predicted, strict=True))

    def of(counts: np.ndarray, ratio: Callable[[np.ndarray], float]) -> Score:
        """`counts` (sentences, types, 3); `ratio` takes their sum (types, 3)."""
        flat = counts.reshape(count, -1).astype(np.float64)  # exact below 2^53, and a product is one fast call
        return bootstrap(
            count,
            lambda drawn: ratio((np.bincount(drawn, minlength=count) @ flat).reshape(counts.shape[1:])),
            intervals,
        )

    found: dict[str, Score] = {}
    if scheme is not None:
        kinds, entities = _table([compare(one, other) for one, other in pairs])
        for name in ("f1", "precision", "recall"):
            found[f"entity_{name}"] = of(entities, lambda total, name=name: getattr(Ratio.of(total.sum(0)), name))  # type: ignore[misc]
        for number, kind in enumerate(kinds):
            found[f"entity_f1.{kind}"] = of(entities[:, number], lambda total: Ratio.of(total).f1)
        _, strict = _table([compare(one, other, scheme) for one, other in pairs])
        found["entity_macro_f1"] = of(strict, _macro)
    _, tags = _table([_tag_counts(one, other) for one, other in pairs])
    found["accuracy"] = of(tags, lambda total: float(total[:, RIGHT].sum() / max(1, total[:, GOLD].sum())))
    found["tag_macro_f1"] = of(tags, _macro)
    return found


def _tag_counts(gold: Sequence[str], predicted: Sequence[str]) -> dict[str, np.ndarray]:
    one = TagScore()
    one.add(gold, predicted)
    return one.counts


def _table(counts: Sequence[Mapping[str, np.ndarray]]) -> tuple[list[str], np.ndarray]:
    """The types, sorted, and (sentences, types, 3) their counts."""
    kinds = sorted({kind for one in counts for kind in one})
    numbers = {kind: number for number, kind in enumerate(kinds)}
    table = np.zeros((len(counts), len(kinds), 3), dtype=np.int32)
    for row, one in zip(table, counts, strict=True):
        for kind, value in one.items():
            row[numbers[kind]] = value
    return kinds, table


def _macro(total: np.ndarray) -> float:
    """Of the types that occur in what was drawn."""
    there = total[total.sum(1) > 0]
    return float(np.mean([Ratio.of(one).f1 for one in there])) if len(there) else 0.0
