"""Similarity of two texts, multiple choice and ranking: one score a pair, from its overlaps and n-grams.

similarity   ridge regression, the answer inside the range of the training values
choice       a softmax over the answers of a question (the conditional logit of McFadden 1974)
rank         the same, the right answer shared by all relevant candidates
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeVar

import numpy as np

from etude.baselines.base import BaselineTask
from etude.baselines.linear import Problem, candidate_cross_entropy, number_equal, squares
from etude.baselines.linear_baseline import FittedLinear, LinearBaseline, WordVectors, fit_pairs
from etude.baselines.text_features import softmax
from etude.errors import UserError
from etude.tasks.base import Answer
from etude.tasks.choice import Question
from etude.tasks.data.candidates import Query
from etude.tasks.data.examples import Examples
from etude.tasks.rank import informative
from etude.tasks.similarity import RatedPair

E = TypeVar("E")
PREDICT_SCORE = '''def predict(line):
    """How alike two texts are that have a tab between them."""
    value = float(logits(*line.split("\\t", 1))[0]) * FACTS["deviation"] + FACTS["mean"]
    return {"score": min(max(value, MODEL["model"]["low"]), MODEL["model"]["high"])}'''
PREDICT_CHOICE = '''def predict(line):
    """The likeliest answer to a question: {"question": ..., "choices": [...]}."""
    record = json.loads(line)
    probs = softmax(np.array([logits(record["question"], choice)[0] for choice in record["choices"]]))
    best = int(probs.argmax())
    return {"answer": best, "text": record["choices"][best], "scores": probs.tolist()}'''
PREDICT_RANK = '''def predict(line):
    """The candidates of a query in order: {"query": ..., "candidates": [...]}."""
    record = json.loads(line)
    scores = np.array([logits(record["query"], candidate)[0] for candidate in record["candidates"]])
    order = np.argsort(-scores, kind="stable").tolist()
    return {"order": order, "best": record["candidates"][order[0]], "scores": scores.tolist()}'''


class PairScoreBaseline(LinearBaseline[E]):
    """One output for two texts."""

    @classmethod
    def outputs(cls, task: BaselineTask) -> int:
        return 1

    @classmethod
    def reads_pairs(cls, task: BaselineTask) -> bool:
        return True

    def scores(self, text: str, candidates: Sequence[str]) -> np.ndarray:
        """(candidates,) of one text beside each candidate."""
        return np.array([self.logits(text, candidate)[0] for candidate in candidates])


class SimilarityBaseline(PairScoreBaseline[RatedPair]):
    """A number for two texts."""

    def __init__(self, name: str, task: BaselineTask, fitted: FittedLinear, low: float, high: float) -> None:
        """`low`, `high`: the range of the training values."""
        super().__init__(name, task, fitted)
        self.low, self.high = low, high

    @classmethod
    def fit(
        cls,
        name: str,
        task: BaselineTask,
        examples: Examples[RatedPair],
        seed: int = 0,
        vectors: WordVectors | None = None,
    ) -> Self:
        task.scoring.check_gold(examples)
        values = np.array([item.value for item in examples], dtype=np.float64)
        targets = (values - task.facts["mean"]) / task.facts["deviation"]
        groups = number_equal(item.texts for item in examples)
        problem = Problem(1, lambda units: squares(targets[units]), np.zeros(len(targets), np.int64), groups=groups)
        fitted = fit_pairs(name, [item.texts for item in examples], problem, seed, vectors)
        return cls(name, task, fitted, float(values.min()), float(values.max()))

    def predict(self, examples: Examples[RatedPair]) -> list[Answer]:
        mean, deviation = self.task.facts["mean"], self.task.facts["deviation"]
        values = [float(self.logits(*item.texts)[0]) * deviation + mean for item in examples]
        return [{"score": min(max(value, self.low), self.high)} for value in values]

    def scale_logits(self, temperature: float) -> None:
        """A value has no temperature."""

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "low": self.low, "high": self.high}

    @classmethod
    def restore(
        cls, name: str, task: BaselineTask, description: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
    ) -> Self:
        fitted = cls.restore_layer(task, description, arrays)
        return cls(name, task, fitted, float(description["low"]), float(description["high"]))

    @property
    def predict_script(self) -> str:
        return PREDICT_SCORE


def fit_candidates(
    name: str,
    questions: Sequence[tuple[str, Sequence[str]]],
    targets: Sequence[np.ndarray],
    seed: int,
    vectors: WordVectors | None,
) -> FittedLinear:
    """A softmax over the candidates of each question; `targets` are their shares of the right answer."""
    pairs = [(text, candidate) for text, candidates in questions for candidate in candidates]
    bounds = np.concatenate([[0], np.cumsum([len(candidates) for _, candidates in questions])])
    strata = np.zeros(len(questions), np.int64)
    groups = number_equal((text, tuple(candidates)) for text, candidates in questions)
    problem = Problem(
        1, lambda units: candidate_cross_entropy([targets[unit] for unit in units]), strata, bounds, groups
    )
    return fit_pairs(name, pairs, problem, seed, vectors)


class ChoiceBaseline(PairScoreBaseline[Question]):
    """The likeliest of several answers."""

    @classmethod
    def fit(
        cls,
        name: str,
        task: BaselineTask,
        examples: Examples[Question],
        seed: int = 0,
        vectors: WordVectors | None = None,
    ) -> Self:
        task.scoring.check_gold(examples)
        targets = [np.eye(len(item.choices))[item.answer or 0] for item in examples]
        questions = [(item.text, item.choices) for item in examples]
        return cls(name, task, fit_candidates(name, questions, targets, seed, vectors))

    def predict(self, examples: Examples[Question]) -> list[Answer]:
        answers = []
        for item in examples:
            probs = softmax(self.scores(item.text, item.choices))
            best = int(probs.argmax())
            answers.append({"answer": best, "text": item.choices[best], "scores": probs.tolist()})
        return answers

    @property
    def predict_script(self) -> str:
        return PREDICT_CHOICE


class RankBaseline(PairScoreBaseline[Query]):
    """Candidates in order."""

    @classmethod
    def fit(
        cls,
        name: str,
        task: BaselineTask,
        examples: Examples[Query],
        seed: int = 0,
        vectors: WordVectors | None = None,
    ) -> Self:
        useful = examples.part(informative(examples))
        if not len(useful):
            raise UserError(f"{examples.source}: no query has both a relevant candidate and another.")
        relevant = [np.array(item.relevant, dtype=np.float64) for item in useful]
        targets = [shares / shares.sum() for shares in relevant]
        questions = [(item.text, item.candidates) for item in useful]
        return cls(name, task, fit_candidates(name, questions, targets, seed, vectors))

    def predict(self, examples: Examples[Query]) -> list[Answer]:
        answers = []
        for item in examples:
            scores = self.scores(item.text, item.candidates)
            order = np.argsort(-scores, kind="stable").tolist()
            answers.append({"order": order, "best": item.candidates[order[0]], "scores": scores.tolist()})
        return answers

    @property
    def predict_script(self) -> str:
        return PREDICT_RANK
