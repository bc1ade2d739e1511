"""The Task contract: a supervised objective over labelled examples, with predictions and an official score.

A kind of task is one module, or one package that exports the same names; `TaskKind` lists them. What studies, prompts,
exports and reports need of a task is asked of three objects:

    TaskKind   the module: reads files, learns facts from the training examples, and answers what needs no model
    Scoring    settings and facts: turns examples and answers into scores, and finds errors; has no weights
    Task       the objective over a model: training, `predict`, `evaluate`, the published head

Training goes through the same loop as pre-training: `rows` of a task are examples, each as long as it is.
`predict` takes examples in any order and of any number and answers in the same order; how they are grouped changes
nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, runtime_checkable

import numpy as np
import torch
from typing_extensions import TypeVar

from etude.chance import Chance
from etude.models.base import Model
from etude.models.framing import Framing
from etude.objectives.base import Batch, Row, Rows, UsableObjective
from etude.settings import Strict
from etude.tasks.bootstrap import Score, bootstrap
from etude.tasks.data.examples import Examples, Record
from etude.tasks.data.records import Records
from etude.tasks.outcomes import Outcome
from etude.tasks.prompt_form import PromptForm
from etude.tasks.published_head import EncoderFamily, PublishedHead, Readout
from etude.text.tokenizer.tokenizer import Tokenizer

TOKENS = 16_384  # of one forward pass in prediction; bounds memory, never changes a result

E = TypeVar("E", default=Any)
RowT = TypeVar("RowT", bound=Row, default=Any)
BatchT = TypeVar("BatchT", bound=Batch, default=Any)
Answer = dict[str, Any]  # JSON-ready: the prediction for one example
Answers = Sequence[Answer]
Facts = Mapping[str, Any]  # JSON-ready: what follows from the training examples (labels, thresholds)


class TaskKind(Protocol):
    """What the module of a kind defines; all of it works without a model, and none of it may be missing."""

    SUMMARY: str  # one line for `etude tasks`: what it does
    SCORES: str  # and how it is scored
    FILES: tuple[str, ...]  # endings of the files it reads
    COLUMNS: dict[str, tuple[str, ...]]  # role -> the names its column has in published files; the first found counts
    INPUTS: tuple[str, ...]  # roles that a plain line of a pipe holds, tabs between them; () where it takes JSON only
    TEXTS: tuple[str, ...]  # roles of plain texts, whose words augmentation may replace; () where there are none
    PROMPT: PromptForm[Any] | None  # how an example is put in a prompt; None where it cannot be
    Settings: type[Strict]

    def records(self, path: str | Path, /) -> Records:
        """The records of a file, unparsed, each with its place."""

    def parse(self, record: Record, columns: Mapping[str, str], where: str, labelled: bool = True) -> Any:
        """One example from the fields of one record; UserError where it is bad."""

    def read(
        self, path: str | Path, columns: Mapping[str, str] | None = None, skip_bad: bool = False, labelled: bool = True
    ) -> Examples[Any]:
        """All examples of a file."""

    def learn(self, examples: Examples[Any], settings: Any) -> dict[str, Any]:
        """Facts that follow from the training examples: labels, the mean of a regression target."""

    def build(self, settings: Any, model: Model, tokenizer: Tokenizer, facts: Facts) -> Task:
        """The task over a model; `facts` from `learn`, or as saved by `Task.facts`."""

    def scoring(self, settings: Any, facts: Facts) -> Scoring[Any]:
        """How answers are scored, without a model."""

    def strata(self, example: Any) -> frozenset[str]:
        """The classes of an example, which a small sample of labels draws evenly; none where answers are no classes."""

    def majority(self, train: Examples[Any], test: Examples[Any]) -> list[Answer]:
        """The answers of a baseline that knows only how often each answer occurs in the training examples."""


@runtime_checkable
class RefusesUnused(Protocol):
    """Settings of a task that know which of them have no effect beside the others."""

    def refuse_unused(self) -> None:
        """Raise UserError for a setting without effect; where a transfer starts, not where an older run is opened."""


@dataclass(frozen=True)
class ErrorExample:
    """One answer beside the gold answer, for an error report."""

    text: str
    gold: str
    predicted: str
    correct: bool
    loss: float  # how wrong it is, for the order of errors


class Scoring(ABC, Generic[E]):
    """The official score of a task: what a built task and a baseline without a model share."""

    score: str  # the official metric, a key of what `Task.evaluate` returns; higher is better

    @abstractmethod
    def outcome(self, examples: Examples[E], answers: Answers) -> Outcome:
        """Numbers of each example whose sums over any examples give the official score."""

    def check_gold(self, examples: Examples[E]) -> None:
        """Raise UserError, naming the place, where an example has no gold answer, or one that cannot be scored."""

    def scores(self, examples: Examples[E], answers: Answers, intervals: bool = True) -> dict[str, Score]:
        """All scores of answers to labelled examples, the official one among them; here that one alone."""
        outcome = self.outcome(examples, answers)
        count = len(outcome.parts)
        return {
            self.score: bootstrap(
                count, lambda drawn: float(outcome.score(np.bincount(drawn, minlength=count))), intervals
            )
        }

    def judge(self, examples: Examples[E], answers: Answers) -> list[ErrorExample]:
        """Answers beside labelled examples, for a report; [] where a task has nothing to show."""
        return []

    def confusion(self, examples: Examples[E], answers: Answers) -> tuple[str, Counter[tuple[str, str]]] | None:
        """What is counted, and how often each (gold, predicted) pair of classes occurs; None where there are none."""
        return None

    def lengths(self, examples: Examples[E]) -> np.ndarray | None:
        """(examples,) words that the score is drawn over in a study's report; None where it is not."""
        return None


