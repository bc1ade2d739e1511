"""The parts of the labels: every fold has something to validate on, or the pick is refused before it begins."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from etude.errors import UserError
from etude.pick.data import HELD_OUT, PickData
from etude.pick.labels import read_labels
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
