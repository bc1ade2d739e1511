"""Every kind of task goes through a whole pick: checked, raced, refitted, exported, answered; with a start, too."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import etude
from etude.pick.pick import PickResult
from tests.baselines.test_export import run_standalone
from tests.baselines.test_spans import english
from tests.tasks.labelled_records import records

KINDS = ("pair", "similarity", "choice", "rank", "tag", "span")
LINES = {
    "pair": "film good\tfilm", "similarity": "film good\tfilm", "tag": "film good plot",
    "choice": json.dumps({"question": "plot", "choices": ["bad", "good"]}),
    "rank": json.dumps({"query": "plot", "candidates": ["film bad", "film good"]}),
    "span": "Who built the ship?\tIn 1900 Anna Berg built the ship in Rome.",
}  # fmt: skip


def read_input(kind: str) -> Any:
    """What `predict` takes: a line, or the record of it."""
    return json.loads(LINES[kind]) if kind in ("choice", "rank") else LINES[kind]


def write_examples(path: Path, kind: str, count: int) -> Path:
    if kind == "span":
        rows = [
            {"id": item.id, "question": item.question, "context": item.context,
             "answers": [{"text": text, "answer_start": start} for text, start in item.answers or ()]}
            for item in english(count)
        ]  # fmt: skip
    else:
        rows = records(kind, count, 0)
        for number, row in enumerate(rows):  # equal inputs are one example
            row |= {name: f"{row[name]} {number}" for name in ("question", "query") if name in row}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def check_result(result: PickResult, kind: str) -> None:
    results = result.results
    assert results["task"] == kind and results["held_out"]["examples"] >= 5 and results["not_exported"] is None
    assert results["rows"][0]["name"] == results["winner"] and "most frequent" in str(results["rows"])
    (answer,) = etude.load(result.model).predict([read_input(kind)])
    assert answer == result.predict([read_input(kind)])[0]
    assert result.page.is_file() and results["seconds"] <= 1.1 * 60 * results["minutes"]


@pytest.mark.parametrize("kind", [pytest.param(k, marks=[] if k == "span" else [pytest.mark.slow]) for k in KINDS])
def test_labels_alone(kind: str, tmp_path: Path) -> None:
    train = write_examples(tmp_path / "train.jsonl", kind, 45)
    result = etude.pick(task=kind, train=train, out=tmp_path / "out", minutes=3, device="cpu")
    check_result(result, kind)
    assert result.winner == "tfidf" and result.results["rows"][0]["score"] > 0.6
    (alone,) = run_standalone(result.model / "export", [LINES[kind]])
    assert {name: alone[name] for name in alone if name in ("label", "answer", "order", "tags")} == {
        name: value for name, value in result.predict([read_input(kind)])[0].items()
        if name in ("label", "answer", "order", "tags")
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_with_a_start(kind: str, base: Callable[[str], Path], tmp_path: Path) -> None:
    train = write_examples(tmp_path / "train.jsonl", kind, 45)
    result = etude.pick(
        task=kind, train=train, out=tmp_path / "out", minutes=3, device="cpu", start=[f"small={base('bert')}"]
    )
    check_result(result, kind)
    names = {row["name"] for row in result.results["rows"]}
    assert {"tfidf", "small frozen"} <= names, names
    if not any(name.startswith("small fine-tuned") for name in names):
        # on a busy machine it may not end in time, and the table says so
        (skipped,) = result.results["untried"]
        assert skipped["label"]["en"] == "small, fine-tuned" and skipped["reason"]["en"].startswith("not tried: needs")
