"""The parts of the labels: every fold has something to validate on, or the pick is refused before it begins."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from etude.errors import UserError
from etude.pick.data import HELD_OUT, PickData
from etude.pick.labels import Labelled, read_labels
from etude.runs.task_plan import task_module


def build(path: Path, labels: Sequence[str]) -> PickData:
    records = [{"text": f"text number {n}", "label": label} for n, label in enumerate(labels)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    labelled, _ = read_labels("classify", path)
    return PickData.build(labelled, None, None, task_module("classify").Settings(), HELD_OUT, seed=0)


def test_labels_that_all_stand_once_are_refused(tmp_path: Path) -> None:
    """Nothing can be scored: a winner came out all the same, with a score of 0 on 0 examples."""
    with pytest.raises(UserError, match=r"labels.jsonl: too few labels .* Is the column of the labels the right one"):
        build(tmp_path / "labels.jsonl", [f"id {n}" for n in range(30)])


@pytest.mark.parametrize("pairs", [2, 3, 4])
def test_few_labels_that_stand_twice_make_fewer_folds(pairs: int, tmp_path: Path) -> None:
    labels = [f"id {n}" for n in range(20)] + [f"pair {n}" for n in range(pairs)] * 2
    data = build(tmp_path / "labels.jsonl", labels)
    assert 2 <= data.repeat < 5 and len(data.folds) == data.planned == 3 * data.repeat
    assert len(data.scored_on) and all(len(fold.valid) for fold in data.folds)


def test_usual_labels_have_five_folds(tmp_path: Path) -> None:
    data = build(tmp_path / "labels.jsonl", ["a", "b", "c"] * 20)
    assert data.repeat == 5 and len(data.folds) == data.planned == 15


def test_models_know_nothing_of_a_test_file(tmp_path: Path) -> None:
    """The mean of its values and the tags that only it has were part of the final model."""
    parts: dict[str, dict[str, Labelled]] = {"similarity": {}, "tag": {}}
    for name, value, tag in (("train", 0, "PER"), ("test", 4, "LOC")):
        pairs = [{"text_a": f"{name} {n}", "text_b": "film", "score": value + n % 2} for n in range(30)]
        sentences = [{"tokens": [name, str(n)], "tags": [f"B-{tag}", "O"]} for n in range(30)]
        for kind, rows in (("similarity", pairs), ("tag", sentences)):
            path = tmp_path / f"{kind}-{name}.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            parts[kind][name], problems = read_labels(kind, path)
            assert not problems
    data = {
        kind: PickData.build(part["train"], None, part["test"], task_module(kind).Settings(), HELD_OUT, seed=0)
        for kind, part in parts.items()
    }
    assert data["similarity"].facts["mean"] == 0.5
    assert set(data["tag"].facts["labels"]) == {"O", "B-PER", "I-PER"}
    wrong = [{"tags": ["O", "O"]} for _ in data["tag"].scored_on]
    assert data["tag"].outcome(data["tag"].scored_on, wrong).score() == 0, "a tag that only the test file has is scored"