class Task(UsableObjective[Model, RowT, BatchT], Generic[E, RowT, BatchT]):
    scoring: Scoring[E]
    framing: Framing  # how texts become sequences

    @property
    def score(self) -> str:
        """The official metric."""
        return self.scoring.score

    @abstractmethod
    def rows(self, corpus: Examples[E], seed: int = 0) -> Rows[RowT]:
        """Rows of labelled examples, each as long as it is."""

    @abstractmethod
    def predict(self, model: Model, examples: Examples[E]) -> list[Answer]:
        """One answer an example, in their order; examples need no labels."""

    def evaluate(self, model: Model, examples: Examples[E], intervals: bool = True) -> dict[str, Score]:
        """All scores of labelled examples; the official one is `self.score`."""
        self.scoring.check_gold(examples)
        return self.scoring.scores(examples, self.predict(model, examples), intervals)

    def outcome(self, examples: Examples[E], answers: Answers) -> Outcome:
        """Answers of `predict` as numbers whose sums give the official score."""
        return self.scoring.outcome(examples, answers)

    def judge(self, examples: Examples[E], answers: Answers) -> list[ErrorExample]:
        """Answers of `predict` beside labelled examples, for a report; [] where a task has nothing to show."""
        return self.scoring.judge(examples, answers)

    def confusion(self, examples: Examples[E], answers: Answers) -> tuple[str, Counter[tuple[str, str]]] | None:
        """What is counted, and how often each (gold, predicted) pair of classes occurs; None where there are none."""
        return self.scoring.confusion(examples, answers)

    def as_learner(self, model: Model) -> tuple[Model, UsableObjective]:
        """Model and objective as other uses than predictions see them (states, vectors, translation)."""
        return model.base, self

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """JSON-ready: what `build` needs beside the settings (labels, thresholds found on dev)."""

    def frame(self, ids: np.ndarray, context: int | None) -> np.ndarray:
        """One text as this task reads it: for vectors and states of a transferred model."""
        return self.framing.join([ids]).tokens

    def tune_on_dev(self, model: Model, dev: Examples[E]) -> None:
        """Called once after training, with the best weights: finds what is tuned on dev (a threshold)."""

    def published_head(self, model: Model, family: EncoderFamily) -> PublishedHead | None:
        """The head as a class of `transformers` has it over this family; None where it has none for such a task."""
        return None

    def readout(self, model: Model) -> Readout | None:
        """The head as a layer over pooled or single hidden states, for an export with code of its own; None: it is not.

        It stands in where a family has no class with such a head.
        """
        return None

    def official_files(self, answers: Answers) -> dict[str, Any]:
        """What the official scorer reads: content by the ending of the file's name, "" first; {} where it has none."""
        return {}

    def batches(self, model: Model, rows: Rows[RowT]) -> Iterator[tuple[list[int], BatchT]]:
        """(row numbers, batch on the device) of all rows, like lengths together; for use without gradients."""
        lengths = [len(rows[number].tokens) for number in range(len(rows))]
        device = next((p.device for p in self.parameters()), torch.device("cpu"))
        training = model.training, self.training
        model.eval()
        self.eval()
        try:
            with torch.no_grad():
                for group in by_length(lengths):
                    yield group, self.batch([rows[number] for number in group], Chance(0, 0)).to(device)
        finally:
            model.train(training[0])
            self.train(training[1])


def by_length(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Groups of row numbers of like lengths, each of at most TOKENS tokens (at least one row)."""
    group: list[int] = []
    tokens = 0
    for number in sorted(range(len(lengths)), key=lambda number: lengths[number]):
        if group and tokens + lengths[number] > TOKENS:
            yield group
            group, tokens = [], 0
        group.append(number)
        tokens += lengths[number]
    if group:
        yield group


def most_common(names: Sequence[str]) -> str:
    """The most frequent name; of several the first in the alphabet."""
    counts = Counter(names)
    return min(counts, key=lambda name: (-counts[name], name))
