"""Tasks over two texts and over several answers: framing by family, both orders, files as published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from etude.chance import Chance
from etude.errors import UserError
from etude.models import recurrent, static, transformer
from etude.tasks import base, choice, classify, pair, similarity
from etude.tasks.base import Task
from etude.tasks.data.examples import Examples
from etude.text.tokenizer.tokenizer import Tokenizer
from tests.shared_data import DATA

TASKS = DATA / "tasks"
WORDS = ["good", "bad", "film", "plot", "not", "very", "영화", "좋다", "나쁘다", "end"]
KINDS = ["both", "causal", "recurrent", "static"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train("word:40", [" ".join(WORDS)] * 3)


def model_of(kind: str, vocab: int) -> Any:
    torch.manual_seed(0)
    if kind == "static":
        return static.build(static.Settings(width=24, vocab=vocab))
    if kind == "recurrent":
        return recurrent.build(recurrent.Settings(layers=1, width=12, cells=16, vocab=vocab, dropout=0.0))
    return transformer.build(
        transformer.Settings(layers=1, width=24, heads=2, context=32, vocab=vocab, init_deviation=0.15, segments=2,
                             direction="causal" if kind == "causal" else "both")
    )  # fmt: skip


def examples(items: list[Any]) -> Examples[Any]:
    return Examples(items, "made", [f"made:{number}" for number in range(len(items))])


def learn(task: Task, model: Any, data: Examples[Any], steps: int = 120) -> float:
    rows = task.rows(data, 0)
    optimizer = torch.optim.Adam([*model.parameters(), *task.parameters()], lr=0.02)
    loss = 0.0
    for step in range(steps):
        term = task.loss(model, task.batch([rows[number] for number in range(len(rows))], Chance(0, step)))["loss"]
        optimizer.zero_grad()
        (term.sum / term.count).backward()
        optimizer.step()
        loss = float(term.sum.detach()) / term.count
        if loss < 0.09:
            break
    return loss


def pairs(count: int = 6) -> list[tuple[str, str]]:
    draw = np.random.default_rng(0)
    return [
        (" ".join(draw.choice(WORDS, draw.integers(1, 5))), " ".join(draw.choice(WORDS, draw.integers(1, 5))))
        for _ in range(count)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_are_learnt_and_framed(tokenizer: Tokenizer, kind: str) -> None:
    model = model_of(kind, tokenizer.vocab)
    data = examples([classify.LabelledText(texts, str(number % 3)) for number, texts in enumerate(pairs())])
    task = pair.build(pair.Settings(dropout=0.0), model, tokenizer, pair.learn(data, pair.Settings()))
    assert learn(task, model, data) < 0.1
    assert [answer["label"] for answer in task.predict(model, data)] == [item.label for item in data]
    special = tokenizer.special
    first, second = (tokenizer.encode(text).ids.tolist() for text in ("good film", "bad"))
    row = task.rows(examples([classify.LabelledText(("good film", "bad"), "0")]))[0]
    wanted = {
        "both": [special.start, *first, special.separator, *second, special.separator],
        "causal": [special.start, *first, special.separator, *second, special.end],
        "recurrent": [special.end, *first, special.end, special.end, *second, special.end],
        "static": [*first, *second],
    }[kind]
    assert row.tokens.tolist() == wanted
    assert len(row.bounds) == (3 if kind in ("recurrent", "static") else 2)
    if kind == "both":
        assert row.segments is not None and row.segments.tolist() == [0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_similarity(tokenizer: Tokenizer, kind: str, monkeypatch: Any) -> None:
    model = model_of(kind, tokenizer.vocab)
    values = np.linspace(0, 5, 6)
    data = examples([similarity.RatedPair(texts, float(v)) for texts, v in zip(pairs(), values, strict=True)])
    options = similarity.Settings(dropout=0.0, threshold=3)
    task = similarity.build(options, model, tokenizer, similarity.learn(data, options))
    assert learn(task, model, data) < 0.1
    scores = task.evaluate(model, data)
    assert scores["pearson"].value > 0.95 and scores["spearman"].value > 0.9 and scores["f1"].value > 0.7
    found = task.values(model, data)
    np.testing.assert_allclose(found, values, atol=1.5)
    turned = examples([similarity.RatedPair(item.texts[::-1]) for item in data])
    if kind == "causal":  # both orders are added: the order of the two does not matter
        np.testing.assert_allclose(task.values(model, turned), found, atol=1e-4)
    monkeypatch.setattr(base, "TOKENS", 1)
    np.testing.assert_allclose(task.values(model, data), found, atol=1e-5)
    with pytest.raises(UserError, match="every value is 1"):
        similarity.learn(examples([similarity.RatedPair(("a", "b"), 1.0)] * 2), options)
    with pytest.raises(UserError, match="made: one example has no correlation"):
        task.evaluate(model, data.part([0]))
    with pytest.raises(UserError, match="made:0: this example has no value"):
        task.evaluate(model, turned)


@pytest.mark.parametrize("kind", KINDS)
def test_choices_of_different_numbers(tokenizer: Tokenizer, kind: str, monkeypatch: Any) -> None:
    model = model_of(kind, tokenizer.vocab)
    draw = np.random.default_rng(1)
    items = []
    for first, second in pairs(5):
        count = int(draw.integers(2, 5))
        answers = tuple(str(word) for word in draw.choice(WORDS, count, replace=False))
        items.append(choice.Question(f"{first} {second}", answers, int(draw.integers(count))))
    data = examples(items)
    task = choice.build(choice.Settings(dropout=0.0), model, tokenizer, {})
    loss = learn(task, model, data)
    if kind != "static":
        assert loss < 0.1 and task.evaluate(model, data)["accuracy"].value == 1.0
    found = task.predict(model, data)
    for answer, item in zip(found, data, strict=True):
        assert len(answer["scores"]) == len(item.choices) and sum(answer["scores"]) == pytest.approx(1.0, abs=1e-5)
        assert answer["text"] == item.choices[answer["answer"]]
    monkeypatch.setattr(base, "TOKENS", 1)
    for one, other in zip(task.predict(model, data.part(range(4, -1, -1))), found[::-1], strict=True):
        assert one["answer"] == other["answer"] and one["scores"] == pytest.approx(other["scores"], abs=1e-5)


def test_chance_of_a_choice_is_the_cross_entropy(tokenizer: Tokenizer) -> None:
    """By hand: scores of all sequences, softmax within each question."""
    model = model_of("both", tokenizer.vocab)
    data = examples([choice.Question("good", ("bad", "film", "end"), 2), choice.Question("not", ("plot", "very"), 0)])
    task = choice.build(choice.Settings(dropout=0.0, deviation=0.5), model, tokenizer, {})
    rows = task.rows(data)
    batch = task.batch([rows[0], rows[1]], Chance(0, 0))
    flat = task.pooled(model, batch)[0][:, 0]
    wanted = -(flat[:3].log_softmax(0)[2] + flat[3:].log_softmax(0)[0])
    torch.testing.assert_close(task.loss(model, batch)["loss"].sum, wanted)


@pytest.mark.parametrize("kind", ["causal", "both"])
def test_answers_of_a_question_are_dropped_alike_in_a_causal_model(tokenizer: Tokenizer, kind: str) -> None:
    """Equal answers of one question have equal scores in training only where one draw serves them all."""
    model = model_of(kind, tokenizer.vocab).eval()
    data = examples(
        [choice.Question("film", ("good", "good", "good"), 0), choice.Question("film", ("good", "good"), 1)]
    )
    task = choice.build(choice.Settings(dropout=0.5), model, tokenizer, {}).train()
    rows = task.rows(data)
    torch.manual_seed(0)
    flat = task.pooled(model, task.batch([rows[0], rows[1]], Chance(0, 0)))[0][:, 0].detach()
    alike = torch.allclose(flat[:3], flat[0].expand(3)) and torch.allclose(flat[3:], flat[3].expand(2))
    assert alike == (kind == "causal") and not torch.allclose(flat[0], flat[3])


def test_published_files(tmp_path: Path) -> None:
    def file(name: str, content: str) -> Path:
        (tmp_path / name).write_text(content, encoding="utf-8")
        return tmp_path / name

    cola = classify.read(file("cola.tsv", "gj04\t1\t\tThey left.\ngj04\t0\t*\tThey leave left.\n"))
    assert [(item.texts[0], item.label) for item in cola] == [("They left.", "1"), ("They leave left.", "0")]
    assert classify.read(file("sst.tsv", "sentence\tlabel\nfine\t1\n"))[0].texts == ("fine",)
    assert classify.read(file("nsmc.tsv", 'id\tdocument\tlabel\n1\t"좋다\t1\n'))[0].texts == ('"좋다',)
    mrpc = pair.read(file("mrpc.tsv", "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tone\ttwo\n"))
    assert mrpc[0] == classify.LabelledText(("one", "two"), "1")
    qnli = pair.read(file("qnli.tsv", "index\tquestion\tsentence\tlabel\n0\twho?\tme\tentailment\n"))
    assert qnli[0] == classify.LabelledText(("who?", "me"), "entailment")
    klue = [{"guid": "x", "premise": "하나", "hypothesis": "둘", "gold_label": "neutral"}]
    assert pair.read(file("klue.json", json.dumps(klue)))[0] == classify.LabelledText(("하나", "둘"), "neutral")
    sts = [{"sentence1": "하나", "sentence2": "둘", "labels": {"label": 3.7, "real-label": 3.714, "binary-label": 1}}]
    assert similarity.read(file("sts.json", json.dumps(sts)))[0] == similarity.RatedPair(("하나", "둘"), 3.714)
    swag = "video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"
    found = choice.read(file("swag.csv", swag + "v,1,A b,A man sits.,He,gold,runs.,eats.,sleeps.,talks.,2\n"))
    assert found[0] == choice.Question("A man sits.", ("He runs.", "He eats.", "He sleeps.", "He talks."), 2)
    nested = {"answerKey": "B", "question": {"stem": "why?", "choices": [{"label": "A", "text": "x"},
                                                                         {"label": "B", "text": "y"}]}}  # fmt: skip
    assert choice.read(file("csqa.jsonl", json.dumps(nested) + "\n"))[0] == choice.Question("why?", ("x", "y"), 1)
    for record, message in (
        ({"question": "q", "choices": ["x"], "answer": 0}, "not a list of two or more"),
        ({"question": "q", "choices": ["x", "y"], "answer": 2}, "none of the 2 answers"),
        ({"question": "q", "choices": ["x", "y"], "answer": True}, "none of the 2 answers"),
        ({"question": "q", "choices": ["x", " "], "answer": 0}, "is empty"),
        ({"question": "q", "choices": ["x", "y"]}, "no column 'answer'"),
        (
            {"question": "q", "choices": {"text": ["x", "y", "z"], "label": ["A", "B"]}, "answer": "A"},
            "one 'label' for",
        ),
        ({"article": "a", "question": "q", "options": ["x", "y"], "answer": "A"}, "without the column 'article'"),
    ):
        with pytest.raises(UserError, match=message):
            choice.read(file("bad.jsonl", json.dumps(record) + "\n"))
    with pytest.raises(UserError, match=r"v\.jsonl:1: the column 'score' holds \"high\", which is no number"):
        similarity.read(file("v.jsonl", '{"text_a": "x", "text_b": "y", "score": "high"}\n'))
    with pytest.raises(UserError, match=r"v\.jsonl:1: the column 'score' holds 1000.*, which is no number"):
        similarity.read(file("v.jsonl", f'{{"text_a": "x", "text_b": "y", "score": {10**400}}}\n'))


def test_answers_without_names_are_numbered_and_articles_are_left_out_where_that_is_said() -> None:
    record = {"article": "a", "question": "q", "options": {"text": ["x", "y"]}, "answer": 1}
    assert choice.parse(record, {"question": "question"}, "f:1") == choice.Question("q", ("x", "y"), 1)


def test_pairs_that_annotators_did_not_agree_on_are_no_class(tmp_path: Path) -> None:
    path = tmp_path / "snli.jsonl"
    lines = [{"sentence1": "a", "sentence2": "b", "gold_label": label} for label in ("neutral", "-")]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    with pytest.raises(UserError, match=r"snli\.jsonl:2: '-' stands for no label.*--skip-bad"):
        pair.read(path)
    read = pair.read(path, skip_bad=True)
    assert [item.label for item in read] == ["neutral"] and len(read.bad) == 1
    assert len(pair.read(path, labelled=False)) == 2


@pytest.mark.skipif(not TASKS.is_dir(), reason="the development data is not beside this checkout")
def test_real_files() -> None:
    assert len(pair.read(TASKS / "rte" / "valid.jsonl.xz")) == 171
    assert len(similarity.read(TASKS / "korsts" / "valid.jsonl.xz")) == 1496
    found = choice.read(TASKS / "commonsenseqa" / "valid.jsonl.xz")
    assert len(found) == 757 and all(len(item.choices) == 5 for item in found)
