"""Classification of texts, over any model: one vector (models/framing.py), a linear layer or an MLP, a softmax.

The official score is accuracy unless `score` names another: GLUE's CoLA takes Matthews correlation, MRPC and QQP
the F1 of the positive class, KLUE's topics macro F1. `nothing` names a label that is none ("no_relation"): micro F1 is
over the others, and `auprc` is the mean area under the precision-recall curves of the labels, as KLUE has them for
relations (tasks/relation.py). Sentence pairs (tasks/pair.py) are the same with two texts.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field

from etude.chance import Chance
from etude.errors import UserError, suggest_name
from etude.graph.entity_links import NamedMention
from etude.models.base import Model
from etude.objectives.base import Stat, Term
from etude.tasks import pooled_head as pooled
from etude.tasks.base import Answer, Answers, ErrorExample, Facts, Scoring, most_common
from etude.tasks.bootstrap import Score, bootstrap, bootstrap_counts
from etude.tasks.data.examples import Examples, Record, column_of, gather, label_names, label_numbers, label_of, text_of
from etude.tasks.data.records import FILES, records
from etude.tasks.linear_task import PartialRows, Targets
from etude.tasks.metrics import Confusion, area_under_curves
from etude.tasks.outcomes import CORRECT, GOLD, PREDICTED, Outcome, mean_outcome
from etude.tasks.pooled_head import ExampleBatch, ExampleRow, ExampleRows, PairReading, PooledHead
from etude.tasks.pooled_task import PooledTask
from etude.tasks.prompt_form import LabelPrompt
from etude.tasks.published_head import EncoderFamily, PublishedHead, Readout, label_config
from etude.text.tokenizer.tokenizer import Tokenizer

__all__ = [
    "COLUMNS", "FILES", "INPUTS", "PROMPT", "SCORES", "SUMMARY", "TEXTS", "Classify", "Settings", "build", "learn",
    "majority", "parse", "read", "records", "scoring", "strata",
]  # fmt: skip

SUMMARY = "one label for a text (SST-2, CoLA, NSMC, YNAT, any CSV)"
SCORES = "accuracy, macro F1, Matthews; F1 of one label; micro F1 without one; area under curves"
COLUMNS = {
    "text": ("text", "sentence", "document", "title", "review", "comments"),
    "label": ("label", "label_id", "labels", "gold_label"),
}

INPUTS = TEXTS = ("text",)

ScoreName = Literal["accuracy", "f1", "macro_f1", "mcc", "micro_f1", "auprc"]
CURVE_ROUNDS = 100  # of the bootstrap of a curve, which takes long: the ends of an interval to a third of its width


class Settings(pooled.Settings):
    score: ScoreName = Field(
        default="accuracy", description="the score that chooses the best checkpoint; the task's official one"
    )
    positive: str | None = Field(default=None, description="the label of f1; the second one if None, as in GLUE")
    nothing: str | None = Field(default=None, description="a label that is none: micro_f1 is over the others")


class HasLabel(Protocol):
    @property
    def label(self) -> str | None: ...


L = TypeVar("L", bound=HasLabel)


@dataclass(frozen=True)
class LabelledText:
    texts: tuple[str, ...]  # one, or the two of a pair
    label: str | None = None


def parse(record: Record, columns: Mapping[str, str], where: str, labelled: bool = True) -> LabelledText:
    text = text_of(record, column_of(record, "text", columns, COLUMNS["text"]), where)
    label = column_of(record, "label", columns, COLUMNS["label"])
    return LabelledText((text,), label_of(record, label, where) if labelled else None)


def read(
    path: str | Path, columns: Mapping[str, str] | None = None, skip_bad: bool = False, labelled: bool = True
) -> Examples[LabelledText]:
    return gather(records(path), lambda record, where: parse(record, columns or {}, where, labelled), path, skip_bad)


def learn(examples: Examples[L], settings: Settings) -> dict[str, Any]:
    return {"labels": label_names(item.label for item in examples if item.label is not None)}


def strata(example: HasLabel) -> frozenset[str]:
    return frozenset() if example.label is None else frozenset([example.label])


def majority(train: Examples[L], test: Examples[L]) -> list[Answer]:
    label = most_common([str(item.label) for item in train])
    return [{"label": label} for _ in test]


class TextPrompt(LabelPrompt[LabelledText]):
    def values(self, example: LabelledText) -> dict[str, str]:
        return dict(zip(self.fields, example.texts, strict=True))

    def label(self, example: LabelledText) -> str:
        return str(example.label)


PROMPT = TextPrompt(("text",))


# --- scores -------------------------------------------------------------------------------------------


class LabelScoring(Scoring[L]):
    def __init__(self, settings: Settings, labels: Sequence[str]) -> None:
        if len(labels) < 2:
            raise UserError(f"A classifier tells labels apart, and there is only {list(labels)}. Give two or more.")
        self.score: str = settings.score
        self.labels = list(labels)
        if settings.positive is not None and settings.positive not in self.labels:
            raise UserError(
                f"task.positive={settings.positive} is no label.{suggest_name(settings.positive, self.labels)}"
            )
        self.positive = 1 if settings.positive is None else self.labels.index(settings.positive)
        if settings.score == "micro_f1" and settings.nothing is None:
            raise UserError("task.score=micro_f1 leaves a label out: say which with task.nothing; else it is accuracy.")
        default = type(settings).model_fields["nothing"].default  # of relations: a file need not have that label
        if settings.nothing is not None and settings.nothing not in (default, *self.labels):
            raise UserError(
                f"task.nothing={settings.nothing} is no label.{suggest_name(settings.nothing, self.labels)}"
            )
        self.nothing = settings.nothing
        # micro F1 is over all labels but the one that stands for none
        self.counted = [number for number, label in enumerate(self.labels) if label != settings.nothing]

    def outcome(self, examples: Examples[L], answers: Answers) -> Outcome:
        pairs = [(str(item.label), answer["label"]) for item, answer in zip(examples, answers, strict=True)]
        numbers = {name: number for number, name in enumerate(self.labels)}
        unknown = next((gold for gold, _ in pairs if gold not in numbers), None)
        if unknown is not None:
            raise UserError(f"{examples.source}: the label '{unknown}' is not among those that were learnt from.")
        if self.score == "accuracy":
            return mean_outcome([float(gold == predicted) for gold, predicted in pairs])
        if self.score == "auprc":
            raise UserError(
                "task.score=auprc is no function of sums, so nothing can be compared by it: choose micro_f1 or another."
            )
        if self.score == "mcc":
            table = np.zeros((len(pairs), len(numbers) ** 2))
            for row, (gold, predicted) in zip(table, pairs, strict=True):
                row[numbers[gold] * len(numbers) + numbers[predicted]] = 1
            return Outcome("matthews", table)
        counts = np.zeros((len(pairs), len(numbers), 3))
        for row, (gold, predicted) in zip(counts, pairs, strict=True):
            row[numbers[gold], GOLD] += 1
            row[numbers[predicted], PREDICTED] += 1
            row[numbers[gold], CORRECT] += gold == predicted
        if self.score == "f1":
            return Outcome("f1", counts[:, self.positive])
        if self.score == "micro_f1":
            return Outcome("micro", counts[:, self.counted].reshape(len(pairs), -1))
        return Outcome("macro", counts.reshape(len(pairs), -1))

    @abstractmethod
    def texts(self, item: L) -> tuple[str, ...]:
        """What is read of an example."""

    def check_gold(self, examples: Examples[L]) -> None:
        self._gold(examples)

    def _gold(self, examples: Examples[L]) -> np.ndarray:
        """(examples,) the numbers of the labels."""
        return label_numbers((item.label for item in examples), self.labels, examples.places)

    def scores(self, examples: Examples[L], answers: Answers, intervals: bool = True) -> dict[str, Score]:
        gold = self._gold(examples)
        numbers = {label: number for number, label in enumerate(self.labels)}
        counts = Confusion(len(self.labels))
        counts.add(gold, np.array([numbers[answer["label"]] for answer in answers], dtype=np.int64))
        names = ["accuracy", "macro_f1", "mcc"] + (["f1"] if len(self.labels) == 2 or self.score == "f1" else [])
        names += ["micro_f1"] if self.nothing is not None else []
        scores = label_scores(counts, names, self.positive, self.counted, intervals)
        if self.nothing is not None or self.score == "auprc":
            probs = np.array([[answer["scores"][label] for label in self.labels] for answer in answers])
            area = partial(_area, gold, probs)
            scores["auprc"] = bootstrap(len(gold), area, intervals, rounds=CURVE_ROUNDS)
        return scores

    def judge(self, examples: Examples[L], answers: Answers) -> list[ErrorExample]:
        self.check_gold(examples)
        return [
            ErrorExample(
                text=" ⏐ ".join(self.texts(item)),
                gold=str(item.label),
                predicted=answer["label"],
                correct=answer["label"] == item.label,
                loss=-math.log(max(1e-9, answer["scores"][str(item.label)])),
            )
            for item, answer in zip(examples, answers, strict=True)
        ]

    def confusion(self, examples: Examples[L], answers: Answers) -> tuple[str, Counter[tuple[str, str]]]:
        pairs = zip(examples, answers, strict=True)
        return "examples", Counter((str(item.label), answer["label"]) for item, answer in pairs)


class TextScoring(LabelScoring[LabelledText]):
    def texts(self, item: LabelledText) -> tuple[str, ...]:
        return item.texts


def scoring(settings: Settings, facts: Facts) -> TextScoring:
    return TextScoring(settings, facts["labels"])


# --- the task -----------------------------------------------------------------------------------------


def build(settings: Settings, model: Model, tokenizer: Tokenizer, facts: Facts) -> Classify:
    return Classify(settings, model, tokenizer, facts["labels"])


class LabelTask(PooledTask[L]):
    """One label for an example, whatever of it is read: `LabelScoring.texts`."""

    pads_batches = True
    scoring: LabelScoring[L]

    def __init__(
        self,
        settings: Settings,
        model: Model,
        tokenizer: Tokenizer,
        scoring: LabelScoring[L],
        reading: PairReading = "joint",
    ) -> None:
        super().__init__()
        self.settings, self.scoring = settings, scoring
        self.labels = self.scoring.labels
        self.pooled = PooledHead(settings, model, tokenizer, len(self.labels), reading)
        self.framing = self.pooled.framing

    def facts(self) -> dict[str, Any]:
        return {"labels": self.labels}

    # --- training -----------------------------------------------------------------------------------

    def rows(self, corpus: Examples[L], seed: int = 0) -> ExampleRows:
        rows = self.unlabelled_rows(corpus)
        rows.labels = label_numbers((item.label for item in corpus), self.labels, corpus.places)
        return rows

    def unlabelled_rows(self, examples: Examples[L]) -> ExampleRows:
        texts = [[self.scoring.texts(item)] for item in examples]
        mentions = [found for item in examples for found in self.mentions(item)] if self.pooled.reads_entities else None
        return self.pooled.rows(texts, examples.places, examples.source, mentions)

    def mentions(self, item: L) -> list[Sequence[NamedMention] | None]:
        """The entities of each text as it is read, for a model that reads them; None: those that its linker finds."""
        return [None for _ in self.scoring.texts(item)]

    def batch(self, rows: Sequence[ExampleRow], chance: Chance) -> ExampleBatch:
        return self.pooled.batch(rows)

    def loss(self, model: Model, batch: ExampleBatch) -> dict[str, Term]:
        assert batch.labels is not None
        scores, states = self.pooled(model, batch)
        total = F.cross_entropy(scores, batch.labels, reduction="sum")
        return {"loss": Term(total, batch.counts["loss"])} | self.pooled.auxiliary(model, states, batch)

    @torch.no_grad()
    def metrics(self, model: Model, batch: ExampleBatch) -> dict[str, Stat]:
        assert batch.labels is not None
        scores, count = self.pooled(model, batch)[0], batch.counts["loss"]
        right = (scores.argmax(-1) == batch.labels).sum()
        return {
            "loss": Stat(F.cross_entropy(scores, batch.labels, reduction="sum"), count, weight=1.0),
            "accuracy": Stat(right, count),
        }

    def flops(self, model: Model, batch: ExampleBatch) -> int:
        return self.pooled.flops(model, batch)

    # --- use ----------------------------------------------------------------------------------------

    def probabilities(self, model: Model, examples: Examples[L]) -> np.ndarray:
        """(examples, labels), in their order."""
        rows = self.unlabelled_rows(examples)
        probs = np.zeros((len(rows), len(self.labels)), dtype=np.float32)
        for group, batch in self.batches(model, rows):
            probs[group] = self.pooled(model, batch)[0].softmax(-1).float().cpu().numpy()
        return probs

    def predict(self, model: Model, examples: Examples[L]) -> list[Answer]:
        """The likeliest label, and the probability of every label."""
        return [self._answer(row) for row in self.probabilities(model, examples)]

    def _answer(self, probs: np.ndarray) -> Answer:
        """(labels,) the probabilities of one example."""
        return {
            "label": self.labels[int(probs.argmax())],
            "scores": {name: float(value) for name, value in zip(self.labels, probs, strict=True)},
        }

    # --- the head alone -----------------------------------------------------------------------------

    def targets(self, examples: Examples[L], rows: PartialRows[ExampleRow]) -> Targets:
        numbers = label_numbers((item.label for item in examples), self.labels, examples.places)
        return Targets("softmax", list(numbers[:, None]))

    def answers(
        self, examples: Examples[L], rows: PartialRows[ExampleRow], logits: Sequence[np.ndarray]
    ) -> list[Answer]:
        return [self._answer(torch.from_numpy(row[0]).softmax(-1).numpy()) for row in logits]

    def published_head(self, model: Model, family: EncoderFamily) -> PublishedHead:
        return self.pooled.published_head(
            model, family, "ForSequenceClassification", self.state_dict(), self._published_config()
        )

    def readout(self, model: Model) -> Readout:
        return self.pooled.readout(model, self.state_dict(), self._published_config())

    def _published_config(self) -> dict[str, object]:
        return label_config(self.labels) | {"problem_type": "single_label_classification"}


class Classify(LabelTask[LabelledText]):
    """One label for a text, or for a pair."""

    def __init__(
        self,
        settings: Settings,
        model: Model,
        tokenizer: Tokenizer,
        labels: Sequence[str],
        reading: PairReading = "joint",
    ) -> None:
        super().__init__(settings, model, tokenizer, TextScoring(settings, labels), reading)


def label_scores(
    counts: Confusion, names: Sequence[str], positive: int = 1, counted: Sequence[int] = (), intervals: bool = True
) -> dict[str, Score]:
    """Scores of a classification by name; `positive` is the label of f1, micro_f1 is over the labels `counted`."""

    def score(name: str, table: np.ndarray) -> float:
        drawn = Confusion(len(table), table)
        if name == "micro_f1":
            return drawn.micro_f1(counted)
        return drawn.f1(positive) if name == "f1" else getattr(drawn, name)

    return {name: bootstrap_counts(counts.counts, partial(score, name), intervals) for name in names}


def _area(gold: np.ndarray, probs: np.ndarray, drawn: np.ndarray) -> float:
    return area_under_curves(gold[drawn], probs[drawn])
