"""Learned mixes as they are shown: the softmax of the stored weights, under the numbers of the layers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import etude
from etude.cli.main import app
from etude.errors import UserError
from etude.inference.task_model import TaskModel
from etude.runs.run import Run
from etude.transfer.finetune import finetune
from tests.tasks.labelled_records import records
from tests.transfer_fixtures import base

__all__ = ["base"]  # a fixture
Bases = Callable[[str], Path]


def tune(start: Path, task: str, folder: Path, **settings: Any) -> Run:
    file = folder / "train.jsonl"
    file.write_text("".join(json.dumps(item) + "\n" for item in records(task, 24, 0)), encoding="utf-8")
    quick = {"train.steps": 6, "train.batch_examples": 8, "train.lr": 0.05}
    return finetune(start, task, file, folder / "run", overrides=quick | settings, quiet=True)


def test_a_mix_under_the_head(base: Bases, tmp_path: Path) -> None:
    chosen = {"transfer.frozen": True, "transfer.layers": [0, -1], "transfer.combine": "mix", "task.pooling": "mean"}
    run = tune(base("recurrent"), "classify", tmp_path, **chosen)
    (mix,) = etude.show.mix(run.folder)
    learned = TaskModel.open(run.folder, "cpu").task.mix
    odds = [math.exp(value) for value in learned.weights.tolist()]
    assert mix.weights == pytest.approx([value / sum(odds) for value in odds]) and mix.gamma == float(learned.gamma)
    assert mix.weights[0] != pytest.approx(0.5, abs=1e-4) and mix.place == "under the head"
    last = TaskModel.open(run.folder, "cpu").model.base.state_count - 1
    assert mix.layers == [0, last]
    shown = CliRunner().invoke(app, ["show", "mix", str(run.folder)]).stdout
    assert f"gamma {mix.gamma:.3f}" in shown and f"layer {last}" in shown and f"{mix.weights[0]:.3f} █" in shown
    assert json.loads(CliRunner().invoke(app, ["show", "mix", str(run.folder), "--json"]).stdout) == mix.json()


def test_the_mixes_of_a_tagger(base: Bases, tmp_path: Path) -> None:
    """ELMo at the input and behind the last biLSTM: each place has weights of its own."""
    network = {"task.network.mix": True, "task.network.states": ["input", "last"], "task.network.words": 8}
    run = tune(base("recurrent"), "tag", tmp_path, **network, **{"transfer.frozen": True, "transfer.layers": "all"})
    tuned = TaskModel.open(run.folder, "cpu")
    mixes = etude.show.mix(tuned)
    assert [mix.place for mix in mixes] == ["at the input", "behind the last biLSTM"]
    assert all(mix.layers == list(range(tuned.model.base.state_count)) for mix in mixes)
    assert all(torch.tensor(mix.weights).sum() == pytest.approx(1, abs=1e-6) for mix in mixes)


def test_a_run_without_one(base: Bases, tmp_path: Path) -> None:
    run = tune(base("recurrent"), "classify", tmp_path)
    with pytest.raises(UserError, match=r"mixes no layers.*transfer\.combine=mix"):
        etude.show.mix(run.folder)
