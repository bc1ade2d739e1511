"""Comparison of contenders by their out-of-fold answers.

Every contender answers each fold's held-out examples after training on the rest. Those with all folds, or nearly as
many as anyone has, are compared by their score on the folds that all of them have. With some hundred labels the best
scores differ by less than their errors, and the first of them is first by luck. So among those that the best does not
beat by one and a half standard errors of the paired difference, the log loss decides, where answers carry
probabilities: it changes with every example, and not only with those that cross a boundary. On TREC-6, SNIPS, 3i4K and
YNAT with 100 labels, three draws, four baselines, what is chosen so (with half, one and two errors, no temperature)
has 72.5 % on dev, what the score alone chooses 71.6 %, the best that could have been chosen 73.2 %. On other draws of
TREC-6, SST-2 and SNIPS, with earlier baselines and temperatures, both ways chose the same on average (69.3 %). The loss
is taken after scaling by the temperature that suits a contender best (Guo et al. 2017), as the winner will be: too sure
a model is no worse a choice.

One that had time for fewer folds is compared on those it has, and passes whom it beats by more than the standard error
of the paired difference, by two of them where it validated less than half of the other's examples: little evidence must
not overturn much by luck. What is still equal goes to the cheaper: nothing is decided by the order of a list.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from etude.pick.calibration import fit_temperature, negative_log_likelihood
from etude.pick.resampling import draw_resamples, score_resamples
from etude.pick.splits import Fold
from etude.tasks.base import Answer, Answers
from etude.tasks.outcomes import Outcome

DRAWS = 1_000
MOST_DRAWN = 6  # sets of folds whose draws are kept: contenders are compared on the same ones
FLOOR = 1e-6  # of a probability in the log loss
NEARLY_ALL = 0.75  # of the folds of the one that has most
TIE_ERRORS = 1.5  # standard errors of the difference within which scores are equal
FEW, MANY_ERRORS = 0.5, 2.0  # below this share of another's examples, a lead must be so many standard errors
Score = Callable[[np.ndarray, Answers], Outcome]  # the examples' numbers and their answers


@dataclass
class Trials:
    """A contender's answers by fold, and what they cost."""

    name: str
    cost: float  # seconds that a refit would take: the cheaper of two equals wins
    answers: dict[int, list[Answer]] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)
    paces: dict[int, float] = field(default_factory=dict)  # of the machine when each fold ended (pick/pace.py)

    @property
    def fold_seconds(self) -> float:
        """The median seconds of a fold: the first one warms up, and any may have been disturbed."""
        return float(np.median(list(self.seconds.values())))

    @property
    def pace(self) -> float | None:
        """The pace at which the cost was measured; None where nothing was."""
        return sum(self.paces.values()) / len(self.paces) if self.paces else None


@dataclass(frozen=True)
class Standing:
    """A contender in the table: its score over the folds it has."""

    name: str
    score: float
    error: float  # standard error over examples
    log_loss: float | None  # after scaling by a temperature
    folds: int
    cost: float


