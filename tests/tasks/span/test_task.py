"""Span questions: windows lose nothing, offsets lead back to the text, and the null answer has its threshold."""

from __future__ import annotations

import json
import math
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.chance import Chance
from etude.errors import UserError
from etude.models import recurrent, static, transformer
from etude.tasks import base
from etude.tasks.data.examples import Examples
from etude.tasks.span.questions import Question, parse
from etude.tasks.span.task import Settings, Span, build, learn, official, read
from etude.tasks.span.windows import SMALLEST, windows
from etude.text.tokenizer.tokenizer import Tokenizer
from tests.shared_data import DATA

TASKS = DATA / "tasks"
WORDS = [
    "서울",
    "is",
    "the",
    "capital",
    "of",
    "Korea",
    "Paris",
    "France",
    "where",
    "who",
    "lives",
    "in",
    "Mina",
    "Jo",
    ".",
]


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 400), st.integers(SMALLEST, 120), st.integers(1, 200), st.integers(1, 40), st.data())
def test_windows_hold_every_token_and_every_answer(tokens: int, room: int, stride: int, answer: int, data: Any) -> None:
    cut = windows(tokens, room, stride, answer)
    assert (cut.stops - cut.starts <= room).all() and cut.stops.max() == tokens and cut.starts[0] == 0
    held = np.zeros(tokens, bool)
    for start, stop in zip(cut.starts, cut.stops, strict=True):
        held[start:stop] = True
    assert held.all()
    assert cut.answer == answer or len(cut.starts) > 1, "a text in one window may have every answer that is allowed"
    first = data.draw(st.integers(0, tokens - 1))
    last = min(tokens - 1, first + data.draw(st.integers(0, cut.answer - 1)))
    window = cut.scored_in[first]
    assert cut.starts[window] <= first and last < cut.stops[window], (
        "the window that is_scored for a start holds the end"
    )


def test_a_hundredth_of_a_windows_length_counts_as_context() -> None:
    """Token 250 has 49 beside it in the first window, of 300, and 50 in the second, of 110: the first speaks for it."""
    cut = windows(310, 300, 200, 30)
    assert cut.starts.tolist() == [0, 200] and cut.stops.tolist() == [300, 310]
    assert cut.scored_in[[199, 250, 251, 299]].tolist() == [0, 0, 1, 1]


def test_berts_numbers_stay_and_the_most_context_wins() -> None:
    cut = windows(500, 350, 128, 30)
    assert cut.starts.tolist() == [0, 128, 256] and cut.answer == 30
    for token in (0, 127, 250, 300, 499):
        scores = [
            min(token - a, b - 1 - token) + 0.01 * (b - a) if a <= token < b else -1
            for a, b in zip(cut.starts, cut.stops, strict=True)
        ]
        assert cut.scored_in[token] == int(np.argmax(scores))
    with pytest.raises(UserError, match=r"task\.length"):
        windows(50, 7, 4, 4)


def test_memory_of_windows_grows_with_the_text_and_not_with_its_square() -> None:
    tracemalloc.start()
    windows(50_000, 100, 10, 5)  # 4,991 windows
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5e6


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train("word:60", [" ".join(WORDS)] * 3)


def model_of(kind: str, vocab: int) -> Any:
    torch.manual_seed(0)
    if kind == "recurrent":
        return recurrent.build(recurrent.Settings(layers=1, width=16, cells=24, vocab=vocab, dropout=0.0))
    return transformer.build(
        transformer.Settings(layers=2, width=32, heads=2, context=64, vocab=vocab, init_deviation=0.15, segments=2,
                             direction="causal" if kind == "causal" else "both")
    )  # fmt: skip


