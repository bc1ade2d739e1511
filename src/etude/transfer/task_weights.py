"""The final files of a run that does a task: its plan, model card, config and weights."""

from __future__ import annotations

import json
from pathlib import Path

from torch import nn

from etude.hub import write_tensors
from etude.models.base import Model
from etude.recipes.schema import Recipe
from etude.runs.checksums import remove_checksums, write_checksums
from etude.runs.run import MODEL_CARD, TASK, WEIGHTS
from etude.runs.task_plan import Plan
from etude.tasks.base import Task
from etude.train import checkpoint


def write_task_run(folder: Path, recipe: Recipe, plan: Plan, model: Model, task: Task, card: str) -> None:
    """Write them into a folder that holds recipe and tokenizer; with the weights a run is finished."""
    remove_checksums(folder)
    checkpoint.write_text(folder / TASK, plan.dump())
    checkpoint.write_text(folder / MODEL_CARD, card)
    config = {"model_type": f"etude-{recipe.model_kind}-{plan.kind}", "etude": recipe.model.model_dump(mode="json")}
    checkpoint.write_text(folder / "config.json", json.dumps(config, indent=1))
    weights = nn.ModuleDict({"model": model, "objective": task}).state_dict()
    write_tensors({name: tensor.cpu() for name, tensor in weights.items()}, folder / WEIGHTS)
    write_checksums(folder)
