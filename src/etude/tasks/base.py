"""The Task contract: an objective over labelled examples, with predictions and an official score.

A task is one module `etude.tasks.<kind>`; its name is all that has to be known of it. The module defines

    SUMMARY, SCORES         one line each for `etude tasks`: what it does, how it is scored
    FILES                   endings of the files it reads, where they are not those of tasks/data/records.py
    COLUMNS                 role -> the names its column has in published files, the first found counts
    INPUTS                  the roles that a plain line of a pipe holds, tabs between them; () where it takes JSON only
    Settings(Strict)
    parse(record, columns, where, labelled) -> E        one example from the fields of one record; UserError if bad
    read(path, columns, skip_bad=False, labelled=True) -> Examples[E]
    learn(examples, settings) -> dict                   facts that follow from the training examples: labels ...
    build(settings, model, tokenizer, facts) -> Task    `facts` from `learn`, or as saved by `Task.facts`

Training goes through the same loop as pre-training: `rows` of a task are examples, each as long as it is.
`predict` takes examples in any order and of any number and answers in the same order; how they are grouped
changes nothing.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from etude.chance import Chance
from etude.models.framing import Framing
from etude.objectives.base import Objective, Rows
from etude.tasks.data.examples import Examples

TOKENS = 16_384  # of one forward pass in prediction; bounds memory, never changes a result
ROUNDS = 1000  # of the bootstrap: the ends of a 95 % interval to about a tenth of its width
DRAWN = 2**20  # numbers of examples drawn at once: 16 MB


@dataclass(frozen=True)
class Score:
    """A value and the 95 % interval of a bootstrap over examples; low = high = value where none was asked for."""

    value: float
    low: float
    high: float
    count: int  # examples

    def __str__(self) -> str:
        return f"{self.value:.4f} [{self.low:.4f}, {self.high:.4f}] (n = {self.count:,})"

    def json(self) -> dict[str, float]:
        return {"value": self.value, "low": self.low, "high": self.high, "count": self.count}


@dataclass(frozen=True)
class Judged:
    """One answer beside the truth, for a person to look at."""

    text: str
    gold: str
    predicted: str
    right: bool
    loss: float  # how wrong it is, for the order of errors


class Task(Objective):
    score: str  # the official metric, a key of what `evaluate` gives; higher is better
    framing: Framing  # how texts become sequences

    @abstractmethod
    def predict(self, model: Any, examples: Examples[Any]) -> list[dict[str, Any]]:
        """One JSON-ready answer an example, in their order; examples need no labels."""

    @abstractmethod
    def evaluate(self, model: Any, examples: Examples[Any], intervals: bool = True) -> dict[str, Score]:
        """All scores of labelled examples; the official one is `self.score`."""

    def judge(self, examples: Examples[Any], answers: Sequence[dict[str, Any]]) -> list[Judged]:
        """Answers of `predict` beside labelled examples, for a report; [] where a task has nothing to show."""
        return []

    def confusion(
        self, examples: Examples[Any], answers: Sequence[dict[str, Any]]
    ) -> tuple[str, Counter[tuple[str, str]]] | None:
        """What is counted, and how often each (gold, predicted) pair of classes occurs; None where there are none."""
        return None

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """JSON-ready: what `build` needs beside the settings (labels, thresholds found on dev)."""

    def frame(self, ids: np.ndarray, context: int | None) -> np.ndarray:
        """One text as this task reads it: for vectors and states of a transferred model."""
        return self.framing.join([ids]).tokens

    def settle(self, model: Any, dev: Examples[Any]) -> None:
        """Called once after training, with the best weights: finds what is tuned on dev (a threshold)."""

    def batches(self, model: nn.Module, rows: Rows) -> Iterator[tuple[list[int], Any]]:
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


def bootstrap(
    count: int,
    statistic: Callable[[np.ndarray], float],
    intervals: bool = True,
    seed: int = 0,
    rounds: int = ROUNDS,
) -> Score:
    """A score of `count` examples with its percentile interval (Efron 1979).

    `statistic` takes numbers of examples, drawn with repetition, and gives their score.
    """
    value = float(statistic(np.arange(count)))
    if not intervals or count < 2:
        return Score(value, value, value, count)
    draw = np.random.default_rng(seed)
    found = [statistic(draw.integers(count, size=count)) for _ in range(rounds)]
    low, high = np.percentile(found, [2.5, 97.5])
    return Score(value, float(low), float(high), count)


def bootstrap_counts(counts: np.ndarray, statistic: Callable[[np.ndarray], float], intervals: bool = True) -> Score:
    """The same for a score that needs only how many examples are of each sort, such as a confusion matrix.

    Examples drawn with repetition fall into the sorts by a multinomial distribution, so the counts are drawn at once.
    """
    total, value = int(counts.sum()), float(statistic(counts))
    if not intervals or total < 2:
        return Score(value, value, value, total)
    draw = np.random.default_rng(0)
    found = [
        statistic(one.reshape(counts.shape)) for one in draw.multinomial(total, counts.ravel() / total, size=ROUNDS)
    ]
    low, high = np.percentile(found, [2.5, 97.5])
    return Score(value, float(low), float(high), total)


def bootstrap_mean(values: np.ndarray, intervals: bool = True) -> Score:
    """The mean of one value an example."""
    values = np.asarray(values, dtype=np.float64)
    count, value = len(values), float(values.mean())
    if not intervals or count < 2:
        return Score(value, value, value, count)
    draw, found = np.random.default_rng(0), np.empty(0)
    while len(found) < ROUNDS:  # in parts: all draws at once may not fit
        rounds = min(ROUNDS - len(found), max(1, DRAWN // count))
        found = np.append(found, values[draw.integers(count, size=(rounds, count))].mean(1))
    low, high = np.percentile(found, [2.5, 97.5])
    return Score(value, float(low), float(high), count)
