"""Budgets: one amount of compute for every contender, turned into its number of training steps.

FLOPs per token come from the objective, counted over the first training batches, so they include generator and
discriminator, both towers, and heads only where they run. No contender reads the text more than `epochs` times. Models
that update themselves (word vectors) cost so few FLOPs that equal FLOPs would mean hundreds of epochs: they get the
average wall-clock time of the other contenders, and the budget itself where there are no others. Speeds are measured
once and saved with the study, so that a study that was killed resumes with the same plan.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from typing_extensions import TypedDict  # that of Python 3.11 cannot be checked

from etude.errors import UserError
from etude.objectives.base import Objective
from etude.pretraining.loop import build_rows
from etude.pretraining.trial import measure_speed
from etude.recipes.model_memory import shapes_only
from etude.recipes.schema import Recipe
from etude.recipes.size import synthetic_corpus
from etude.settings import read_json
from etude.study.teachers import attach_weightless_teacher
from etude.study.text_source import hash_json
from etude.text.corpus.corpus import Corpus
from etude.text.tokenizer.special_tokens import TRAINED_SPECIALS
from etude.train import checkpoint, peak, schedule
from etude.train.device import resolve_device
from etude.train.loader import Loader

SAMPLE_STEPS = 16  # steps whose FLOPs are counted: batches differ by about 1 % in what is predicted
GPU_FLOPS = 5e13  # a second, assumed of a small model on a GPU until cells were measured: a trial would first compile
TRIAL_SECONDS = 1.0  # seconds of a measurement of speed
UNITS = {"s": ("minutes", 1 / 60), "m": ("minutes", 1.0), "min": ("minutes", 1.0), "h": ("minutes", 60.0),
         "": ("flops", 1.0), "flops": ("flops", 1.0), "tokens": ("tokens", 1.0), "tok": ("tokens", 1.0)}  # fmt: skip
FREE = {"lr", "warmup", "betas", "workers", "device", "precision"}  # settings that change no FLOPs
_COSTS: dict[str, Cost] = {}  # counted in this process: studies of one queue have contenders in common
PLACEHOLDER_WORDS = 4_000  # of the synthetic text that stands in for a corpus that is not prepared


@dataclass(frozen=True)
class Cost:
    flops_per_token: float
    row_tokens: int
    epoch_tokens: int  # of one pass over the text
    parameters: int
    head_parameters: int  # thrown away after pre-training
    updates_itself: bool  # word vectors: no gradients, hardly any FLOPs


def compute_cost(recipe: Recipe, corpus: Corpus, teacher: Recipe | None = None) -> Cost:
    """Compute the cost of a resolved recipe on a corpus, of a student with what its teacher reads.

    Deterministic, so that replanning gives the same plan.
    """
    parts = [
        recipe.model_kind, recipe.model.model_dump(mode="json"), recipe.objective_kind,
        recipe.objective.model_dump(mode="json"), recipe.train.model_dump(mode="json", exclude=FREE),
    ]  # fmt: skip
    if teacher is not None:
        parts += [teacher.model_kind, teacher.model.model_dump(mode="json"), teacher.objective_kind]
    key = hash_json([corpus.fingerprint, parts])
    if key not in _COSTS:
        _COSTS[key] = _count_cost(recipe, corpus, teacher)
    return _COSTS[key]


def _count_cost(recipe: Recipe, corpus: Corpus, teacher: Recipe | None) -> Cost:
    with shapes_only():
        model = recipe.build_model()
        objective = recipe.build_objective(model, corpus.tokenizer.special)
        if teacher is not None:
            attach_weightless_teacher(model, objective, teacher, corpus.tokenizer.special)
    settings = recipe.train
    rows = build_rows(recipe, corpus, objective)
    rows_per_step = schedule.full_rows(settings, rows.row_tokens)
    loader = Loader(
        objective, rows, seed=settings.seed, batch_rows=lambda _: rows_per_step,
        rows_before=lambda step: step * rows_per_step, micro_tokens=settings.micro_tokens, workers=0,
    )  # fmt: skip
    flops, tokens = 0, 0
    for step in range(SAMPLE_STEPS):
        for batch in loader.step(step).batches:
            flops, tokens = flops + objective.flops(model, batch), tokens + batch.size
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Cost(
        flops_per_token=flops / tokens,
        row_tokens=rows.row_tokens or 1,
        epoch_tokens=len(rows) * (rows.row_tokens or 1),
        parameters=parameters,
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
    budget_tokens: float  # what the budget is enough for; steps are whole, and one at least


def compute_length(
    recipe: Recipe, cost: Cost, kind: str, amount: float, epochs: float, speed: float | None
) -> TrainingLength:
    """Compute how long a contender trains under a budget; a budget of minutes needs `speed` in tokens per second."""
    if kind == "minutes":
        assert speed is not None
        tokens = amount * 60 * speed
    else:
        tokens = amount / cost.flops_per_token if kind == "flops" else amount
    max_tokens = epochs * cost.epoch_tokens
    capped = tokens > max_tokens
    # the ramp of a growing batch is stretched with the run (`stretch_schedule`), so sizes are counted after that
    settings = _scale_batch_ramp(recipe, min(tokens, max_tokens)).train
    target_tokens = min(tokens, max_tokens)

    def tokens_after(steps: int) -> int:
        return schedule.rows_before(settings, cost.row_tokens, steps) * cost.row_tokens

    steps = max(1, schedule.steps_within(settings, cost.row_tokens, int(target_tokens) // cost.row_tokens))
    # the nearest step, not the last that fits: those with large steps would all get less
    if not capped and tokens_after(steps + 1) - target_tokens < target_tokens - tokens_after(steps):
        steps += 1
    tokens_read = tokens_after(steps)
    return TrainingLength(
        steps,
        tokens_read,
        tokens_read * cost.flops_per_token,
        tokens_read / cost.epoch_tokens,
        capped,
        kind == "minutes" and cost.updates_itself,
        tokens,
    )


def stretch_schedule(recipe: Recipe, cost: Cost, length: TrainingLength, curve: int) -> Recipe:
    """Fit a recipe's schedule to a new length, keeping its shape.

    Warm-up in steps and the ramp of a growing batch keep their fraction of the run.
    """
    settings = recipe.train
    changes: dict[str, Any] = {"train.steps": length.steps}
    if settings.warmup >= 1:
        recipe_steps = _recipe_steps(recipe, cost)
        changes["train.warmup"] = min(0.5, settings.warmup / recipe_steps) if recipe_steps else 0.1
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
    recipe_tokens = recipe.train.tokens or ((recipe.train.steps or 0) * recipe.train.batch_tokens)
    share = min(0.5, ramp.over_tokens / recipe_tokens) if recipe_tokens else 0.1
    return recipe.with_settings({"train.batch_ramp.over_tokens": max(1, int(share * tokens))})


# --- the machine ------------------------------------------------------------------------------------


class MachineFacts(TypedDict):
    """What `machine.json` of a study holds."""

    device: str
    precision: str
    torch: str  # its version: cells of another one are other cells
    speeds: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]]


class Machine:
    """Device, precision, version of torch and measured speeds, saved in a file beside a study.

    Where nothing is run (`report_only`) they are those of the file, so that cells of another machine are found again.
    Speeds are measured with the threads that a cell has: where others share the cores, threads that wait for each other
    are ten times as slow as one.
    """

    def __init__(
        self, path: Path | None, device: str | None = None, report_only: bool = False, threads: int | None = None
    ) -> None:
        self.path, self.threads = path, threads or torch.get_num_threads()
        saved: dict[str, Any] = {}
        if path is not None and path.is_file():
            saved = dict(read_json(path, MachineFacts, "Remove it: the machine is then measured again."))
        self.device: str = device or saved.get("device") or ("cuda" if torch.cuda.is_available() else "cpu")
        if saved.get("device") != self.device:
            saved = {}
        self.precision: str = saved.get("precision") or peak.resolve_precision("auto", self.device)
        self.torch_version: str = (saved.get("torch") if report_only else None) or torch.__version__
        self.speeds: dict[str, float] = saved.get("speeds", {})

    def fit_recipe(self, recipe: Recipe) -> Recipe:
        """Set the device and precision of this machine where the recipe names none."""
        changes: dict[str, Any] = {}
        if recipe.train.device is None:
            changes["train.device"] = self.device
        if recipe.train.precision == "auto":
            changes["train.precision"] = self.precision
        return recipe.with_settings(changes) if changes else recipe

    def tokens_per_second(self, recipe: Recipe, corpus: Corpus | None) -> float:
        """Measure tokens per second in a short trial; on synthetic text where there is no corpus yet."""
        shape = recipe.with_settings({"train.steps": 1_000, "train.seed": 0})
        key = hash_json([shape.dump(), corpus is None, self.threads])
        if key not in self.speeds:
            text = corpus or make_placeholder_corpus(recipe)
            device = resolve_device(recipe.train.device)
            with _limited_threads(self.threads):
                self.speeds[key] = measure_speed(shape, text, device, seconds=TRIAL_SECONDS).tokens_per_second
            self.save()
        return self.speeds[key]

    def save(self) -> None:
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            facts = MachineFacts(
                device=self.device, precision=self.precision, torch=self.torch_version, speeds=self.speeds
            )
            checkpoint.write_text(self.path, json.dumps(facts, indent=1))


@contextlib.contextmanager
def _limited_threads(count: int) -> Iterator[None]:
    """Compute with so many threads, as a worker process does."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def make_placeholder_corpus(recipe: Recipe) -> Corpus:
    vocab = recipe.model.vocab or PLACEHOLDER_WORDS
    tokens = max(2 * (getattr(recipe.objective, "row_tokens", None) or 0), 2_000)
    return synthetic_corpus(tokens, min(PLACEHOLDER_WORDS, vocab - len(TRAINED_SPECIALS)), recipe.reads_entities)


def parse_budget(budget: str) -> dict[str, float]:
    """Parse a budget: `10m` becomes {"minutes": 10}."""
    match = re.fullmatch(r"((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?)\s*([a-z]*)", budget.strip().lower())
    if not match or match[2] not in UNITS:
        raise UserError(f"--budget {budget}: write a time (90s, 10m, 2h), FLOPs (1e12) or tokens (5e6tokens).")
    kind, factor = UNITS[match[2]]
    return {kind: float(match[1]) * factor}