def questions(count: int = 12, seed: int = 0, null: bool = True) -> Examples[Question]:
    """ "who lives in X": the name before "lives in X" in a text of several such sentences; every third has none."""
    draw = np.random.default_rng(seed)
    items = []
    for number in range(count):
        names, cities = draw.permutation(["Mina", "Jo"]), draw.permutation(["Paris", "서울"])
        text = " ".join(f"{name} lives in {city} ." for name, city in zip(names, cities, strict=True))
        if null and number % 3 == 2:
            items.append(Question(str(number), "who lives in France", text, ()))
            continue
        which = int(draw.integers(2))
        start = text.index(f"{names[which]} lives")
        items.append(Question(str(number), f"who lives in {cities[which]}", text, ((str(names[which]), start),)))
    return Examples(items, "made.json", [f"made.json: question {item.id}" for item in items])


def train(task: Span, model: Any, data: Examples[Question], steps: int = 300) -> float:
    rows = task.rows(data)
    optimizer = torch.optim.Adam([*model.parameters(), *task.parameters()], lr=0.01)
    loss = 0.0
    for step in range(steps):
        batch = task.batch([rows[number] for number in range(len(rows))], Chance(0, step))
        terms = task.loss(model, batch)
        total = torch.stack([term.sum / term.count for term in terms.values()]).sum()
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        loss = float(total.detach())
        if loss < 0.1:
            break
    return loss


@pytest.mark.parametrize("null", ["span", "head"])
def test_a_reader_that_knows_nothing_answers_nothing(tokenizer: Tokenizer, null: Any) -> None:
    """Whatever it says is wrong, and no null score is above 0: to answer nothing is best, and that is what it does."""
    data = Examples([replace(item, answers=()) for item in questions(6)], "x", ["x"] * 6)
    options = Settings(length=20, stride=4, answer=2, null=null)
    model = model_of("both", tokenizer.vocab)
    task = build(options, model, tokenizer, learn(data, options))
    layer = task.absent if task.absent is not None else task.head
    torch.nn.init.zeros_(layer.weight)
    torch.nn.init.constant_(layer.bias, -1.0)  # all null scores are at most 0: all questions would be answered
    assert all(answer["answer"] for answer in task.predict(model, data))
    task.tune_on_dev(model, data)
    assert not any(answer["answer"] for answer in task.predict(model, data))
    assert task.evaluate(model, data)["f1"].value == 1.0


@pytest.mark.parametrize(
    ("kind", "null"), [("both", "span"), ("both", "head"), ("causal", "span"), ("recurrent", "span")]
)
def test_it_learns_by_heart(tokenizer: Tokenizer, kind: str, null: Any, monkeypatch: Any) -> None:
    # a causal or shallow reader cannot find the name before it has read the place: one sentence is enough for it
    data = questions(6) if kind == "both" else questions(4, null=False)
    options = Settings(length=20, stride=4, answer=2, null=null)
    model = model_of(kind, tokenizer.vocab)
    task = build(options, model, tokenizer, learn(data, options))
    assert train(task, model, data) < 0.3
    found = task.predict(model, data)
    assert [answer["id"] for answer in found] == [item.id for item in data]
    files = official(found)
    assert files[""]["0"] == found[0]["answer"]
    for answer in found:
        best = files[".nbest"][answer["id"]]
        assert sum(one["probability"] for one in best) == pytest.approx(1.0)
        assert [one["probability"] for one in best] == sorted((one["probability"] for one in best), reverse=True)
        assert answer["nbest"][0]["score"] == pytest.approx(
            answer["nbest"][0]["start_logit"] + answer["nbest"][0]["end_logit"], abs=1e-4
        )
        if task.null and null == "span":  # "no answer" is one of them, as far above the best span as it says
            empty = next(one for one in best if not one["text"])
            odds = empty["start_logit"] + empty["end_logit"] - answer["nbest"][0]["score"]
            assert files[".null_odds"][answer["id"]] == pytest.approx(odds, abs=1e-4)
    for answer, item in zip(found, data, strict=True):
        for one in answer["nbest"]:
            assert item.context[one["start"] : one["start"] + len(one["text"])] == one["text"]
        assert sum(one["probability"] for one in answer["nbest"]) == pytest.approx(1.0)
    task.tune_on_dev(model, data)
    scores = task.evaluate(model, data)
    if kind == "both":
        assert scores["f1"].value > 0.9 and scores["f1_unanswerable"].count == 2
    monkeypatch.setattr(base, "TOKENS", 1)
    order = np.random.default_rng(0).permutation(len(data))
    settled = official(task.predict(model, data))[""]
    for number, answer in zip(order, task.predict(model, data.part(order)), strict=True):
        assert answer["answer"] == settled[data[number].id]
        assert answer["null"] == pytest.approx(found[number]["null"], abs=1e-4)


