"""Similarity of two texts as a number (STS-B, KorSTS, KLUE-STS): regression, scored by Pearson and Spearman.

Both directions: [CLS] a [SEP] b [SEP], one linear output, squared error (BERT's treatment of STS-B). Causal: both
orders, their vectors added before the linear layer, since similarity has no order (GPT-1, section 3.3; its code learns
a distribution over the six whole scores, here a causal model learns the number too). Static and recurrent models read
each text alone. Targets are trained in units of their deviation from the training mean, so
that one rate suits any scale; answers are given on the scale of the file.

KLUE adds the F1 of both sides cut at 3 or more (`threshold`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from etude.chance import Chance
from etude.errors import UserError
from etude.models.base import Model
from etude.objectives.base import Stat, Term
from etude.tasks import pooled_head as pooled
from etude.tasks.base import Answer, Answers, ErrorExample, Facts, Scoring
from etude.tasks.bootstrap import Score, bootstrap
from etude.tasks.data.examples import Examples, Record, column_of, gather, number_of
from etude.tasks.data.records import FILES, records
from etude.tasks.linear_task import PartialRows, Targets
from etude.tasks.metrics import Confusion, Correlation
from etude.tasks.outcomes import Outcome, correlation_outcome
from etude.tasks.pair import FIRST, INPUTS, SECOND, TEXTS, pair_reading, texts_of
from etude.tasks.pooled_head import ExampleBatch, ExampleRow, ExampleRows, PairReading, PooledHead
from etude.tasks.pooled_task import PooledTask
from etude.tasks.published_head import SCORE_CONFIG, EncoderFamily, PublishedHead, Readout
from etude.text.tokenizer.tokenizer import Tokenizer

__all__ = [
    "COLUMNS", "FILES", "INPUTS", "PROMPT", "SCORES", "SUMMARY", "TEXTS", "Settings", "Similarity", "build",
    "learn", "majority", "parse", "read", "records", "scoring", "strata",
]  # fmt: skip

SUMMARY = "how alike two texts are, a number (STS-B, KorSTS, KLUE-STS)"
SCORES = "Pearson, Spearman; F1 at a threshold"
COLUMNS = {"first": FIRST, "second": SECOND, "value": ("score", "similarity", "labels", "label")}
PROMPT = None  # a number is no answer in words


class Settings(pooled.Settings):
    texts: ClassVar[int] = 2
    reading: Literal["joint", "apart", "both"] | None = Field(
        default=None, description="one sequence, each text alone, both orders; what suits the model unless given"
    )
    score: Literal["pearson", "spearman"] = "pearson"
    threshold: float | None = Field(default=None, description="also the F1 of values at or above it: 3 in KLUE")


@dataclass(frozen=True)
class RatedPair:
    texts: tuple[str, str]
    value: float | None = None


def parse(record: Record, columns: Mapping[str, str], where: str, labelled: bool = True) -> RatedPair:
    texts = texts_of(record, columns, where)
    if not labelled:
        return RatedPair(texts)
    column = column_of(record, "value", columns, COLUMNS["value"])
    value = record.get(column)
    if isinstance(value, dict) and "real-label" in value:  # KLUE keeps three forms of it; this is the one scored
        return RatedPair(texts, number_of(value, "real-label", where))
    return RatedPair(texts, number_of(record, column, where))


def read(
    path: str | Path, columns: Mapping[str, str] | None = None, skip_bad: bool = False, labelled: bool = True
) -> Examples[RatedPair]:
    return gather(records(path), lambda record, where: parse(record, columns or {}, where, labelled), path, skip_bad)


def learn(examples: Examples[RatedPair], settings: Settings) -> dict[str, Any]:
    values = np.array([item.value for item in examples if item.value is not None])
    if np.ptp(values) == 0:
        raise UserError(f"{examples.source}: every value is {values[0]:g}, so there is nothing to learn.")
    return {"mean": float(values.mean()), "deviation": float(values.std())}


def strata(example: RatedPair) -> frozenset[str]:
    return frozenset()


def majority(train: Examples[RatedPair], test: Examples[RatedPair]) -> list[Answer]:
    mean = float(np.mean([item.value for item in train]))
    return [{"score": mean} for _ in test]


class CorrelationScoring(Scoring[RatedPair]):
    def __init__(self, settings: Settings, deviation: float) -> None:
        """`deviation` of the training values: what counts as an error."""
        self.score: str = settings.score
        self.threshold, self.deviation = settings.threshold, deviation

    def check_gold(self, examples: Examples[RatedPair]) -> None:
        _gold(examples)

    def outcome(self, examples: Examples[RatedPair], answers: Answers) -> Outcome:
        gold = np.array([item.value for item in examples], dtype=np.float64)
        predicted = np.array([answer["score"] for answer in answers], dtype=np.float64)
        if self.score == "spearman":
            from scipy.stats import rankdata  # takes longer to import than torch; no other task needs it

            gold, predicted = rankdata(gold), rankdata(predicted)
        return correlation_outcome(gold, predicted)

    def scores(self, examples: Examples[RatedPair], answers: Answers, intervals: bool = True) -> dict[str, Score]:
        if len(examples) < 2:
            raise UserError(f"{examples.source}: one example has no correlation. Give two or more.")
        gold, predicted = _gold(examples), np.array([answer["score"] for answer in answers], dtype=np.float64)
        names = ["pearson", "spearman"] + (["f1"] if self.threshold is not None else [])
        return {name: bootstrap(len(gold), partial(self._score, name, gold, predicted), intervals) for name in names}

    def judge(self, examples: Examples[RatedPair], answers: Answers) -> list[ErrorExample]:
        """Wrong by more than a deviation of the training values."""
        return [
            ErrorExample(
                text=" ⏐ ".join(item.texts),
                gold=f"{gold:.2f}",
                predicted=f"{answer['score']:.2f}",
                correct=abs(answer["score"] - gold) <= self.deviation,
                loss=abs(answer["score"] - gold),
            )
            for item, answer, gold in zip(examples, answers, _gold(examples).tolist(), strict=True)
        ]

    def _score(self, name: str, gold: np.ndarray, predicted: np.ndarray, drawn: np.ndarray) -> float:
        if name == "f1":
            above = [values[drawn] >= self.threshold for values in (gold, predicted)]
            counts = Confusion(2)
            counts.add(above[0].astype(int), above[1].astype(int))
            return counts.f1()
        pairs = Correlation()
        pairs.add(gold[drawn], predicted[drawn])
        return pairs.pearson if name == "pearson" else pairs.spearman


def scoring(settings: Settings, facts: Facts) -> CorrelationScoring:
    return CorrelationScoring(settings, facts["deviation"])


def build(settings: Settings, model: Model, tokenizer: Tokenizer, facts: Facts) -> Similarity:
    return Similarity(settings, model, tokenizer, facts["mean"], facts["deviation"])


class Similarity(PooledTask[RatedPair]):
    gives_probabilities = False
    pads_batches = True

    def __init__(self, settings: Settings, model: Model, tokenizer: Tokenizer, mean: float, deviation: float) -> None:
        super().__init__()
        self.settings, self.scoring = settings, CorrelationScoring(settings, deviation)
        self.mean, self.deviation = mean, deviation
        self.pooled = PooledHead(settings, model, tokenizer, 1, self._reading(settings, model, tokenizer))
        self.framing = self.pooled.framing

    @staticmethod
    def _reading(settings: Settings, model: Model, tokenizer: Tokenizer) -> PairReading:
        if settings.reading == "both":
            return "both"
        if settings.reading is None and model.causal:
            return "both"
        return pair_reading(settings.reading, model, tokenizer)

    def facts(self) -> dict[str, Any]:
        return {"mean": self.mean, "deviation": self.deviation}

    def rows(self, corpus: Examples[RatedPair], seed: int = 0) -> ExampleRows:
        rows = self.unlabelled_rows(corpus)
        rows.values = (_gold(corpus) - self.mean) / self.deviation
        return rows

    def unlabelled_rows(self, examples: Examples[RatedPair]) -> ExampleRows:
        return self.pooled.rows([[item.texts] for item in examples], examples.places, examples.source)

    def batch(self, rows: Sequence[ExampleRow], chance: Chance) -> ExampleBatch:
        return self.pooled.batch(rows)

    def loss(self, model: Model, batch: ExampleBatch) -> dict[str, Term]:
        assert batch.values is not None
        scores, states = self.pooled(model, batch)
        total = ((scores[:, 0] - batch.values) ** 2).sum()
        return {"loss": Term(total, batch.counts["loss"])} | self.pooled.auxiliary(model, states, batch)

    @torch.no_grad()
    def metrics(self, model: Model, batch: ExampleBatch) -> dict[str, Stat]:
        assert batch.values is not None
        error = ((self.pooled(model, batch)[0][:, 0] - batch.values) ** 2).sum()
        return {"loss": Stat(error, batch.counts["loss"], weight=1.0)}

    def flops(self, model: Model, batch: ExampleBatch) -> int:
        return self.pooled.flops(model, batch)

    # --- use ----------------------------------------------------------------------------------------

    def values(self, model: Model, examples: Examples[RatedPair]) -> np.ndarray:
        """(examples,) on the scale of the training file, not clipped: correlations need no bounds."""
        rows = self.unlabelled_rows(examples)
        values = np.zeros(len(rows))
        for group, batch in self.batches(model, rows):
            values[group] = self.pooled(model, batch)[0][:, 0].double().cpu().numpy()
        return values * self.deviation + self.mean

    def predict(self, model: Model, examples: Examples[RatedPair]) -> list[Answer]:
        return [{"score": float(value)} for value in self.values(model, examples)]

    # --- the head alone -----------------------------------------------------------------------------

    def targets(self, examples: Examples[RatedPair], rows: PartialRows[ExampleRow]) -> Targets:
        return Targets("squares", list(((_gold(examples) - self.mean) / self.deviation)[:, None]))

    def answers(
        self, examples: Examples[RatedPair], rows: PartialRows[ExampleRow], logits: Sequence[np.ndarray]
    ) -> list[Answer]:
        return [{"score": float(row[0, 0]) * self.deviation + self.mean} for row in logits]

    def published_head(self, model: Model, family: EncoderFamily) -> PublishedHead:
        return self.pooled.published_head(
            model, family, "ForSequenceClassification", self._published_weights(), SCORE_CONFIG
        )

    def readout(self, model: Model) -> Readout:
        return self.pooled.readout(model, self._published_weights(), SCORE_CONFIG)

    def _published_weights(self) -> dict[str, Tensor]:
        """Targets are trained in units of deviation: scale and mean go into the weights."""
        weights = dict(self.state_dict())
        weights["pooled.head.weight"] = weights["pooled.head.weight"] * self.deviation
        weights["pooled.head.bias"] = weights["pooled.head.bias"] * self.deviation + self.mean
        return weights


def _gold(examples: Examples[RatedPair]) -> np.ndarray:
    for item, where in zip(examples, examples.places, strict=True):
        if item.value is None:
            raise UserError(f"{where}: this example has no value. Name the column that holds it.")
    return np.array([item.value for item in examples], dtype=np.float64)
