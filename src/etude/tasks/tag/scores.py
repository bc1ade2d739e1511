"""The scores of a tagger with their intervals: counts of each sentence, added up as often as a bootstrap draws them.

entity_f1          micro, by conlleval's rules; entity_precision, entity_recall and entity_f1.TYPE beside it
entity_macro_f1    the mean over types, under the strict rules of the files' scheme (KLUE)
accuracy           of tags one by one, O included
tag_macro_f1       the mean over tags, O included (KLUE's score by character)
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import Literal

import numpy as np

from etude.errors import UserError
from etude.tasks.base import Answer, Answers, ErrorExample, Scoring, most_common
from etude.tasks.bootstrap import Score, bootstrap
from etude.tasks.data.examples import Examples
from etude.tasks.outcomes import CORRECT, GOLD, Outcome, count_outcome
from etude.tasks.tag import errors
from etude.tasks.tag.encodings import Scheme, parse_tag, spans
from etude.tasks.tag.entities import Ratio, TagScore, compare
from etude.tasks.tag.sentences import TaggedSentence, check_shape

ScoreName = Literal["entity_f1", "entity_macro_f1", "accuracy", "tag_macro_f1"]
Sentences = Sequence[Sequence[str]]
log = logging.getLogger("etude")


class TagScoring(Scoring[TaggedSentence]):
    def __init__(self, score: ScoreName | None, labels: Sequence[str], scheme: Scheme | None, characters: bool) -> None:
        """`score` None: what suits the tags; `labels` are the tags that were learnt."""
        self.score: str = score or default_score(scheme, characters)
        self.labels, self.scheme, self.characters = frozenset(labels), scheme, characters
        if scheme is None and self.score.startswith("entity"):
            raise UserError(f"task.score={self.score} counts entities, and these tags write no chunks: set accuracy.")

    def outcome(self, examples: Examples[TaggedSentence], answers: Answers) -> Outcome:
        """Of words; of characters that are no spaces."""
        pairs = [_visible_tags(item, answer) for item, answer in zip(examples, answers, strict=True)]
        if self.score == "accuracy":
            correct = [[sum(map(str.__eq__, gold, predicted)), len(gold)] for gold, predicted in pairs]
            return Outcome("mean", np.array(correct, dtype=np.float64))
        if self.score == "tag_macro_f1":
            return count_outcome("macro", [_tag_counts(gold, predicted) for gold, predicted in pairs])
        strict = self.scheme if self.score == "entity_macro_f1" else None
        counts = [compare(gold, predicted, strict) for gold, predicted in pairs]
        return count_outcome("micro" if self.score == "entity_f1" else "macro", counts)

    def check_gold(self, examples: Examples[TaggedSentence]) -> None:
        for item, where in zip(examples, examples.places, strict=True):
            if item.tags is None:
                raise UserError(f"{where}: this sentence has no tags. Name the column that holds them.")
            self.check_units(item, where)
            check_shape(item, where, self.scheme is not None, prefixes_of=self.scheme)

    def check_units(self, item: TaggedSentence, where: str) -> None:
        if item.characters != self.characters:
            units = ("words", "characters") if item.characters else ("characters", "words")
            raise UserError(f"{where}: this tagger has learnt tags of {units[0]}, and here are tags of {units[1]}.")

    def scores(self, examples: Examples[TaggedSentence], answers: Answers, intervals: bool = True) -> dict[str, Score]:
        """Of words; of characters that are no spaces."""
        self.check_gold(examples)
        pairs = [_visible_tags(item, answer) for item, answer in zip(examples, answers, strict=True)]
        gold, predicted = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        self._warn_unknown(gold, examples.source)
        return scores(gold, predicted, self.scheme, intervals)

    def _warn_unknown(self, gold: list[list[str]], source: str) -> None:
        if self.scheme is not None:
            self._warn_unknown_types(gold, source)
            return
        unknown = Counter(tag for tags in gold for tag in tags if tag not in self.labels)
        if unknown:
            log.warning(
                "%s: %d words have tags the model has never seen (%s) and count as wrong.",
                source, unknown.total(), ", ".join(sorted(unknown)[:5]),
            )  # fmt: skip

    def _warn_unknown_types(self, gold: list[list[str]], source: str) -> None:
        """Warn of entities whose type was never learnt: they can only be missed."""
        learnt = {parse_tag(tag).kind for tag in self.labels if tag != "O"}
        counts = Counter(kind for tags in gold for kind, _, _ in spans(tags))
        unknown = {kind: count for kind, count in counts.items() if kind not in learnt}
        if unknown:
            rest = "None of its types were learnt" if len(unknown) == len(counts) else "They count as missed"
            log.warning(
                "%s: %d of %d entities have types the model has never seen (%s; it knows %s). %s.",
                source, sum(unknown.values()), counts.total(), ", ".join(sorted(unknown)[:5]),
                ", ".join(sorted(learnt)[:8]), rest,
            )  # fmt: skip

    def judge(self, examples: Examples[TaggedSentence], answers: Answers) -> list[ErrorExample]:
        return [errors.judge(item, answer, self.scheme) for item, answer in zip(examples, answers, strict=True)]

    def confusion(self, examples: Examples[TaggedSentence], answers: Answers) -> tuple[str, Counter[tuple[str, str]]]:
        counts: Counter[tuple[str, str]] = Counter()
        for item, answer in zip(examples, answers, strict=True):
            counts += errors.confusion(*_visible_tags(item, answer), self.scheme)
        return "characters" if self.characters else "words", counts


def _visible_tags(item: TaggedSentence, answer: Answer) -> tuple[list[str], list[str]]:
    """Gold and predicted tags of the words, or of the characters that are no spaces."""
    visible = [not word.isspace() for word in item.words]
    return list(compress(item.tags or (), visible)), list(compress(answer["tags"], visible))


def default_score(scheme: Scheme | None, characters: bool) -> ScoreName:
    """The official score of such tags."""
    if scheme is None:
        return "accuracy"
    return "entity_macro_f1" if characters else "entity_f1"


def majority(train: Examples[TaggedSentence], test: Examples[TaggedSentence]) -> list[Answer]:
    tag = most_common([tag for item in train for tag in item.tags or ()])
    return [{"tags": [tag] * len(item.words)} for item in test]


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

    by_name: dict[str, Score] = {}
    if scheme is not None:
        kinds, entities = _table([compare(gold_tags, predicted_tags) for gold_tags, predicted_tags in pairs])
        for name in ("f1", "precision", "recall"):
            by_name[f"entity_{name}"] = of(entities, lambda total, name=name: getattr(Ratio.of(total.sum(0)), name))  # type: ignore[misc]
        for number, kind in enumerate(kinds):
            by_name[f"entity_f1.{kind}"] = of(entities[:, number], lambda total: Ratio.of(total).f1)
        _, strict = _table([compare(gold_tags, predicted_tags, scheme) for gold_tags, predicted_tags in pairs])
        by_name["entity_macro_f1"] = of(strict, _macro)
    _, tags = _table([_tag_counts(gold_tags, predicted_tags) for gold_tags, predicted_tags in pairs])
    by_name["accuracy"] = of(tags, lambda total: float(total[:, CORRECT].sum() / max(1, total[:, GOLD].sum())))
    by_name["tag_macro_f1"] = of(tags, _macro)
    return by_name


def _tag_counts(gold: Sequence[str], predicted: Sequence[str]) -> dict[str, np.ndarray]:
    tags = TagScore()
    tags.add(gold, predicted)
    return tags.counts


def _table(counts: Sequence[Mapping[str, np.ndarray]]) -> tuple[list[str], np.ndarray]:
    """The types, sorted, and (sentences, types, 3) their counts."""
    kinds = sorted({kind for sentence in counts for kind in sentence})
    numbers = {kind: number for number, kind in enumerate(kinds)}
    table = np.zeros((len(counts), len(kinds), 3), dtype=np.int32)
    for row, sentence in zip(table, counts, strict=True):
        for kind, value in sentence.items():
            row[numbers[kind]] = value
    return kinds, table


def _macro(total: np.ndarray) -> float:
    """Of the types that occur in what was drawn."""
    occurring = total[total.sum(1) > 0]
    return float(np.mean([Ratio.of(counts).f1 for counts in occurring])) if len(occurring) else 0.0
