"""Checkpoint averaging: the plain mean of the last weights, and a run that ends with it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

import etude
from etude.errors import UserError
from etude.inference.opening import open_learner
from etude.recipes.schema import Recipe
from etude.runs.task_plan import resolve_settings
from etude.train import checkpoint
from etude.train.averaging import average_checkpoints
from etude.train.settings import Settings
from etude.world import World


def test_the_mean_is_that_of_the_last_checkpoints(tmp_path: Path) -> None:
    torch.manual_seed(0)
    weights = [torch.randn(3, 4) for _ in range(4)]
    for step, weight in enumerate(weights, start=1):
        checkpoint.save(tmp_path, step, {"weights": {"w": weight, "n": torch.tensor(step)}}, {})
    means, steps = average_checkpoints(tmp_path, 3)
    assert steps == [2, 3, 4]
    torch.testing.assert_close(means["w"], torch.stack(weights[1:]).mean(0))
    assert means["w"].dtype == torch.float32 and int(means["n"]) == 4
    assert average_checkpoints(tmp_path, 9)[1] == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="no checkpoint to average"):
        average_checkpoints(tmp_path / "none", 2)


def test_a_run_ends_with_the_mean(tmp_path: Path) -> None:
    World(0).write_pairs(tmp_path / "pairs.tsv", 200)
    etude.prepare(tmp_path / "pairs.tsv", out=tmp_path / "c", tokenizer="bpe:300", pairs="en,ko", valid=0.1)
    settings = {
        "model.layers": 1, "model.width": 16, "model.heads": 2, "train.steps": 6, "train.warmup": 2,
        "train.save_every": 2, "train.eval_every": 0, "train.keep": 3, "train.average": 3,
    }  # fmt: skip
    run = etude.pretrain("transformer-toy", tmp_path / "c", out=tmp_path / "run", settings=settings, quiet=True)
    assert run.steps == [2, 4, 6]
    model, objective, _ = open_learner(run)
    expected, _ = average_checkpoints(run.checkpoints, 3)
    final = {f"model.{name}": value for name, value in model.state_dict().items()}
    final |= {f"objective.{name}": value for name, value in objective.state_dict().items()}
    assert final.keys() == expected.keys()
    for name, value in final.items():
        torch.testing.assert_close(value, expected[name], msg=name)
    last = checkpoint.load(run.checkpoints, 6)[0]["weights"]
    assert any(not torch.equal(value, last[name]) for name, value in final.items())


def test_what_is_averaged_must_be_kept() -> None:
    with pytest.raises(ValidationError, match="and only train"):
        Settings(steps=10, average=3)


def test_a_transfer_refuses_it() -> None:
    recipe = Recipe.load("bert-toy").resolve(vocab=400)
    settings = {"train.average": 2, "train.keep": 2, "train.save_every": 5}
    with pytest.raises(UserError, match="average is of pre-training"):
        resolve_settings("classify", settings, recipe.build_model(), recipe)
