"""One budget for everybody, turned into each contender's number of steps; and what a step costs and takes here.

FLOPs a token come from the objective itself over the first batches it will train on, so they hold generator and
discriminator, both towers, heads only where they run. No contender reads the text more than `epochs` times. Models that
update themselves (word vectors) cost so few FLOPs that equal FLOPs would mean hundreds of passes: they get the
wall-clock time that the others take on average. Speeds are measured once and kept with the study, so that a study
that was killed goes on with the same plan.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from etude.errors import UserError
from etude.objectives.base import Objective
from etude.pretraining.setup import build_rows
from etude.pretraining.trial import measure_speed
from etude.recipes.schema import Recipe
from etude.recipes.size import synthetic_corpus
from etude.study.text_source import hash_json
from etude.text.corpus.corpus import Corpus
from etude.text.tokenizer.special_tokens import TRAINED_SPECIALS
from etude.train import checkpoint, peak, schedule
from etude.train.device import resolve_device
from etude.train.loader import Loader

SAMPLE_STEPS = 16  # steps whose FLOPs are counted: batches differ by about 1 % in what is predicted
TRIAL_SECONDS = 1.0  # seconds of a measurement of speed
UNITS = {"s": ("minutes", 1 / 60), "m": ("minutes", 1.0), "min": ("minutes", 1.0), "h": ("minutes", 60.0),
         "": ("flops", 1.0), "flops": ("flops", 1.0), "tokens": ("tokens", 1.0), "tok": ("tokens", 1.0)}  # fmt: skip
PLACEHOLDER_WORDS = 4_000  # of the made-up text, where the real one is not there yet


@dataclass(frozen=True)
class Cost:
    flops_per_token: float
    row_tokens: int
    epoch_tokens: int  # of one pass over the text
    parameters: int
    head_parameters: int  # thrown away after pre-training
    updates_itself: bool  # word vectors: no gradients, hardly any FLOPs


def compute_cost(recipe: Recipe, corpus: Corpus) -> Cost:
    """What a resolved recipe costs on a corpus: a pure function, so that a plan made again is the same plan."""
    with torch.device("meta"):
        model = recipe.build_model()
        objective = recipe.build_objective(model, corpus.tokenizer.special)
    settings = recipe.train
    rows = build_rows(recipe, corpus, objective)
    full = schedule.full_rows(settings, rows.row_tokens)
    loader = Loader(
        objective, rows, seed=settings.seed, batch_rows=lambda _: full, rows_before=lambda step: step * full,
        micro_tokens=settings.micro_tokens, workers=0,
    )  # fmt: skip
    flops, tokens = 0, 0
    for number in range(SAMPLE_STEPS):
        for batch in loader.step(number).batches:
            flops, tokens = flops + objective.flops(model, batch), tokens + batch.size
    own = sum(parameter.numel() for parameter in model.parameters())
    return Cost(
        flops_per_token=flops / tokens,
        row_tokens=rows.row_tokens or 1,
        epoch_tokens=len(rows) * (rows.row_tokens or 1),
        parameters=own,
        head_parameters=_count_parameters(objective),
        updates_itself=objective.updates_itself,
    )


def _count_parameters(objective: Objective) -> int:
    return sum(parameter.numel() for parameter in objective.parameters())


@dataclass(frozen=True)
class TrainingLength:
    """How long a contender trains."""

    steps: int
    tokens: int
    flops: float
    epochs: float
    capped: bool  # by the number of passes over the text
    by_clock: bool  # word vectors among others: wall-clock in place of the budget


def compute_length(
    recipe: Recipe, cost: Cost, kind: str, amount: float, epochs: float, speed: float | None
) -> TrainingLength:
    """Steps under a budget; `speed` in tokens a second where the budget is one of time."""
    if kind == "minutes":
        assert speed is not None
        tokens = amount * 60 * speed
    else:
        tokens = amount / cost.flops_per_token if kind == "flops" else amount
    most = epochs * cost.epoch_tokens
    capped = tokens > most
    # the ramp of a growing batch is stretched with the run (`stretched`), so sizes are counted after that
    settings = _scale_batch_ramp(recipe, min(tokens, most)).train
    wanted = min(tokens, most)

    def read_after(steps: int) -> int:
        return schedule.rows_before(settings, cost.row_tokens, steps) * cost.row_tokens

    steps = max(1, schedule.steps_within(settings, cost.row_tokens, int(wanted) // cost.row_tokens))
    # the nearest step, not the last that fits: those with large steps would all get less
    if not capped and read_after(steps + 1) - wanted < wanted - read_after(steps):
        steps += 1
    read = read_after(steps)
    return TrainingLength(
        steps,
        read,
        read * cost.flops_per_token,
        read / cost.epoch_tokens,
        capped,
        kind == "minutes" and cost.updates_itself,
    )


def stretch_schedule(recipe: Recipe, cost: Cost, length: TrainingLength, curve: int) -> Recipe:
    """The recipe for so many steps: its schedule keeps its shape, whatever length it was written for.

    Warm-up in steps becomes the share it was of the recipe's own run, a growing batch grows over the same share.
    """
    settings = recipe.train
    changes: dict[str, Any] = {"train.steps": length.steps}
    if settings.warmup >= 1:
        own = _recipe_steps(recipe, cost)
        changes["train.warmup"] = min(0.5, settings.warmup / own) if own else 0.1
    changes["train.eval_every"] = max(1, -(-length.steps // curve))
    changes["train.save_every"] = max(1, min(settings.save_every or length.steps, -(-length.steps // 8)))
    return _scale_batch_ramp(recipe, length.tokens).with_settings(changes)


def _recipe_steps(recipe: Recipe, cost: Cost) -> int | None:
    if recipe.train.minutes is not None or recipe.train.epochs is not None:
        return None
    return schedule.total_steps(recipe.train, cost.row_tokens, cost.flops_per_token)


def _scale_batch_ramp(recipe: Recipe, tokens: float) -> Recipe:
    ramp = recipe.train.batch_ramp
    if ramp is None:
        return recipe
    own = recipe.train.tokens or ((recipe.train.steps or 0) * recipe.train.batch_tokens)
    share = min(0.5, ramp.over_tokens / own) if own else 0.1
    return recipe.with_settings({"train.batch_ramp.over_tokens": max(1, int(share * tokens))})


# --- the machine ------------------------------------------------------------------------------------


class Machine:
    """Device, precision and speeds, measured once and kept in a file."""

    def __init__(self, path: Path | None, device: str | None = None) -> None:
        self.path = path
        known: dict[str, Any] = {}
        if path is not None and path.is_file():
            known = json.loads(path.read_text(encoding="utf-8"))
        self.device: str = device or known.get("device") or ("cuda" if torch.cuda.is_available() else "cpu")
        if known.get("device") != self.device:
            known = {}
        self.precision: str = known.get("precision") or peak.resolve_precision("auto", self.device)
        self.speeds: dict[str, float] = known.get("speeds", {})

    def fit_recipe(self, recipe: Recipe) -> Recipe:
        """With the device and the precision of this machine, unless the recipe names its own."""
        changes: dict[str, Any] = {}
        if recipe.train.device is None:
            changes["train.device"] = self.device
        if recipe.train.precision == "auto":
            changes["train.precision"] = self.precision
        return recipe.with_settings(changes) if changes else recipe

    def tokens_per_second(self, recipe: Recipe, corpus: Corpus | None) -> float:
        """Tokens a second, by a short trial; of a made-up text where there is no corpus yet."""
        shape = recipe.with_settings({"train.steps": 1_000, "train.seed": 0})
        key = hash_json([shape.dump(), corpus is None, torch.get_num_threads()])
        if key not in self.speeds:
            text = corpus or make_placeholder_corpus(recipe)
            device = resolve_device(recipe.train.device)
            self.speeds[key] = measure_speed(shape, text, device, seconds=TRIAL_SECONDS).tokens_per_second
            self.save()
        return self.speeds[key]

    def save(self) -> None:
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            facts = {"device": self.device, "precision": self.precision, "speeds": self.speeds}
            checkpoint.write_text(self.path, json.dumps(facts, indent=1))


def make_placeholder_corpus(recipe: Recipe) -> Corpus:
    vocab = recipe.model.vocab or PLACEHOLDER_WORDS
    tokens = max(2 * (getattr(recipe.objective, "row_tokens", None) or 0), 2_000)
    return synthetic_corpus(tokens, words=min(PLACEHOLDER_WORDS, vocab - len(TRAINED_SPECIALS)))


def resolve_minutes(seconds: Callable[[], list[float]], amount: float, kind: str) -> float:
    """The minutes a model that updates itself may take: what the others take on average, or the budget of time."""
    if kind == "minutes":
        return amount
    others = seconds()
    return fmean(others) / 60 if others else amount


def parse_budget(budget: str) -> dict[str, float]:
    """`10m` as {"minutes": 10}."""
    found = re.fullmatch(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*([a-z]*)", budget.strip().lower())
    if not found or found[2] not in UNITS:
        raise UserError(f"--budget {budget}: write a time (90s, 10m, 2h), FLOPs (1e12) or tokens (5e6tokens).")
    kind, factor = UNITS[found[2]]
    return {kind: float(found[1]) * factor}
