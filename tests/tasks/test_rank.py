"""Ranking: files of three forms, the measures by hand and by scikit-learn, the loss by hand, and that it learns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import label_ranking_average_precision_score

from etude.chance import Chance
from etude.errors import UserError
from etude.tasks import base, rank
from etude.tasks.data.candidates import Query
from etude.tasks.metrics import average_precision, hit, reciprocal_rank
from etude.text.tokenizer.tokenizer import Tokenizer
from tests.tasks.test_pairs import KINDS, WORDS, examples, learn, model_of


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train("word:60", [" ".join(WORDS)] * 3)


# --- measures ---------------------------------------------------------------------------------------


def test_measures_by_hand() -> None:
    scores, relevant = np.array([0.1, 0.9, 0.5, 0.7]), np.array([True, False, True, False])
    # in order: no (0.9), no (0.7), yes (0.5), yes (0.1)
    assert reciprocal_rank(scores, relevant) == pytest.approx(1 / 3)
    assert average_precision(scores, relevant) == pytest.approx((1 / 3 + 2 / 4) / 2)
    assert [hit(scores, relevant, k) for k in (1, 2, 3)] == [0.0, 0.0, 1.0]
    same = np.zeros(4)
    assert reciprocal_rank(same, relevant) == pytest.approx(1 / 3), "equal scores: the relevant come last"


def test_average_precision_is_that_of_scikit_learn() -> None:
    draw = np.random.default_rng(0)
    for _ in range(50):
        count = int(draw.integers(2, 12))
        scores, relevant = draw.normal(size=count), draw.random(count) < 0.4
        relevant[draw.integers(count)] = True
        theirs = label_ranking_average_precision_score(relevant[None].astype(int), scores[None])
        assert average_precision(scores, relevant) == pytest.approx(theirs)


# --- files ------------------------------------------------------------------------------------------


def test_three_forms_of_files(tmp_path: Path) -> None:
    wanted = [
        Query("who ?", ("a film", "an actor"), (False, True)),
        Query("what ?", ("the end", "the plot", "a film"), (True, False, False)),
    ]
    lists = tmp_path / "lists.jsonl"
    lists.write_text(
        '{"query": "who ?", "candidates": ["a film", "an actor"], "labels": [0, 1]}\n'
        '{"question": "what ?", "passages": ["the end", "the plot", "a film"], "positive": 0}\n'
    )
    assert rank.read(lists).items == wanted
    pairs = tmp_path / "wikiqa.tsv"
    pairs.write_text(
        "QuestionID\tQuestion\tDocumentTitle\tSentence\tLabel\n"
        "Q1\twho ?\tx\ta film\t0\nQ1\twho ?\tx\tan actor\t1\n"
        "Q2\twhat ?\tx\tthe end\t1\nQ2\twhat ?\tx\tthe plot\t0\nQ2\twhat ?\tx\ta film\t0\n"
    )
    found = rank.read(pairs)
    assert found.items == wanted and found.places[1] == f"{pairs}:4"
    own = tmp_path / "own.csv"
    own.write_text("frage,antwort,gut\nwho ?,a film,0\nwho ?,an actor,2\n")
    assert rank.read(own, {"query": "frage", "candidate": "antwort", "label": "gut"}).items == wanted[:1]
    sets = tmp_path / "sets.jsonl"
    sets.write_text('{"query": "who ?", "positives": ["an actor"], "negatives": ["a film"]}\n')
    assert rank.read(sets).items == [Query("who ?", ("an actor", "a film"), (True, False))]
    assert rank.read(pairs, labelled=False).items[0] == Query("who ?", ("a film", "an actor"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"query": "q", "candidates": []}', "a query without candidates"),
        ('{"query": "q", "candidates": ["a"], "labels": [1, 0]}', "1 candidates and 2 labels"),
        ('{"query": "q", "candidates": ["a", ""], "labels": [1, 0]}', "the text in the column 'candidates' is empty"),
        ('{"query": "q", "candidates": "a", "labels": [1]}', 'holds "a", not a list of candidates'),
        ('{"query": "q", "candidates": ["a", "b"], "positive": 2}', "holds 2, which is no number from 0 to 1"),
        ('{"query": "q", "candidates": ["a", "b"], "labels": ["x", 1]}', 'holds "x", which is no number'),
        ('{"query": "q", "candidate": "", "label": 1}', "the text in the column 'candidate' is empty"),
        ('{"query": "q", "candidate": "x"}', "there is no column 'label'"),
    ],
)  # fmt: skip
def test_bad_queries_are_told_with_their_line(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "x.jsonl"
    good = '{"query": "who ?", "candidates": ["a film", "an actor"], "labels": [0, 1]}\n'
    file.write_text(good + line + "\n" + good)
    with pytest.raises(UserError, match=f"x.jsonl:2: .*{message}"):
        rank.read(file)
    found = rank.read(file, skip_bad=True)
    assert len(found) == 2 and len(found.bad) == 1


# --- training and use -------------------------------------------------------------------------------


def queries(count: int, seed: int = 0, most: int = 5) -> Any:
    """Candidates that hold "good" are relevant."""
    draw = np.random.default_rng(seed)
    items = []
    for _ in range(count):
        size = int(draw.integers(2, most))
        relevant = np.arange(size) < draw.integers(1, size)
        texts = [f"{draw.choice(WORDS[2:])} {'good' if one else 'bad'}" for one in relevant]
        order = draw.permutation(size)
        items.append(
            Query(str(draw.choice(WORDS)), tuple(texts[n] for n in order), tuple(bool(relevant[n]) for n in order))
        )
    return examples(items)


@pytest.mark.parametrize("loss", ["list", "point"])
@pytest.mark.parametrize("kind", KINDS)
def test_it_learns(tokenizer: Tokenizer, kind: str, loss: str, monkeypatch: Any) -> None:
    model, data = model_of(kind, tokenizer.vocab), queries(6)
    task = rank.build(rank.Settings(dropout=0.0, loss=loss), model, tokenizer, {})
    assert learn(task, model, data, steps=60) < 0.3
    scores = task.evaluate(model, data)
    assert scores["mrr"].value > 0.9 and scores["map"].value > 0.85 and scores["hit@1"].value > 0.8
    found = task.predict(model, data)
    for answer, item in zip(found, data, strict=True):
        assert sorted(answer["order"]) == list(range(len(item.candidates)))
        ordered = [answer["scores"][n] for n in answer["order"]]
        assert ordered == sorted(ordered, reverse=True) and answer["best"] == item.candidates[answer["order"][0]]
    monkeypatch.setattr(base, "TOKENS", 1)
    for one, other in zip(task.predict(model, data.part(range(5, -1, -1))), found[::-1], strict=True):
        assert one["scores"] == pytest.approx(other["scores"], abs=1e-5)
    judged = task.judge(data, found)
    assert sum(not one.correct for one in judged) == round((1 - scores["hit@1"].value) * len(data))


def test_the_loss_by_hand(tokenizer: Tokenizer) -> None:
    model, data = model_of("both", tokenizer.vocab), queries(4)
    task = rank.build(rank.Settings(dropout=0.0), model, tokenizer, {}).eval()
    model.eval()
    rows = task.rows(data)
    term = task.loss(model, task.batch([rows[n] for n in range(4)], Chance(0, 0)))["loss"]
    total = 0.0
    for item, scores in zip(data, task.scores(model, data), strict=True):
        share = torch.from_numpy(scores).softmax(0)
        total -= float(share[torch.tensor(item.relevant)].sum().log())
    assert float(term.sum.detach()) == pytest.approx(total, abs=1e-5) and term.count == 4


def test_some_candidates_are_drawn_anew_every_epoch(tokenizer: Tokenizer) -> None:
    words = [f"{one} {other}" for one in WORDS[:5] for other in WORDS[:4]]
    data = examples([Query("film", tuple(words), tuple(n in (3, 7) for n in range(20)))] * 2)
    task = rank.build(rank.Settings(candidates=6), model_of("both", tokenizer.vocab), tokenizer, {})
    rows = task.rows(data, seed=1)
    seen = set()
    for epoch in range(4):
        row = rows[2 * epoch]
        assert row.relevant.sum() == 2 and len(row.relevant) == 6 == len(row.bounds) - 1
        assert np.array_equal(row.tokens, rows[2 * epoch].tokens), "a function of its number"
        seen.add(row.tokens.tobytes())
    assert len(seen) == 4


def test_queries_that_say_nothing(tokenizer: Tokenizer, caplog: Any, tmp_path: Path) -> None:
    data = examples([Query("film", ("a", "b"), (False, False)), Query("film", ("good", "bad"), (True, False))])
    task = rank.build(rank.Settings(), model_of("both", tokenizer.vocab), tokenizer, {})
    assert len(task.rows(data)) == 1 and "1 of 2 queries have no relevant candidate" in caplog.text
    assert task.evaluate(model_of("both", tokenizer.vocab), data)["mrr"].count == 1
    with pytest.raises(UserError, match="nothing to learn"):
        task.rows(data.part([0]))
    with pytest.raises(UserError, match="read without labels"):
        task.rows(examples([Query("film", ("a", "b"))]))
    line = json.dumps({"query": "film", "candidates": ["good", "bad"]})
    assert rank.parse(json.loads(line), {}, "x", labelled=False).relevant is None