def test_a_window_without_the_answer_points_at_the_start(tokenizer: Tokenizer) -> None:
    filler = "the capital of France is Paris . " * 4
    data = Examples([Question("a", "where is Mina", filler + "Mina", (("Mina", len(filler)),))], "x", ["x:1"])
    model = model_of("both", tokenizer.vocab)
    task = build(Settings(length=20, stride=5, answer=2), model, tokenizer, {"null": False, "threshold": 0.0})
    rows = task.rows(data)
    spans = [rows[number].span for number in range(len(rows))]
    assert len(rows) > 2 and spans[0] is None and spans[-1] is not None
    batch = task.batch([rows[number] for number in range(len(rows))], Chance(0, 0))
    assert batch.starts is not None and batch.starts[0] == 0
    last = rows[len(rows) - 1]
    assert tokenizer.decode(last.tokens[last.span[0] : last.span[1] + 1]) == "Mina" and last.segments is not None
    assert last.segments[last.span[0]] == 1 and last.segments[1] == 0


def test_the_best_span_of_chosen_scores(tokenizer: Tokenizer) -> None:
    """Scores by hand: the best pair is in order, in the text, not too long, and null takes the smallest window."""
    context = "Mina lives in Paris . Jo lives in 서울 ."
    data = Examples([Question("a", "who", context, (("Jo", context.index("Jo")),))], "x", ["x:1"])
    model = model_of("both", tokenizer.vocab)
    task = build(Settings(length=40, answer=2, nbest=3), model, tokenizer, {"null": True, "threshold": 0.0})
    (reading,) = task.rows(data).questions
    scores = np.full((len(reading.sequences[0]), 2), -5.0, dtype=np.float32)
    scores[0] = 2.0  # null: 4
    scores[1] = 9.0  # the question: never an answer
    scores[3 + 5] = (3.0, 2.5)  # "Jo"
    scores[3 + 3, 1] = 8.0  # an end before that start
    answer = task._answer(reading, [(scores, None)])
    assert answer["nbest"][0]["text"] == "Jo" and answer["nbest"][0]["score"] == pytest.approx(5.5)
    assert answer["null"] == pytest.approx(4 - 5.5) and answer["answer"] == "Jo"
    task.threshold = -2.0
    assert task._answer(reading, [(scores, None)])["answer"] == ""
    again = scores.copy()
    again[0] = 0.5
    assert task._answer(reading, [(again, None)])["null"] == pytest.approx(1 - 5.5)


