"""Contenders are ranked by scores over folds; partial evidence must be clear, and ties are not decided by a list."""

from __future__ import annotations

import numpy as np

from etude.pick.selection import Comparison, Trials
from etude.pick.splits import Fold
from etude.tasks.base import Answer, Answers
from etude.tasks.outcomes import Outcome, correlation_outcome, mean_outcome

COUNT = 200
GOLD = ["yes" if number % 2 else "no" for number in range(COUNT)]
NUMBERS = np.arange(COUNT)
FOLDS = [Fold(np.setdiff1d(NUMBERS, NUMBERS[start::5]), NUMBERS[start::5]) for start in range(5)]


def score(numbers: np.ndarray, answers: Answers) -> Outcome:
    return mean_outcome([answer["label"] == GOLD[number] for number, answer in zip(numbers, answers, strict=True)])


def answers(numbers: np.ndarray, wrong: set[int], confidence: float = 0.8) -> list[Answer]:
    result = []
    for number in numbers.tolist():
        label = GOLD[number] if number not in wrong else "yes" if GOLD[number] == "no" else "no"
        other = "yes" if label == "no" else "no"
        result.append({"label": label, "scores": {label: confidence, other: 1 - confidence}})
    return result


def trials(name: str, wrong: set[int], folds: range = range(5), cost: float = 1.0, confidence: float = 0.8) -> Trials:
    made = Trials(name, cost)
    for number in folds:
        made.answers[number] = answers(FOLDS[number].valid, wrong, confidence)
    return made


def rank(*entries: Trials) -> list[str]:
    return Comparison(FOLDS, score, GOLD).rank({entry.name: entry for entry in entries})


def test_the_better_score_is_first_whatever_the_order() -> None:
    good, bad = trials("good", set(range(20))), trials("bad", set(range(60)))
    assert rank(bad, good) == rank(good, bad) == ["good", "bad"]
    standing = Comparison(FOLDS, score, GOLD).rate(good)
    assert standing.score == 0.9 and 0.015 < standing.error < 0.03, "sqrt(0.9 * 0.1 / 200) = 0.021"


def test_a_correlation_is_one_within_folds() -> None:
    """The mean of the training values, one value in each fold, had a correlation of -0.16 with those of the folds."""
    values = np.random.default_rng(0).normal(size=COUNT)

    def correlate(numbers: np.ndarray, answers: Answers) -> Outcome:
        return correlation_outcome(values[numbers], np.array([answer["score"] for answer in answers]))

    comparison = Comparison(FOLDS, correlate, [None] * COUNT)
    mean, exact = Trials("mean", 1.0), Trials("exact", 1.0)
    for number, fold in enumerate(FOLDS):
        mean.answers[number] = [{"score": float(values[fold.train].mean())} for _ in fold.valid]
        exact.answers[number] = [{"score": float(value) + number} for value in values[fold.valid]]
    assert comparison.rate(mean).score == 0
    assert abs(comparison.rate(exact).score - 1) < 1e-9, "where a fold's model sets in is not its correlation"
    assert comparison.difference(exact, mean)[0] > 0.99


def test_ties_go_to_the_better_probabilities_then_to_the_cheaper() -> None:
    wrong = set(range(20))
    assert rank(trials("unsure", wrong, confidence=0.6), trials("sure", wrong, confidence=0.9)) == ["sure", "unsure"]
    dear, cheap = trials("dear", wrong, cost=50), trials("cheap", wrong, cost=2)
    assert rank(dear, cheap) == rank(cheap, dear) == ["cheap", "dear"]


def test_few_folds_must_be_better_by_more_than_luck() -> None:
    leader = trials("leader", set(range(0, 200, 5)))  # wrong on fold 0 only: 80 % in all
    lucky = trials("lucky", {1, 6}, folds=range(1, 2))  # two more errors on the one fold it has
    assert rank(leader, lucky) == ["leader", "lucky"]
    clear = trials("clear", set(), folds=range(1))
    assert rank(leader, clear) == ["clear", "leader"], "40 of 40 where the leader has none"
    equal = trials("equal", set(range(0, 200, 5)), folds=range(2))
    assert rank(leader, equal) == ["leader", "equal"], "no better: the whole evidence stays"


def test_among_equals_within_their_error_the_probabilities_decide() -> None:
    """One right answer more is luck; knowing which answers are sure is not."""
    lucky = trials("lucky", {0, 1, 2, 3}, confidence=0.8)
    honest = trials("honest", {0, 1, 2, 3, 4})
    for fold, made in honest.answers.items():
        for number, answer in zip(FOLDS[fold].valid.tolist(), made, strict=True):
            sure = 0.55 if number in range(8) else 0.99  # unsure where it is wrong
            label = answer["label"]
            answer["scores"] = {label: sure, ("yes" if label == "no" else "no"): 1 - sure}
    assert rank(lucky, honest) == rank(honest, lucky) == ["honest", "lucky"]
    clear = trials("clear", set(), confidence=0.8)
    worse = trials("worse", set(range(30)), confidence=0.8)
    assert rank(worse, clear) == ["clear", "worse"]


def test_too_sure_a_model_is_no_worse_a_choice() -> None:
    """A temperature mends it, and the winner gets one."""
    wrong = set(range(0, 200, 10))
    sure, modest = trials("sure", wrong, confidence=0.999, cost=1), trials("modest", wrong, confidence=0.9, cost=2)
    comparison = Comparison(FOLDS, score, GOLD)
    losses = [comparison.rate(entry).log_loss for entry in (sure, modest)]
    assert losses[0] is not None and losses[1] is not None and abs(losses[0] - losses[1]) < 0.01


def test_one_fold_must_lead_by_two_errors() -> None:
    leader = trials("leader", {0, 5, 10, 15})  # four errors on fold 0
    better = trials("better", {0}, folds=range(1))  # three fewer there: more than one standard error, less than two
    assert rank(leader, better) == ["leader", "better"]
    assert rank(leader, trials("better", {0}, folds=range(3))) == ["better", "leader"], "with more folds it does"


def test_little_evidence_does_not_lead_where_nobody_has_all_folds() -> None:
    """Each would have to beat the others, and the one with one fold was listed first."""
    many = trials("many", set(range(0, 200, 8)), folds=range(4))
    few = trials("few", set(range(0, 200, 3)), folds=range(1))
    assert rank(few, many) == rank(many, few) == ["many", "few"]
    fewer = trials("fewer", set(range(0, 200, 16)), folds=range(3))
    assert rank(few, many, fewer) == ["fewer", "many", "few"], "three folds of four compare by their score"


def test_answers_of_repeats_are_drawn_together() -> None:
    folds = [*FOLDS, *FOLDS]
    comparison = Comparison(folds, score, GOLD)
    twice = Trials("twice", 1.0, {number: answers(fold.valid, set(range(20))) for number, fold in enumerate(folds)})
    once = Comparison(FOLDS, score, GOLD).rate(trials("once", set(range(20))))
    assert abs(comparison.rate(twice).error - once.error) < 0.004, "the same examples again are no new evidence"