class Comparison:
    """Scores trials over the folds of a pick; `gold` names the right class of each example where there are classes."""

    def __init__(self, folds: Sequence[Fold], score: Score, gold: Sequence[str | None], seed: int = 0) -> None:
        self.folds, self.score, self.gold, self.seed = folds, score, gold, seed
        # answers of a fold do not change, and the ranking is asked for again and again
        self._ratings: dict[tuple[str, tuple[int, ...]], tuple[float, float, float | None]] = {}
        self._differences: dict[tuple[str, str, tuple[int, ...]], tuple[float, float]] = {}
        self._drawn: dict[tuple[int, ...], tuple[np.ndarray, np.ndarray]] = {}

    def _examples(self, numbers: Sequence[int]) -> np.ndarray:
        return np.concatenate([self.folds[number].valid for number in numbers])

    def _outcome(self, trials: Trials, numbers: Sequence[int]) -> Outcome:
        answers = [answer for number in numbers for answer in trials.answers[number]]
        outcome = self.score(self._examples(numbers), answers)
        if outcome.statistic != "pearson":
            return outcome
        # about the means of each fold: what a model learnt from is as much above the mean as what it did not is below,
        # and over all folds the mean of the training values would correlate with the values by -0.2
        parts = [self.score(self.folds[number].valid, trials.answers[number]).parts for number in numbers]
        return Outcome(outcome.statistic, np.concatenate(parts))

    def _draw(self, numbers: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return resamples of the examples of some folds, and the example of each answer.

        The answers to one example in several repeats go together.
        """
        key = tuple(numbers)
        if key in self._drawn:
            return self._drawn[key]
        unique, members = np.unique(self._examples(numbers), return_inverse=True)
        rng = np.random.default_rng([self.seed, len(unique)])
        while len(self._drawn) >= MOST_DRAWN:
            self._drawn.pop(next(iter(self._drawn)))
        self._drawn[key] = draw_resamples(rng, len(unique), DRAWS), members
        return self._drawn[key]

    def rate(self, trials: Trials, numbers: Sequence[int] | None = None) -> Standing:
        """Return the standing of a contender over the folds `numbers`, all it has if None: at least one."""
        numbers = sorted(trials.answers) if numbers is None else numbers
        key = trials.name, tuple(numbers)
        if key not in self._ratings:
            outcome = self._outcome(trials, numbers)
            error = float(np.std(score_resamples(outcome, *self._draw(numbers))))
            self._ratings[key] = float(outcome.score()), error, self._log_loss(trials, numbers)
        return Standing(trials.name, *self._ratings[key], len(numbers), trials.cost)

    def _log_loss(self, trials: Trials, numbers: Sequence[int]) -> float | None:
        """Of the right classes, after scaling by one temperature; None where answers have no probabilities."""
        gold, rows, unknown = [], [], 0
        for number in numbers:
            for example, answer in zip(self.folds[number].valid.tolist(), trials.answers[number], strict=True):
                label, scores = self.gold[example], answer.get("scores")
                if label is None or not isinstance(scores, dict):
                    return None
                if label not in scores:  # a class that this fold did not train on
                    unknown += 1
                    continue
                names = sorted(scores)
                gold.append(names.index(label))
                rows.append([scores[name] for name in names])
        if not rows or len({len(row) for row in rows}) != 1:
            return None
        log_probs, labels = np.log(np.maximum(np.array(rows), FLOOR)), np.array(gold)  # (answers, classes)
        loss = negative_log_likelihood(log_probs, labels, fit_temperature(log_probs, labels))
        return (loss * len(rows) - math.log(FLOOR) * unknown) / (len(rows) + unknown)

    def difference(self, left: Trials, right: Trials) -> tuple[float, float]:
        """Return the paired difference of scores over the folds both have, and its standard error."""
        numbers = sorted(left.answers.keys() & right.answers.keys())
        key = left.name, right.name, tuple(numbers)
        if key not in self._differences:
            a, b = self._outcome(left, numbers), self._outcome(right, numbers)
            drawn = self._draw(numbers)
            error = float(np.std(score_resamples(a, *drawn) - score_resamples(b, *drawn)))
            self._differences[key] = float(a.score() - b.score()), error
        return self._differences[key]

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

        ranking = self._prefer_probabilities(sorted(ahead, key=lambda name: order(name, shared)), trials, shared)
        behind = [name for name in counts if name not in ahead]
        for name in sorted(behind, key=lambda name: (-counts[name], *order(name, None))):
            place = next((place for place, rival in enumerate(ranking) if self._beats(trials[name], trials[rival])),
                         len(ranking))  # fmt: skip
            ranking.insert(place, name)
        return ranking

    def find_ties(self, trials: Mapping[str, Trials]) -> list[str]:
        """The best and those that it does not clearly beat, in their order."""
        ranking = self.rank(trials)
        if not ranking:
            return []
        first = trials[ranking[0]]
        ties = []
        for name in ranking[1:]:
            if first.answers.keys() & trials[name].answers.keys():
                difference, error = self.difference(first, trials[name])
                if difference <= TIE_ERRORS * error:
                    ties.append(name)
        return [ranking[0], *ties]

    def _prefer_probabilities(
        self, ranking: list[str], trials: Mapping[str, Trials], shared: Sequence[int]
    ) -> list[str]:
        """Put those that the best does not clearly beat in the order of their log losses."""
        losses = {name: self.rate(trials[name], shared).log_loss for name in ranking}
        if any(loss is None for loss in losses.values()):
            return ranking
        leads = {name: self.difference(trials[ranking[0]], trials[name]) for name in ranking[1:]}
        tied = [name for name, (difference, error) in leads.items() if difference <= TIE_ERRORS * error]
        first = sorted([ranking[0], *tied], key=lambda name: losses[name] or 0.0)
        return [*first, *(name for name in ranking if name not in first)]

    def _count_examples(self, trials: Trials) -> int:
        """How many examples were validated: repeats of the same ones are little new evidence."""
        return len(np.unique(self._examples(sorted(trials.answers))))

    def _beats(self, partial: Trials, rival: Trials) -> bool:
        if not partial.answers.keys() & rival.answers.keys():
            return False
        difference, error = self.difference(partial, rival)
        has_few = self._count_examples(partial) < FEW * self._count_examples(rival)
        return difference > (MANY_ERRORS if has_few else 1.0) * error
