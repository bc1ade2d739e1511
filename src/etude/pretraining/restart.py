"""Runs whose processes torchrun started again after a fault (`--max-restarts`): the same command goes on with its run.

The folder of the run exists by then, unless the first start failed before it. All processes decide alike: the first one
makes the folder only after all have joined, and by then each has looked.
"""

from __future__ import annotations

import os
from pathlib import Path

from etude.recipes.schema import Recipe
from etude.runs.run import Run
from etude.runs.staging import refuse_existing
from etude.train.settings import BUDGETS


def is_restarted() -> bool:
    """Whether torchrun started this process again, after a fault of an earlier start."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def is_own_run(folder: Path, recipe: Recipe) -> bool:
    """Whether a process that was started again finds the run of the first start; UserError where it is another one."""
    if not is_restarted():
        return False
    if (folder / "recipe.yaml").is_file() and _comparable(Run.open(folder).recipe) == _comparable(recipe):
        return True
    refuse_existing(folder)
    return False


def _comparable(recipe: Recipe) -> tuple[object, ...]:
    """What makes two runs the same but for their budget, which a run stores in steps."""
    train = {name: value for name, value in recipe.train.model_dump().items() if name not in BUDGETS}
    return recipe.tokenizer, recipe.model_kind, recipe.model, recipe.objective_kind, recipe.objective, train
