"""A budget as a number of steps: counted where that is possible, measured by a short trial where not."""

from __future__ import annotations

import torch

from etude.objectives.base import PretrainingObjective, mean_tokens_of
from etude.pretraining.loop import build_rows, check_held_out
from etude.pretraining.trial import measure_speed
from etude.recipes.schema import Recipe
from etude.runs.source import Source
from etude.train import schedule
from etude.train.parallel import Ranks


def fix_budget(
    recipe: Recipe, corpus: Source, objective: PretrainingObjective, device: torch.device, ranks: Ranks
) -> Recipe:
    """Turn the budget (tokens, epochs, FLOPs, minutes) into a number of steps, stored with the run.

    Tokens and epochs are counted; FLOPs and minutes are measured by a short trial of all ranks together.
    """
    settings = recipe.train
    if settings.steps is not None:
        return recipe
    if settings.tokens is not None or settings.epochs is not None:
        rows = build_rows(recipe, corpus, objective)
        mean = mean_tokens_of(rows)
        steps = schedule.total_steps(settings, rows.row_tokens, epoch_rows=len(rows), mean_tokens=mean)
    else:
        check_held_out(recipe, corpus, objective)
        speed = measure_speed(recipe, corpus, device, ranks=ranks)
        steps = schedule.total_steps(
            settings,
            speed.row_tokens,
            speed.flops_per_token,
            tokens_per_second=speed.tokens_per_second,
            epoch_rows=speed.epoch_rows,
            mean_tokens=speed.mean_tokens,
        )
    return recipe.with_settings({"train.steps": steps})
