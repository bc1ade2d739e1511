"""Spans by overlap with the question: the loss, what is learnt in both languages, no answer, saving and export."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import numpy as np
import pytest

from etude.baselines.registry import fit, load
from etude.baselines.span_features import Tokens, answer_question, span_scores
from etude.baselines.spans import Target, span_cross_entropy
from etude.errors import UserError
from etude.inference.baseline_model import BaselineModel
from etude.tasks.data.examples import Examples
from etude.tasks.span import Settings
from etude.tasks.span.questions import Question
from tests.baselines.test_export import run_standalone

NAMES = ["Anna Berg", "Tom Hill", "Mia Stone", "Jon Field", "Eva Lake", "Max Wood", "Ida Snow", "Leo Frost"]
PLACES = ["London", "Paris", "Rome", "Oslo", "Vienna", "Madrid", "Berlin", "Lisbon"]
DEEDS = ["painted the hall", "wrote the song", "built the ship", "sold the farm", "found the ring"]


def question(number: int, text: str, wording: str, answer: str | None) -> Question:
    answers = () if answer is None else ((answer, text.index(answer)),)
    return Question(str(number), wording, text, answers)


def english(count: int, with_null: bool = False) -> Examples[Question]:
    items = []
    draw = np.random.default_rng(3)
    for number in range(count):
        deeds = draw.permutation(len(DEEDS))[:3]
        people, years, towns = draw.permutation(8)[:3], draw.integers(1800, 2000, 3), draw.permutation(8)[:3]
        text = " ".join(f"In {year} {NAMES[person]} {DEEDS[deed]} in {PLACES[town]}."
                        for deed, person, year, town in zip(deeds, people, years, towns, strict=True))  # fmt: skip
        kind = number % 3
        wording = ("Who {}?", "When was it that someone {}?", "Where was it that someone {}?")[kind].format(
            DEEDS[deeds[1]]
        )
        answer: str | None = (NAMES[people[1]], str(years[1]), PLACES[towns[1]])[kind]
        if with_null and number % 4 == 3:
            wording, answer = "Who lost a blue hat yesterday?", None
        items.append(question(number, text, wording, answer))
    return Examples(items, "items", [f"items:{number}" for number in range(count)])


def korean(count: int) -> Examples[Question]:
    cities, things = ["서울", "부산", "대구", "광주", "인천", "전주"], ["다리", "학교", "시장", "공원"]
    draw, items = np.random.default_rng(5), []
    for number in range(count):
        a, b = draw.permutation(6)[:2]
        c, d = draw.permutation(4)[:2]
        text = f"{things[c]}는 {cities[a]}에서 지어졌다. {things[d]}는 {cities[b]}에서 지어졌다."
        items.append(question(number, text, f"{things[d]}는 어디에서 지어졌는가?", cities[b]))
    return Examples(items, "items", [f"items:{number}" for number in range(count)])


def test_the_slope_of_the_loss() -> None:
    draw = np.random.default_rng(0)
    targets = [Target(np.array([3, 2, 1, 2, 1]), [(0, 1), (3, 0)]), Target(np.array([2, 1]), []),
               Target(np.array([1]), [(0, 0)])]  # fmt: skip
    loss = span_cross_entropy(targets, 3, has_null=True)
    scores = draw.normal(size=(8 + 3 * 4, 3))
    slope = loss(scores)[1]
    for index in np.ndindex(*scores.shape):
        step = np.zeros_like(scores)
        step[index] = 1e-5
        assert slope[index] == pytest.approx((loss(scores + step)[0] - loss(scores - step)[0]) / 2e-5, abs=1e-7)


def test_the_loss_is_that_of_the_scores_of_spans() -> None:
    draw = np.random.default_rng(1)
    target = Target(np.array([3, 2, 1, 1]), [(1, 1)])
    scores = draw.normal(size=(4 + 2, 3))
    grid = span_scores(scores, target.reach, 2)
    assert np.isfinite(grid).sum() == 6
    wanted = np.log(np.exp(grid).sum()) - grid[1, 1]
    assert span_cross_entropy([target], 2, has_null=False)(scores)[0] == pytest.approx(wanted)


def test_tokens_and_sentences() -> None:
    tokens = Tokens.split("It cost $3.50 in 1973. Then no.\n서울에서는 끝났다.")
    assert tokens.words[:9] == ["It", "cost", "$", "3.50", "in", "1973", ".", "Then", "no"]
    assert "서울" in tokens.words and "에서는" in tokens.words
    assert tokens.sentences[6:8] == [0, 1] and tokens.sentences[-1] == 2
    assert tokens.reach[0] == 7


def test_the_answer_of_most_overlap() -> None:
    """By exact match the likeliest span; by F1 the one that shares most with all likely ones."""
    text = "a b c"
    scores = np.zeros((3 + 3, 3))
    tokens = Tokens.split(text)
    scores[:3, 0], scores[:3, 1] = [2.0, 1.7, -9], [-9, 2.0, 1.9]  # a b; a b c; b; b c
    exact, overlap = (answer_question(text, tokens, scores, 3, False, is_exact, 5) for is_exact in (True, False))
    assert exact["answer"] == "a b" and overlap["answer"] == "a b c"
    assert exact["nbest"][0]["probability"] >= max(span["probability"] for span in exact["nbest"])
    assert sum(span["probability"] for span in exact["nbest"]) <= 1.0


@pytest.mark.parametrize("language", ["en", "ko"])
def test_what_is_asked_is_answered(language: str, tmp_path: Path) -> None:
    examples = english(90) if language == "en" else korean(60)
    train, valid = examples.part(range(len(examples) - 20)), examples.part(range(len(examples) - 20, len(examples)))
    model = fit("tfidf", "span", None, train)
    answers = model.predict(valid)
    assert model.task.scoring.scores(valid, answers, intervals=False)["f1"].value > 0.9
    model.save(tmp_path / "best")
    assert load(tmp_path / "best").predict(valid) == answers
    opened = BaselineModel.open(tmp_path / "best")
    lines = [f"{item.question}\t{item.context}" for item in valid]
    alone = run_standalone(opened.export(tmp_path / "out"), lines)
    assert [answer["answer"] for answer in alone] == [answer["answer"] for answer in answers]
    assert [answer["answer"] for answer in opened.predict(lines)] == [answer["answer"] for answer in answers]


def test_hangul_as_jamo_is_the_same_question(tmp_path: Path) -> None:
    """Files of some systems hold syllables as letters: the question had no word in common with its text."""
    examples = korean(60)
    fit("tfidf", "span", None, examples).save(tmp_path / "best")
    opened = BaselineModel.open(tmp_path / "best")
    lines = [f"{item.question}\t{item.context}" for item in examples.items[:5]]
    jamo = [unicodedata.normalize("NFD", line) for line in lines]
    assert jamo != lines and opened.predict(jamo) == opened.predict(lines)
    assert run_standalone(opened.export(tmp_path / "out"), jamo) == run_standalone(tmp_path / "out", lines)


def test_questions_without_an_answer() -> None:
    examples = english(80, with_null=True)
    model = fit("tfidf", "span", None, examples.part(range(60)))
    answers = model.predict(examples.part(range(60, 80)))
    has = [bool(item.answers) for item in examples.part(range(60, 80))]
    assert [bool(answer["answer"]) for answer in answers] == has
    assert all((answer["null"] > 0) == (not answered) for answer, answered in zip(answers, has, strict=True))
    exact = fit("tfidf", "span", Settings(score="exact"), examples.part(range(60)))
    assert exact.task.scoring.score == "exact"


def test_nothing_to_learn_from() -> None:
    text = "nothing here"
    items = [Question(str(n), "who?", text, ()) for n in range(5)]
    with pytest.raises(UserError, match="no question has an answer"):
        fit("tfidf", "span", None, Examples(items, "items", [f"items:{n}" for n in range(5)]))
