"""Opening a run, or a folder in the published form, as a model with its weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import torch
from torch import nn

from etude.errors import UserError
from etude.hub import read_checkpoint
from etude.hub.run_weights import load_learner
from etude.inference.base import InferenceModel
from etude.inference.task_model import TaskModel
from etude.models.base import Model
from etude.objectives.base import UsableObjective
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.runs.run import RECIPE, Run, refuse_unfinished_search
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.train import checkpoint
from etude.train.device import default_device

Opened = TypeVar("Opened", bound=InferenceModel)
Dtype = Literal["float32", "bfloat16", "float16"]
DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Pretrained:
    """A model to start from: what a transfer needs of it."""

    folder: str
    recipe: Recipe
    tokenizer: Tokenizer
    model: Model


def open_learner(run: Run) -> tuple[Model, UsableObjective, frozenset[str]]:
    """Return model, objective and the names of untrained tensors; of a fine-tuned run, the objective is its task."""
    if not run.is_fine_tuned:
        return load_learner(run)
    tuned = TaskModel.open(run.folder, device="cpu")
    return *tuned.task.as_learner(tuned.model), frozenset()


def open_model(source: str | Path, kind: type[Opened], device: str | None = None, dtype: Dtype | None = None) -> Opened:
    """Open a run (finished, or its last checkpoint), a folder of transformers, or a hub id as an inference model.

    `dtype`: of the weights, and so of all that is computed except logits and long sums; float32 if None.
    """
    if dtype is not None and dtype not in DTYPES:
        raise UserError(f"dtype is one of {', '.join(DTYPES)}, not '{dtype}'.")
    device = device or default_device()
    refuse_unfinished_search(Path(source))
    if (Path(source) / RECIPE).is_file():
        run = Run.open(source)
        model, objective, untrained = open_learner(run)
        _convert(model, objective, dtype)
        return kind(model, objective, run.tokenizer, device, untrained)
    imported = read_checkpoint(source)
    model, objective = build_learner(imported.recipe, imported.tokenizer)
    imported.load_into(nn.ModuleDict({"model": model, "objective": objective}))
    _convert(model, objective, dtype)
    return kind(model, objective, imported.tokenizer, device, imported.untrained)


def _convert(model: nn.Module, objective: nn.Module, dtype: Dtype | None) -> None:
    if dtype is not None:
        model.to(DTYPES[dtype])
        objective.to(DTYPES[dtype])


def open_pretrained(source: str | Path) -> Pretrained:
    """Open a run of ours, or a folder in the published form, without its heads."""
    folder = Path(source)
    refuse_unfinished_search(folder)
    if not (folder / RECIPE).is_file() and (folder / "config.json").is_file():
        imported = read_checkpoint(folder)
        model = imported.recipe.build_model()
        weights = {
            name.removeprefix("model."): tensor
            for name, tensor in imported.tensors.items()
            if name.startswith("model.")
        }
        checkpoint.load_strictly(model, weights, str(folder))
        return Pretrained(str(folder.resolve()), imported.recipe, imported.tokenizer, model)
    run = Run.open(folder)
    model, _, _ = open_learner(run)
    return Pretrained(str(run.folder.resolve()), run.recipe, run.tokenizer, model.base)
