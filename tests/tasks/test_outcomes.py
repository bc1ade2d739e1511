"""Scores from sums over examples are the official ones; and what majority answers look like."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from etude.errors import UserError
from etude.tasks import choice, classify, rank, similarity, span, tag
from etude.tasks.choice import Question as Choices
from etude.tasks.classify import LabelledText
from etude.tasks.data.candidates import Query
from etude.tasks.data.examples import Examples
from etude.tasks.metrics import Confusion, Correlation
from etude.tasks.outcomes import Outcome, correlation_outcome
from etude.tasks.similarity import RatedPair
from etude.tasks.span import answers as rules
from etude.tasks.span.questions import Question
from etude.tasks.tag import scores as tag_scores
from etude.tasks.tag.sentences import TaggedSentence

CHANCE = np.random.default_rng(3)
LABELS = ["a", "b", "c"]


def examples(items: list[Any]) -> Examples[Any]:
    return Examples(items, "made.jsonl", [f"made.jsonl:{n}" for n in range(len(items))])


@pytest.mark.parametrize("score", ["accuracy", "macro_f1", "mcc", "f1", "micro_f1"])
def test_classes(score: str) -> None:
    gold, found = CHANCE.integers(3, size=60), CHANCE.integers(3, size=60)
    found[::2] = gold[::2]
    items = examples([LabelledText(("x",), LABELS[one]) for one in gold])
    scoring = classify.scoring(classify.Settings(score=score, nothing="a"), {"labels": LABELS})
    result = scoring.outcome(items, [{"label": LABELS[one]} for one in found])

    def official(drawn: np.ndarray) -> float:
        counts = Confusion(3)
        counts.add(gold[drawn], found[drawn])
        if score == "micro_f1":
            return counts.micro_f1([1, 2])
        return counts.f1(1) if score == "f1" else getattr(counts, score)

    assert float(result.score()) == pytest.approx(official(np.arange(60)))
    drawn = CHANCE.integers(60, size=(20, 60))
    weights = np.stack([np.bincount(one, minlength=60) for one in drawn])
    assert result.score(weights) == pytest.approx([official(one) for one in drawn])


@pytest.mark.parametrize("score", ["pearson", "spearman"])
def test_ratings(score: str) -> None:
    gold = CHANCE.random(50) * 5
    found = gold + CHANCE.normal(size=50)
    items = examples([RatedPair(("x", "y"), float(one)) for one in gold])
    scoring = similarity.scoring(similarity.Settings(score=score), {"mean": 2.0, "deviation": 1.0})
    result = scoring.outcome(items, [{"score": float(one)} for one in found])
    pairs = Correlation()
    pairs.add(gold, found)
    assert float(result.score()) == pytest.approx(getattr(pairs, score))
    constant = scoring.outcome(items, [{"score": 2.0}] * 50)
    assert float(constant.score()) == 0.0


@pytest.mark.parametrize("scale", [1e-100, 1e-8, 1.0, 1e100])
def test_a_correlation_does_not_depend_on_the_scale(scale: float) -> None:
    gold = CHANCE.random(50)
    found = gold + 0.3 * CHANCE.normal(size=50)
    pairs = Correlation()
    pairs.add(gold * scale, found * scale)
    assert pairs.pearson == pytest.approx(np.corrcoef(gold, found)[0, 1])
    assert float(correlation_outcome(gold * scale, found * scale).score()) == pytest.approx(pairs.pearson)
    constant = correlation_outcome(gold * scale, np.full(50, scale / 3))
    assert float(constant.score()) == 0.0
    weights = np.stack([np.bincount(drawn, minlength=50) for drawn in CHANCE.integers(50, size=(20, 50))])
    assert not constant.score(weights).any()
    assert not correlation_outcome(gold * scale, found * scale).score(np.eye(50) * 50).any(), "one example, 50 times"


@pytest.mark.parametrize("score", ["entity_f1", "entity_macro_f1", "accuracy", "tag_macro_f1"])
def test_tags(score: str) -> None:
    names = ["O", "O", "B-PER", "I-PER", "B-LOC"]
    gold = [[names[n] for n in CHANCE.integers(5, size=6)] for _ in range(30)]
    found = [[tag if CHANCE.random() < 0.7 else names[CHANCE.integers(5)] for tag in tags] for tags in gold]
    items = examples([TaggedSentence(["w"] * 6, tags, False) for tags in gold])
    scoring = tag.scoring(
        tag.Settings(score=score), {"labels": ["O", "B-a", "I-a"], "scheme": "iob2", "characters": False}
    )
    result = scoring.outcome(items, [{"tags": tags} for tags in found])
    assert float(result.score()) == pytest.approx(tag_scores.scores(gold, found, "iob2", False)[score].value)


def test_spans_and_choices() -> None:
    items = examples([Question("1", "q", "a red house", (("red house", 2),)), Question("2", "q", "c", ())])
    scoring = span.scoring(span.Settings(score="f1"), {"null": True})
    result = scoring.outcome(items, [{"answer": "house"}, {"answer": ""}])
    assert float(result.score()) == pytest.approx((rules.f1("house", ["red house"], "squad2") + 1) / 2)
    chosen = examples([Choices("q", ("x", "y"), 1), Choices("q", ("x", "y"), 0)])
    outcome = choice.scoring(choice.Settings(), {}).outcome(chosen, [{"answer": 1}, {"answer": 1}])
    assert float(outcome.score()) == 0.5


@pytest.mark.parametrize("score", ["mrr", "map", "hit@1"])
def test_ranks(score: str) -> None:
    queries = examples([Query("q", ("x", "y", "z"), (False, True, False)), Query("q", ("x", "y"), (True, False))])
    answers = [{"scores": [3.0, 2.0, 1.0]}, {"scores": [1.0, 0.0]}]
    expected = {"mrr": 0.75, "map": 0.75, "hit@1": 0.5}[score]
    outcome = rank.scoring(rank.Settings(score=score), {}).outcome(queries, answers)
    assert float(outcome.score()) == pytest.approx(expected)


def test_saved_and_loaded(tmp_path: Any) -> None:
    one = Outcome("mean", np.array([[1.0, 2.0], [0.0, 1.0]]))
    one.save(tmp_path / "o.npy")
    again = Outcome.load(tmp_path / "o.npy", "mean")
    assert (again.parts == one.parts).all() and float(again.score()) == pytest.approx(1 / 3)


def test_the_majority() -> None:
    train = examples([LabelledText(("x",), one) for one in "aabcc c".replace(" ", "")])
    test = examples([LabelledText(("x",), "a"), LabelledText(("x",), "c")])
    assert classify.majority(train, test) == [{"label": "c"}] * 2
    words = examples([TaggedSentence(["w"] * 3, ["O", "O", "B-X"], False)])
    assert tag.majority(words, words) == [{"tags": ["O"] * 3}]
    rated = examples([RatedPair(("a", "b"), 1.0), RatedPair(("a", "b"), 3.0)])
    assert similarity.majority(rated, rated) == [{"score": 2.0}] * 2
    assert span.majority(rated, rated) == [{"answer": ""}] * 2


def test_the_majority_of_candidates_is_no_worse_than_chance() -> None:
    """All scores equal put the relevant candidate last: a model of pure noise would surely be above that."""
    draw = np.random.default_rng(0)
    items = [Query("q", ("a", "b", "c"), tuple(np.eye(3, dtype=bool)[draw.integers(3)].tolist())) for _ in range(600)]
    train, test = examples(items[:300]), examples(items[300:])
    scoring = rank.scoring(rank.Settings(), {})
    chance = (1 + 1 / 2 + 1 / 3) / 3
    assert float(scoring.outcome(test, rank.majority(train, test)).score()) == pytest.approx(chance, abs=0.05)
    second = examples([Query("q", ("a", "b", "c"), (False, True, False))] * 4)
    longer = examples([Query("q", ("a", "b", "c", "d"), (False, True, False, False))])
    assert rank.majority(second, longer) == [{"scores": [-1.0, 0.0, -2.0, -3.0]}], "where there was nothing, the first"


def test_a_label_nobody_learnt_and_a_score_that_is_no_sum() -> None:
    items = examples([LabelledText(("x",), "z")])
    with pytest.raises(UserError, match="'z' is not among those"):
        classify.scoring(classify.Settings(), {"labels": LABELS}).outcome(items, [{"label": "a"}])
    curves = classify.scoring(classify.Settings(score="auprc"), {"labels": LABELS})
    with pytest.raises(UserError, match="auprc is no function of sums"):
        curves.outcome(examples([LabelledText(("x",), "a")]), [{"label": "a"}])
