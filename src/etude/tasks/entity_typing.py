"""Entity typing: the types of a mention in a text, any number of them (FIGER, OpenEntity).

The mention stands between two signs, and the vector of the text is read by a bias-free layer with one output a type:
each is a question of its own, and a type is answered where its logit is above 0 (Zhang et al. 2019, section 4.3, and
their code, whose sign is a character that the text does not use). Every encoder can do it; one that reads entities
takes them from a column of the file, or from its linker.

Scores (Ling & Weld 2012, section 4.2), each of sets of types:

    accuracy   strict: the answer is exactly the gold set
    macro_f1   loose macro: F1 of the mean precision and the mean recall of single mentions
    micro_f1   loose micro: F1 of counts over all mentions
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from etude.chance import Chance
from etude.errors import UserError, suggest_name
from etude.graph.entity_links import NamedMention
from etude.models.base import Model
from etude.objectives.base import Stat, Term
from etude.tasks import pooled_head as pooled
from etude.tasks.base import Answer, Answers, ErrorExample, Facts, Scoring, Task
from etude.tasks.bootstrap import Score, bootstrap
from etude.tasks.data.entity_columns import mentions_of
from etude.tasks.data.examples import (
    Examples,
    Record,
    column_of,
    gather,
    label_names,
    parse_whole,
    short,
    text_of,
    value_of,
    whole_text,
)
from etude.tasks.data.marked_text import Sign, insert_signs, move_mentions
from etude.tasks.data.records import FILES, records
from etude.tasks.outcomes import Outcome, mean_outcome
from etude.tasks.pooled_head import ExampleBatch, ExampleRow, ExampleRows, PooledHead
from etude.text.tokenizer.normalization import normalize_nfc
from etude.text.tokenizer.tokenizer import Tokenizer

__all__ = [
    "COLUMNS", "FILES", "INPUTS", "PROMPT", "SCORES", "SUMMARY", "TEXTS", "EntityTyping", "Settings", "build", "learn",
    "majority", "parse", "read", "records", "scoring", "strata",
]  # fmt: skip

SUMMARY = "the types of a mention in a text, any number of them (FIGER, OpenEntity)"
SCORES = "strict accuracy, loose macro F1, loose micro F1"
COLUMNS = {
    "text": ("text", "sentence", "sent"),
    "start": ("start", "mention_start"),
    "end": ("end", "mention_end"),
    "labels": ("labels", "types", "y_str"),
    "entities": ("entities", "ents"),
}
INPUTS: tuple[str, ...] = ()  # a line holds JSON
TEXTS: tuple[str, ...] = ()  # the mention has a fixed place in the text
PROMPT = None

NO_TYPE = "(none)"  # in a list of errors: an answer without a type
ScoreName = Literal["accuracy", "macro_f1", "micro_f1"]


class Settings(pooled.Settings):
    score: ScoreName = Field(
        default="micro_f1", description="the score that chooses the best checkpoint; the task's official one"
    )
    sign: str = Field(default="@", min_length=1, description="character that marks the mention on both sides")


@dataclass(frozen=True)
class TypedMention:
    text: str
    start: int
    end: int  # one behind its last character
    labels: frozenset[str] | None = None
    entities: tuple[NamedMention, ...] | None = None  # that the text mentions; None: nobody said

    def normalised(self, normalise: Callable[[str], str]) -> TypedMention:
        """The same over the text as a tokenizer reads it, whose characters may be fewer."""
        text = normalise(self.text)
        if text == self.text:
            return self
        start, end = (len(normalise(self.text[:place])) for place in (self.start, self.end))
        entities = self.entities
        if entities is not None:
            entities = tuple(
                NamedMention(len(normalise(self.text[:first])), len(normalise(self.text[:last])), name)
                for first, last, name in entities
            )
        return replace(self, text=text, start=start, end=end, entities=entities)

    def signs(self, sign: str) -> list[Sign]:
        return [Sign(self.start, sign), Sign(self.end, sign)]


# --- reading ------------------------------------------------------------------------------------------


def parse(record: Record, columns: Mapping[str, str], where: str, labelled: bool = True) -> TypedMention:
    if "mention_span" in record and "left_context_token" in record:
        text, start, end = _of_context(record, where)
    else:
        text = text_of(record, column_of(record, "text", columns, COLUMNS["text"]), where)
        names = (column_of(record, role, columns, COLUMNS[role]) for role in ("start", "end"))
        start, end = (_place(record, name, where) for name in names)
    if not 0 <= start < end <= len(text) or not text[start:end].strip():
        raise UserError(f"{where}: the mention reaches from {start} to {end}, which is no part of the text.")
    entities = mentions_of(record, column_of(record, "entities", columns, COLUMNS["entities"]), text, where)
    labels = _labels(record, column_of(record, "labels", columns, COLUMNS["labels"]), where) if labelled else None
    return TypedMention(text, start, end, labels, entities)


def _of_context(record: Record, where: str) -> tuple[str, int, int]:
    """Choi et al. 2018: words before and after the mention, and the mention."""
    left, right, mention = (record.get(name) for name in ("left_context_token", "right_context_token", "mention_span"))
    if not (isinstance(left, list) and isinstance(right, list) and isinstance(mention, str) and mention.strip()):
        raise UserError(f"{where}: left_context_token and right_context_token are lists of words, mention_span a text.")
    before = "".join(f"{word} " for word in left)
    return f"{before}{mention} {' '.join(map(str, right))}".rstrip(), len(before), len(before) + len(mention)


def _place(record: Record, column: str, where: str) -> int:
    value = value_of(record, column, where)
    number = None if isinstance(value, bool) else parse_whole(str(value).strip())
    if number is None:
        raise UserError(f"{where}: the column '{column}' holds {short(value)}, not the number of a character.")
    return number


def _labels(record: Record, column: str, where: str) -> frozenset[str]:
    """A list of types; in a table, a text with spaces or commas between them."""
    value = value_of(record, column, where)
    names = value.replace(",", " ").split() if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) and name.strip() for name in names):
        raise UserError(f"{where}: the column '{column}' holds {short(value)}, not a list of types.")
    return frozenset(whole_text(normalize_nfc(name).strip(), column, where) for name in names)


def read(
    path: str | Path, columns: Mapping[str, str] | None = None, skip_bad: bool = False, labelled: bool = True
) -> Examples[TypedMention]:
    return gather(records(path), lambda record, where: parse(record, columns or {}, where, labelled), path, skip_bad)


def learn(examples: Examples[TypedMention], settings: Settings) -> dict[str, Any]:
    return {"labels": label_names(name for item in examples for name in item.labels or ())}


def strata(example: TypedMention) -> frozenset[str]:
    return example.labels or frozenset()


def majority(train: Examples[TypedMention], test: Examples[TypedMention]) -> list[Answer]:
    """The most frequent set of types; of several the first in the alphabet."""
    counts = Counter(tuple(sorted(item.labels or ())) for item in train)
    labels = min(counts, key=lambda names: (-counts[names], names))
    return [{"labels": list(labels)} for _ in test]


# --- scores -------------------------------------------------------------------------------------------


class TypingScoring(Scoring[TypedMention]):
    def __init__(self, settings: Settings, labels: Sequence[str]) -> None:
        if not labels:
            raise UserError("No example has a type: there is nothing to learn. Name the column with -c labels=NAME.")
        self.score: str = settings.score
        self.sign = settings.sign
        self.labels = list(labels)

    def outcome(self, examples: Examples[TypedMention], answers: Answers) -> Outcome:
        return self._outcomes(examples, answers)[self.score]

    def _outcomes(self, examples: Examples[TypedMention], answers: Answers) -> dict[str, Outcome]:
        pairs = [
            (item.labels or frozenset(), frozenset(answer["labels"]))
            for item, answer in zip(examples, answers, strict=True)
        ]
        counts = np.array([[len(gold & own), len(own), len(gold)] for gold, own in pairs], np.float64).reshape(-1, 3)
        correct, predicted, gold_count = counts.T
        precision, recall = (correct / np.maximum(1, below) for below in (predicted, gold_count))
        return {
            "accuracy": mean_outcome([float(gold == own) for gold, own in pairs]),
            "macro_f1": Outcome("mean_f1", np.stack([precision, recall, np.ones(len(pairs))], axis=1)),
            "micro_f1": Outcome("f1", counts),
        }

    def check_gold(self, examples: Examples[TypedMention]) -> None:
        places = zip(examples, examples.places, strict=True)
        unlabelled = next((place for item, place in places if item.labels is None), None)
        if unlabelled is not None:
            raise UserError(f"{unlabelled}: this example has no types. Name the column that holds them.")

    def scores(self, examples: Examples[TypedMention], answers: Answers, intervals: bool = True) -> dict[str, Score]:
        self.check_gold(examples)
        count = len(examples)
        return {
            name: bootstrap(count, partial(_draw_score, outcome), intervals)
            for name, outcome in self._outcomes(examples, answers).items()
        }

    def judge(self, examples: Examples[TypedMention], answers: Answers) -> list[ErrorExample]:
        self.check_gold(examples)
        return [
            ErrorExample(
                text=insert_signs(item.text, item.signs(self.sign)),
                gold=", ".join(sorted(item.labels or ())) or NO_TYPE,
                predicted=", ".join(answer["labels"]) or NO_TYPE,
                correct=frozenset(answer["labels"]) == item.labels,
                loss=-math.log(max(1e-9, min((_certainty(answer, item, name) for name in self.labels), default=1.0))),
            )
            for item, answer in zip(examples, answers, strict=True)
        ]


def _draw_score(outcome: Outcome, drawn: np.ndarray) -> float:
    return float(outcome.score(np.bincount(drawn, minlength=len(outcome.parts))))


def _certainty(answer: Answer, item: TypedMention, name: str) -> float:
    """The probability that the answer gives to the truth about one type."""
    prob = float(answer["scores"][name])
    return prob if name in (item.labels or ()) else 1.0 - prob


def scoring(settings: Settings, facts: Facts) -> TypingScoring:
    return TypingScoring(settings, facts["labels"])


# --- the task -----------------------------------------------------------------------------------------


@dataclass
class TypingRow(ExampleRow):
    types: np.ndarray | None = None  # (labels,) bool


@dataclass
class TypingRows(ExampleRows):
    types: np.ndarray | None = None  # (examples, labels) bool

    def part(self, numbers: Sequence[int]) -> TypingRows:
        types = None if self.types is None else self.types[list(numbers)]
        return replace(self, framed=[self.framed[number] for number in numbers], types=types)

    def __getitem__(self, index: int) -> TypingRow:
        types = None if self.types is None else self.types[index % len(self)]
        return TypingRow(**vars(super().__getitem__(index)), types=types)


@dataclass
class TypingBatch(ExampleBatch):
    types: Tensor | None = None  # (R, labels) float32


class EntityTyping(Task[TypedMention, ExampleRow, TypingBatch]):
    pads_batches = True
    scoring: TypingScoring

    def __init__(self, settings: Settings, model: Model, tokenizer: Tokenizer, scoring: TypingScoring) -> None:
        super().__init__()
        self.settings, self.scoring, self.labels = settings, scoring, scoring.labels
        self.pooled = PooledHead(settings, model, tokenizer, len(self.labels), bias=False)
        self.framing = self.pooled.framing

    def facts(self) -> dict[str, Any]:
        return {"labels": self.labels}

    # --- training -----------------------------------------------------------------------------------

    def rows(self, corpus: Examples[TypedMention], seed: int = 0) -> TypingRows:
        self.scoring.check_gold(corpus)
        numbers = {name: number for number, name in enumerate(self.labels)}
        types = np.zeros((len(corpus), len(self.labels)), bool)
        for row, item, where in zip(types, corpus, corpus.places, strict=True):
            for name in item.labels or ():
                if name not in numbers:
                    raise UserError(
                        f"{where}: the type '{name}' is not one the model knows.{suggest_name(name, self.labels)} "
                        "Correct it, or leave the example out."
                    )
                row[numbers[name]] = True
        return replace(self.unlabelled_rows(corpus), types=types)

    def unlabelled_rows(self, examples: Examples[TypedMention]) -> TypingRows:
        items = [item.normalised(self.pooled.tokenizer.normalise) for item in examples]
        signs = [item.signs(self.settings.sign) for item in items]
        texts = [insert_signs(item.text, marks) for item, marks in zip(items, signs, strict=True)]
        rows = self.pooled.rows(
            [[[text]] for text in texts],
            examples.places,
            examples.source,
            [self._mentions(item, marks) for item, marks in zip(items, signs, strict=True)],
        )
        return TypingRows(rows.framed)

    def _mentions(self, item: TypedMention, signs: Sequence[Sign]) -> list[NamedMention] | None:
        """The entities of the text with its signs; those of a linker where the example does not name them."""
        if not self.pooled.reads_entities:
            return None
        entities = self.pooled.linked_mentions(item.text) if item.entities is None else item.entities
        return move_mentions(item.text, signs, entities)

    def batch(self, rows: Sequence[ExampleRow], chance: Chance) -> TypingBatch:
        batch = self.pooled.batch(rows)
        types = [row.types for row in rows if isinstance(row, TypingRow) and row.types is not None]
        return TypingBatch(**vars(batch), types=torch.from_numpy(np.stack(types)).float() if types else None)

    def loss(self, model: Model, batch: TypingBatch) -> dict[str, Term]:
        """The mean over types and over mentions."""
        assert batch.types is not None
        logits, states = self.pooled(model, batch)
        total = F.binary_cross_entropy_with_logits(logits, batch.types, reduction="sum") / len(self.labels)
        return {"loss": Term(total, batch.counts["loss"])} | self.pooled.auxiliary(model, states, batch)

    @torch.no_grad()
    def metrics(self, model: Model, batch: TypingBatch) -> dict[str, Stat]:
        assert batch.types is not None
        logits, count = self.pooled(model, batch)[0], batch.counts["loss"]
        total = F.binary_cross_entropy_with_logits(logits, batch.types, reduction="sum") / len(self.labels)
        exact = ((logits > 0) == (batch.types > 0)).all(-1).sum()
        return {"loss": Stat(total, count, weight=1.0), "accuracy": Stat(exact, count)}

    def flops(self, model: Model, batch: TypingBatch) -> int:
        return self.pooled.flops(model, batch)

    # --- use ----------------------------------------------------------------------------------------

    def predict(self, model: Model, examples: Examples[TypedMention]) -> list[Answer]:
        """The types whose logit is above 0, and the probability of every type."""
        rows = self.unlabelled_rows(examples)
        logits = np.zeros((len(rows), len(self.labels)), np.float32)
        for group, batch in self.batches(model, rows):
            logits[group] = self.pooled(model, batch)[0].float().cpu().numpy()
        return [self._answer(row) for row in logits]

    def _answer(self, logits: np.ndarray) -> Answer:
        probs = 1 / (1 + np.exp(-logits.astype(np.float64)))
        return {
            "labels": [name for name, logit in zip(self.labels, logits, strict=True) if logit > 0],
            "scores": {name: float(prob) for name, prob in zip(self.labels, probs, strict=True)},
        }


def build(settings: Settings, model: Model, tokenizer: Tokenizer, facts: Facts) -> EntityTyping:
    return EntityTyping(settings, model, tokenizer, scoring(settings, facts))
