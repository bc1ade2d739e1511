"""Opening a run, or a folder in the published form, as a model with its weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from torch import nn

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


def open_model(source: str | Path, kind: type[Opened], device: str | None = None) -> Opened:
    """Open a run (finished, or its last checkpoint), a folder of transformers, or a hub id as an inference model."""
    device = device or default_device()
    refuse_unfinished_search(Path(source))
    if (Path(source) / RECIPE).is_file():
        run = Run.open(source)
        model, objective, untrained = open_learner(run)
        return kind(model, objective, run.tokenizer, device, untrained)
    imported = read_checkpoint(source)
    model, objective = build_learner(imported.recipe, imported.tokenizer)
    imported.load_into(nn.ModuleDict({"model": model, "objective": objective}))
    return kind(model, objective, imported.tokenizer, device, imported.untrained)


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
