"""Settings by the number of labels: enough updates for few, not more passes than needed for many."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from etude.inference.opening import open_pretrained
from etude.inference.task_model import TaskModel
from etude.runs.task_plan import Plan, task_module
from etude.transfer.few_labels import finetuning_overrides
from etude.transfer.finetune import finetune
from tests.transfer_fixtures import write_reviews


@pytest.mark.parametrize(
    ("examples", "steps", "batch"), [(5, 200, 5), (60, 200, 8), (400, 200, 16), (3000, 282, 32), (50_000, 4688, 32)]
)
def test_updates(base: Callable[[str], Path], examples: int, steps: int, batch: int) -> None:
    overrides = finetuning_overrides(open_pretrained(base("bert")), task_module("classify").Settings(), examples)
    assert (overrides["train.steps"], overrides["train.batch_examples"]) == (steps, batch)
    assert overrides["task.pooling"] == "mean" and overrides["train.lr"] == 1e-3


def test_what_is_given_stays(base: Callable[[str], Path]) -> None:
    bert, gpt = open_pretrained(base("bert")), open_pretrained(base("gpt"))
    settings = task_module("classify").Settings
    assert "task.pooling" not in finetuning_overrides(bert, settings(pooling="max"), 50)
    assert "task.pooling" not in finetuning_overrides(gpt, settings(), 50), "the last token of a causal model"
    assert "task.pooling" not in finetuning_overrides(bert, task_module("tag").Settings(), 50)


def test_twenty_labels_are_learnt(base: Callable[[str], Path], reviews: tuple[Path, Path], tmp_path: Path) -> None:
    few = write_reviews(tmp_path / "few.jsonl", 20, 3)
    overrides = finetuning_overrides(open_pretrained(base("bert")), task_module("classify").Settings(), 20)
    run = finetune(base("bert"), "classify", few, tmp_path / "few", overrides=overrides, quiet=True)
    assert TaskModel.open(run.folder, "cpu").evaluate(reviews[1])["accuracy"].value > 0.85
    assert Plan.read(run.folder).train.steps == 200