def test_answers_must_be_where_they_say() -> None:
    good = {"id": "a", "question": "who", "context": "Mina lives", "answers": [{"text": "Mina", "answer_start": 0}]}
    assert parse(good, {}, "f:1").answers == (("Mina", 0),)
    lists = good | {"answers": {"text": ["lives"], "answer_start": [5]}}
    assert parse(lists, {}, "f:1").answers == (("lives", 5),)
    assert parse(good | {"is_impossible": True}, {}, "f:1").answers == ()
    assert parse({"question": "who", "context": "x"}, {}, "f:1", labelled=False).answers is None
    for bad, message in (
        ({"answers": [{"text": "Mina", "answer_start": 1}]}, r'f:1: the answer "Mina" is not at its offset 1'),
        ({"answers": [{"text": "Mina", "answer_start": -4}]}, r"not at its offset -4"),
        ({"answers": [{"text": "Mina"}]}, r"not an object with 'text' and 'answer_start'"),
        ({"answers": "Mina"}, r"not a list of answers"),
        ({"answers": {"text": ["Mina"]}}, r"f:1: the column 'answers' lacks an 'answer_start' of each 'text'"),
        ({"answers": {"text": ["Mina", "lives"], "answer_start": [0]}}, r"lacks an 'answer_start' of each"),
        ({"context": " "}, r"is empty"),
    ):
        with pytest.raises(UserError, match=message):
            parse(good | bad, {}, "f:1")
    with pytest.raises(UserError, match=r"f:1: there is no column 'answers'.* -c answers=reply"):
        parse({("reply" if name == "answers" else name): value for name, value in good.items()}, {}, "f:1")
    jamo = "\u1112\u1161\u11ab\u1100\u1173\u11af Mina"  # decomposed Hangul before the answer
    moved = parse(good | {"context": jamo, "answers": [{"text": "Mina", "answer_start": 7}]}, {}, "f:1")
    assert moved.context == "한글 Mina" and moved.answers == (("Mina", 3),)


def test_squad_files(tmp_path: Path, tokenizer: Tokenizer) -> None:
    answer = {"text": "Mina", "answer_start": 0}
    paragraph = {
        "context": "Mina lives",
        "qas": [
            {"id": "a", "question": "who", "answers": [answer], "is_impossible": False},
            {"id": "b", "question": "where", "answers": [], "is_impossible": True},
            {"id": "c", "question": "why", "answers": [answer | {"answer_start": 3}]},
        ],
    }
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"version": "v2.0", "data": [{"title": "T", "paragraphs": [paragraph]}]}))
    with pytest.raises(UserError, match=r"squad\.json: question c: the answer"):
        read(path)
    found = read(path, skip_bad=True)
    assert [item.id for item in found] == ["a", "b"] and len(found.bad) == 1 and found[1].answers == ()
    assert learn(found, Settings())["null"] is True
    path.write_text(json.dumps({"data": [{"title": "T", "paragraphs": [{"qas": []}, {"context": "x"}]}]}))
    with pytest.raises(UserError, match=r"article 1, paragraph 2 is not of SQuAD's form"):
        read(path)
    with pytest.raises(UserError, match="static vectors"):
        build(
            Settings(), static.build(static.Settings(width=4, vocab=60)), tokenizer, {"null": False, "threshold": 0.0}
        )


@pytest.mark.skipif(not TASKS.is_dir(), reason="the development data is not beside this checkout")
def test_real_questions() -> None:
    found = read(TASKS / "squad20_from_dev" / "valid.jsonl.xz")
    assert len(found) == 1071 and 300 < sum(not item.answers for item in found) < 700


@pytest.mark.parametrize("nothing", [None, "", math.nan])
def test_a_question_without_an_id_has_its_place(nothing: Any) -> None:
    """All of them were called "None", and the official files held one answer for the whole data set."""
    record = {"id": nothing, "question": "who", "context": "Mina lives", "answers": []}
    assert parse(record, {}, "dev.jsonl:7").id == "dev.jsonl:7"
    assert parse({**record, "id": 0}, {}, "dev.jsonl:7").id == "0"


def test_answers_that_official_files_cannot_hold_are_told(caplog: pytest.LogCaptureFixture) -> None:
    answers: list[dict[str, Any]] = [{"id": name, "answer": name, "nbest": []} for name in ("a", "b", "a")]
    with caplog.at_level("WARNING", "etude"):
        assert official(answers)[""] == {"a": "a", "b": "b"}
        assert "1 of 3 answers are not in the official files" in caplog.text
        caplog.clear()
        official(answers[:2])
    assert not caplog.text
