"""Temperatures in the weights: probabilities are softmax(logits / T), and no answer changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etude.errors import UserError
from etude.inference.task_model import TaskModel
from etude.runs.task_plan import Plan
from etude.transfer.finetune import finetune
from etude.transfer.temperature import scale_logits
from tests.tasks.labelled_records import records


def train(base: Path, kind: str, folder: Path, **task: Any) -> tuple[Path, Path]:
    file = folder / "train.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records(kind, 24, 0)), encoding="utf-8")
    overrides = {"train.steps": 4, "train.lr": 5e-3, **{f"task.{name}": value for name, value in task.items()}}
    return finetune(base, kind, file, folder / "run", overrides=overrides, quiet=True).folder, file


def probabilities(answers: list[dict[str, Any]]) -> list[np.ndarray]:
    return [np.array(list(a["scores"].values()) if isinstance(a["scores"], dict) else a["scores"]) for a in answers]


@pytest.mark.parametrize(("kind", "head"), [("classify", "linear"), ("classify", "mlp"), ("choice", "linear")])
def test_probabilities_at_a_temperature(base: Callable[[str], Path], tmp_path: Path, kind: str, head: str) -> None:
    run, file = train(base("bert"), kind, tmp_path, head=head)
    model = TaskModel.open(run, "cpu")
    examples = model.read(file)
    before = model.predict(examples)
    scale_logits(run, 2.0)
    scale_logits(run, 1.25)
    after = TaskModel.open(run, "cpu").predict(examples)
    for plain, scaled in zip(probabilities(before), probabilities(after), strict=True):
        wanted = plain ** (1 / 2.5)  # softmax(logits / T) is the T-th root, normalised
        np.testing.assert_allclose(scaled, wanted / wanted.sum(), atol=1e-6)
    assert Plan.read(run).temperature == 2.5
    key = "label" if kind == "classify" else "answer"
    assert [answer[key] for answer in before] == [answer[key] for answer in after]


@pytest.mark.parametrize("head", ["linear", "crf"])
def test_taggers(base: Callable[[str], Path], tmp_path: Path, head: str) -> None:
    run, file = train(base("bert"), "tag", tmp_path, head=head)
    model = TaskModel.open(run, "cpu")
    before = model.predict(model.read(file))
    scale_logits(run, 3.0)
    after = TaskModel.open(run, "cpu").predict(model.read(file))
    assert [answer["tags"] for answer in before] == [answer["tags"] for answer in after]
    mean = [np.mean([np.mean(answer["scores"]) for answer in answers]) for answers in (before, after)]
    assert mean[1] < mean[0], "less sure"


def test_what_has_no_temperature(base: Callable[[str], Path], tmp_path: Path) -> None:
    run, _ = train(base("bert"), "similarity", tmp_path)
    with pytest.raises(UserError, match="gives none"):
        scale_logits(run, 2.0)
    for number in (0.0, -1.0, float("nan")):
        with pytest.raises(UserError, match="above 0"):
            scale_logits(run, number)
