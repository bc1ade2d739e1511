"""Comparison of contenders by their out-of-fold answers.

Every contender answers each fold's held-out examples after training on the rest. Those with all folds, or nearly as
many as anyone has, are ranked by their score on the folds that all of them have. One that had time for fewer is
compared on the folds it has, and passes whom it beats by more than the standard error of the paired difference, by two
of them where it has less than half of the other's folds: little evidence must not overturn much by luck. Equal scores
are decided by the log loss where answers carry probabilities, then by cost: never by the order of a list.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from etude.pick.splits import Fold
from etude.tasks.base import Answer, Answers
from etude.tasks.outcomes import Outcome

DRAWS = 1_000
FLOOR = 1e-6  # of a probability in the log loss
NEARLY_ALL = 0.75  # of the folds of the one that has most
FEW, MANY_ERRORS = 0.5, 2.0  # below this share of another's folds, a lead must be so many standard errors
Score = Callable[[np.ndarray, Answers], Outcome]  # the examples' numbers and their answers


@dataclass
class Trials:
    """A contender's answers by fold, and what they cost."""

    name: str
    cost: float  # seconds that a refit would take: the cheaper of two equals wins
    answers: dict[int, list[Answer]] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Standing:
    """A contender in the table: its score over the folds it has."""

    name: str
    score: float
    error: float  # standard error over examples
    log_loss: float | None
    folds: int
    cost: float


class Comparison:
    """Scores trials over the folds of a pick; `gold` names the right class of each example where there are classes."""

    def __init__(self, folds: Sequence[Fold], score: Score, gold: Sequence[str | None], seed: int = 0) -> None:
        self.folds, self.score, self.gold, self.seed = folds, score, gold, seed

    def _examples(self, numbers: Sequence[int]) -> np.ndarray:
        return np.concatenate([self.folds[number].valid for number in numbers])

    def _outcome(self, trials: Trials, numbers: Sequence[int]) -> Outcome:
        answers = [answer for number in numbers for answer in trials.answers[number]]
        return self.score(self._examples(numbers), answers)

    def _weights(self, numbers: Sequence[int]) -> np.ndarray:
        """(draws, answers): how often each is drawn; the answers to one example in several repeats go together."""
        examples = self._examples(numbers)
        unique, inverse = np.unique(examples, return_inverse=True)
        rng = np.random.default_rng([self.seed, len(unique)])
        counts = np.stack([np.bincount(rng.integers(len(unique), size=len(unique)), minlength=len(unique))
                           for _ in range(DRAWS)])  # fmt: skip
        return counts[:, inverse].astype(np.float64)

    def rate(self, trials: Trials, numbers: Sequence[int] | None = None) -> Standing:
        """Return the standing of a contender over the folds `numbers`, all it has if None: at least one."""
        numbers = sorted(trials.answers) if numbers is None else numbers
        outcome = self._outcome(trials, numbers)
        error = float(np.std(outcome.score(self._weights(numbers))))
        return Standing(
            trials.name, float(outcome.score()), error, self._log_loss(trials, numbers), len(numbers), trials.cost
        )

    def _log_loss(self, trials: Trials, numbers: Sequence[int]) -> float | None:
        losses = []
        for number in numbers:
            for example, answer in zip(self.folds[number].valid.tolist(), trials.answers[number], strict=True):
                label, scores = self.gold[example], answer.get("scores")
                if label is None or not isinstance(scores, dict):
                    return None
                losses.append(-math.log(max(FLOOR, scores.get(label, 0.0))))
        return float(np.mean(losses)) if losses else None

    def difference(self, left: Trials, right: Trials) -> tuple[float, float]:
        """Return the paired difference of scores over the folds both have, and its standard error."""
        numbers = sorted(left.answers.keys() & right.answers.keys())
        a, b = self._outcome(left, numbers), self._outcome(right, numbers)
        weights = self._weights(numbers)
        return float(a.score() - b.score()), float(np.std(a.score(weights) - b.score(weights)))

    def rank(self, trials: Mapping[str, Trials]) -> list[str]:
        """Return names from best to worst."""
        counts = {name: len(entry.answers) for name, entry in trials.items() if entry.answers}
        if not counts:
            return []
        ahead = [name for name in counts if counts[name] >= NEARLY_ALL * max(counts.values())]
        shared = sorted(set.intersection(*(set(trials[name].answers) for name in ahead)))  # folds go in one order

        def order(name: str, numbers: Sequence[int] | None) -> tuple[float, float, float]:
            standing = self.rate(trials[name], numbers)
            return -standing.score, standing.log_loss if standing.log_loss is not None else math.inf, standing.cost

        ranking = sorted(ahead, key=lambda name: order(name, shared))
        behind = [name for name in counts if name not in ahead]
        for name in sorted(behind, key=lambda name: (-counts[name], *order(name, None))):
            place = next((place for place, rival in enumerate(ranking) if self._beats(trials[name], trials[rival])),
                         len(ranking))  # fmt: skip
            ranking.insert(place, name)
        return ranking

    def _beats(self, partial: Trials, rival: Trials) -> bool:
        if not partial.answers.keys() & rival.answers.keys():
            return False
        difference, error = self.difference(partial, rival)
        has_few = len(partial.answers) < FEW * len(rival.answers)
        return difference > (MANY_ERRORS if has_few else 1.0) * error
