"""A budget as a number of steps: counted where that is possible, measured by a short trial where not."""

from __future__ import annotations

import logging

import torch

from etude.errors import UserError
from etude.objectives.base import PretrainingObjective, mean_tokens_of
from etude.pretraining.loop import build_rows, check_held_out
from etude.pretraining.trial import Speed, measure_speed, shorten_steps, step_tokens
from etude.recipes.document import recipe_names
from etude.recipes.schema import Recipe
from etude.runs.source import Source
from etude.train import schedule
from etude.train.parallel import Ranks
from etude.train.settings import Settings

TRIAL_SHARE = 0.1  # of a budget of minutes that measuring may take
TRIAL_STEPS = 3  # that a trial takes at least
GLANCE = 0.2  # seconds of a trial that only says whether there is time for another
FEW_STEPS = 10
log = logging.getLogger("etude")


def fix_budget(
    recipe: Recipe, corpus: Source, objective: PretrainingObjective, device: torch.device, ranks: Ranks
) -> Recipe:
    """Turn the budget (tokens, epochs, FLOPs, minutes) into a number of steps, stored with the run.

    Tokens and epochs are counted; FLOPs and minutes are measured by a short trial of all ranks together.
    """
    settings = recipe.train
    if settings.steps is not None:
        return recipe
    short = None
    if settings.tokens is not None or settings.epochs is not None:
        rows = build_rows(recipe, corpus, objective)
        mean = mean_tokens_of(rows)
        steps = schedule.total_steps(settings, rows.row_tokens, epoch_rows=len(rows), mean_tokens=mean)
    else:
        check_held_out(recipe, corpus, objective)
        speed = _measure(recipe, corpus, objective, device, ranks)
        steps = schedule.total_steps(
            settings,
            speed.row_tokens,
            speed.flops_per_token,
            tokens_per_second=speed.tokens_per_second,
            epoch_rows=speed.epoch_rows,
            mean_tokens=speed.mean_tokens,
        )
        short = find_short_budget(recipe, speed, steps, device)
        is_over = settings.minutes is not None and _first_step_seconds(recipe, speed) > 60 * settings.minutes
        if ranks.any(is_over) and short is not None:
            raise UserError(short)
    if short is not None and ranks.is_first:
        log.warning("%s", short)
    return recipe.with_settings({"train.steps": steps})


def trial_limit(settings: Settings, device: torch.device) -> float | None:
    """Return the seconds that measuring on a CPU may take: a share of a budget of minutes, beside which it comes."""
    return None if settings.minutes is None or device.type != "cpu" else TRIAL_SHARE * 60 * settings.minutes


def _measure(
    recipe: Recipe, corpus: Source, objective: PretrainingObjective, device: torch.device, ranks: Ranks
) -> Speed:
    """Measure steps of a recipe, or smaller ones where some of its own would take much of a budget of minutes."""
    limit = trial_limit(recipe.train, device)
    shortened = recipe
    if limit is not None:
        shortened = shorten_steps(recipe, device, build_rows(recipe, corpus, objective).row_tokens)
    if shortened is not recipe:
        speed = measure_speed(shortened, corpus, device, seconds=GLANCE, ranks=ranks, limit=limit)
        speed = speed.with_step(step_tokens(recipe, speed))
        if ranks.any(TRIAL_STEPS * speed.seconds_per_step > (limit or 0)):
            return speed
    return measure_speed(recipe, corpus, device, ranks=ranks, limit=limit)


def _first_step_seconds(recipe: Recipe, speed: Speed) -> float:
    rows = schedule.rows_before(recipe.train, speed.row_tokens or None, 1)
    return rows * (speed.mean_tokens if speed.row_tokens else 1) / speed.tokens_per_second


def _round_seconds(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:,.0f} s"


def find_short_budget(recipe: Recipe, speed: Speed, steps: int, device: torch.device) -> str | None:
    """Return what to do where a budget of minutes is not enough for a step, or for a few; None where it is."""
    settings = recipe.train
    if settings.minutes is None or steps >= FEW_STEPS:
        return None
    seconds = _first_step_seconds(recipe, speed)
    size = f"{schedule.rows_before(settings, speed.row_tokens or None, 1) * (speed.row_tokens or 1):,} tokens"
    remedy = "Give it more minutes, or take a smaller train.batch_tokens or a smaller model"
    if device.type == "cpu" and (for_cpu := f"{recipe.name}-cpu") in recipe_names():
        remedy += f"; for a CPU there is the recipe {for_cpu}"
    if seconds > 60 * settings.minutes:
        length = _round_seconds(seconds)
        problem = f"One step of {size} takes about {length} here, longer than train.minutes={settings.minutes:g}"
    else:
        count = "one step" if steps == 1 else f"{steps} steps"
        problem = f"train.minutes={settings.minutes:g} is enough for {count} of {size}, in which nothing is learnt"
    return f"{problem}. {remedy}."
