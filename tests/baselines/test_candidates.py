"""Pairs, similarity, choice and ranking by overlap: learnt, answered as the tasks do, saved, and exported."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from etude.baselines.registry import fit, load
from etude.inference.baseline_model import BaselineModel
from etude.tasks.choice import Question
from etude.tasks.classify import LabelledText
from etude.tasks.data.candidates import Query
from etude.tasks.data.examples import Examples
from etude.tasks.similarity import RatedPair
from tests.baselines.test_export import run_standalone

TOPICS = [
    "the red fox",
    "a blue boat",
    "old green hills",
    "서울의 밤하늘",
    "부산의 바다",
    "작은 고양이",
    "seven ships",
    "tall trees",
]


def examples(items: list[Any]) -> Examples[Any]:
    return Examples(items, "items", [f"items:{number}" for number in range(len(items))])


def pairs() -> Examples[LabelledText]:
    same = [LabelledText((f"{topic} today", f"today {topic}"), "same") for topic in TOPICS]
    other = [LabelledText((f"{a} today", f"today {b}"), "other") for a, b in pairwise(TOPICS)]
    return examples(same + other)


def ratings() -> Examples[RatedPair]:
    first = ["one two three four", "가나 다라 마바 사아"]
    cut = [(text, " ".join(text.split()[:count]), count) for text in first for count in range(1, 5)]
    return examples([RatedPair((text, f"{part} {'x ' * (4 - count)}"), float(count)) for text, part, count in cut])


def questions() -> Examples[Question]:
    return examples([
        Question(f"Where is {topic} ?", (TOPICS[(n + 1) % 8], f"here is {topic}", TOPICS[(n + 2) % 8]), 1)
        if n % 2 else Question(f"Where is {topic} ?", (f"here is {topic}", TOPICS[(n + 3) % 8]), 0)
        for n, topic in enumerate(TOPICS)
    ])  # fmt: skip


def queries() -> Examples[Query]:
    return examples([
        Query(topic, (f"nothing {TOPICS[(n + 1) % 8]}", f"about {topic}", f"{topic} again"), (False, True, True))
        for n, topic in enumerate(TOPICS)
    ])  # fmt: skip


CASES = {
    "pair": (pairs(), "a grey wolf now\tnow a grey wolf", ("a grey wolf now", "now a grey wolf")),
    "similarity": (ratings(), "one two three four\tone two three x", ("one two three four", "one two three x")),
    "choice": (questions(), json.dumps({"question": "Where is it ?", "choices": ["no", "here it is"]}), None),
    "rank": (queries(), json.dumps({"query": "grey wolf", "candidates": ["a sheep", "the grey wolf"]}), None),
}


@pytest.mark.parametrize("kind", CASES)
def test_overlap_is_learnt_saved_and_exported(kind: str, tmp_path: Path) -> None:
    train, line, _ = CASES[kind]
    model = fit("tfidf", kind, None, train)
    answers = model.predict(train)
    assert float(model.task.scoring.outcome(train, answers).score()) > 0.95
    assert model.task.scoring.scores(train, answers, intervals=False)[model.task.scoring.score].value > 0.95
    model.save(tmp_path / "best")
    assert load(tmp_path / "best").predict(train) == answers
    opened = BaselineModel.open(tmp_path / "best")
    expected = opened.predict([json.loads(line) if line.startswith("{") else line])
    assert run_standalone(opened.export(tmp_path / "out"), [line]) == expected


def test_answers_have_the_fields_of_the_tasks() -> None:
    choice = fit("tfidf", "choice", None, questions()).predict(questions())[0]
    assert set(choice) == {"answer", "text", "scores"} and sum(choice["scores"]) == pytest.approx(1)
    rank = fit("tfidf", "rank", None, queries()).predict(queries())[0]
    assert set(rank) == {"order", "best", "scores"} and sorted(rank["order"]) == [0, 1, 2]
    values = [answer["score"] for answer in fit("tfidf", "similarity", None, ratings()).predict(ratings())]
    assert min(values) >= 1.0 and max(values) <= 4.0
