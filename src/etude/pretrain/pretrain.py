"""`etude pretrain`: a recipe and a corpus become a Run. And the short trial that tells its speed beforehand."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from etude.errors import UserError
from etude.objectives.base import Objective, Rows
from etude.pretrain import distill as distilling
from etude.recipes.document import Overrides, from_overrides
from etude.recipes.schema import Recipe
from etude.runs.model_card import model_card
from etude.runs.run import Run, fresh, refuse_existing
from etude.text.corpus.corpus import Corpus
from etude.train import memory, peak, schedule
from etude.train.loop import Loop
from etude.train.parallel import Ranks, connect
from etude.train.progress import Progress

Learner = tuple[nn.Module, Objective]


def pretrain(
    recipe: str | Path | Recipe,
    corpus: str | Path | Corpus,
    out: str | Path,
    *,
    quiet: bool = False,
    overrides: Overrides = (),
) -> Run:
    """Pre-trains `recipe` on `corpus` into the folder `out`; `overrides` as {"train.steps": 1000}.

    Stopped by SIGTERM or Ctrl-C it leaves a checkpoint and returns an unfinished run; `resume` goes on.
    """
    corpus = corpus if isinstance(corpus, Corpus) else Corpus.open(corpus)
    refuse_existing(Path(out))
    resolved = resolve(recipe, corpus, overrides)
    device = device_of(resolved)
    with connect(device.type == "cuda") as ranks:
        resolved = fix_budget(resolved, corpus, device)
        run = Run.create(out, resolved, corpus) if ranks.is_first else Run(Path(out))
        ranks.barrier()
        return _begun(run, corpus, device, ranks, quiet)


def _begun(
    run: Run, corpus: Corpus, device: torch.device, ranks: Ranks, quiet: bool, made: Learner | None = None
) -> Run:
    """Trains a new run; what stops it before its first step leaves nothing behind."""
    try:
        return _train(run, corpus, device, ranks, quiet, made)
    except UserError:
        if ranks.is_first and _untouched(run.folder):
            shutil.rmtree(run.folder)
        raise


def distill(
    recipe: str | Path | Recipe,
    corpus: str | Path | Corpus,
    out: str | Path,
    *,
    teacher: str | Path,
    quiet: bool = False,
    overrides: Overrides = (),
) -> Run:
    """The same with a teacher, a run of a masked model; `overrides` may hold `distill.temperature` and its kind."""
    corpus = corpus if isinstance(corpus, Corpus) else Corpus.open(corpus)
    refuse_existing(Path(out))
    resolved = distilling.with_ways(resolve(recipe, corpus, overrides, taught=True))
    if resolved.train.steps is None and resolved.train.tokens is None and resolved.train.epochs is None:
        raise UserError("The budget of a distillation is in steps, tokens or epochs: set train.steps.")
    device = device_of(resolved)
    with connect(device.type == "cuda") as ranks:
        resolved = fix_budget(resolved, corpus, device)
        made, files = distilling.begun(teacher, corpus, resolved)
        run = Run.create(out, resolved, corpus, files) if ranks.is_first else Run(Path(out))
        ranks.barrier()
        return _begun(run, corpus, device, ranks, quiet, made)


def _untouched(folder: Path) -> bool:
    """Whether a run never came to a step: no checkpoint, no line of metrics. What stopped it leaves nothing behind."""
    metrics = folder / "metrics.jsonl"
    return not any((folder / "checkpoints").glob("*")) and not (metrics.is_file() and metrics.stat().st_size)


def resume(run: str | Path | Run, *, corpus: str | Path | None = None, quiet: bool = False) -> Run:
    """Goes on from the last complete checkpoint, or from step 0 where there is none."""
    run = run if isinstance(run, Run) else Run.open(run)
    if run.finished:
        return run
    device = device_of(run.recipe)
    with connect(device.type == "cuda") as ranks:
        return _train(run, run.corpus(corpus), device, ranks, quiet)


def _train(
    run: Run, corpus: Corpus, device: torch.device, ranks: Ranks, quiet: bool, made: Learner | None = None
) -> Run:
    """`made`: model and objective with their first weights, where they are there already."""
    recipe = run.recipe
    settings = recipe.train
    make_deterministic(settings.deterministic)
    taught = run.taught
    if made is None:
        made = distilling.resumed(run, corpus) if taught else fresh(recipe, corpus.tokenizer)
    model, objective = made
    rows = checked_rows(recipe, corpus, objective.rows(corpus, settings.seed))
    valid = held_out(corpus)
    assert settings.steps is not None  # fix_budget stored it
    quiet = quiet or not ranks.is_first
    best = None if quiet else peak.measure_peak(device, peak.resolve_precision(settings.precision, device)) * ranks.size
    with Progress(settings.steps, quiet=quiet, peak=best, memory=lambda: memory.bytes_in_use(device)) as progress:
        loop = Loop(
            run.folder,
            model,
            objective,
            rows,
            settings,
            total=settings.steps,
            valid_rows=objective.rows(valid, settings.seed) if valid else None,
            tokens_per_byte=objective.tokens_per_byte(valid) if valid else None,
            device=device,
            ranks=ranks,
            progress=progress,
        )
        outcome = loop.run()
    if outcome.finished and ranks.is_first:
        card = model_card(run, corpus, outcome, distilling.told(run) if taught else None)
        run.finish(model.cpu(), objective.cpu(), card)
    ranks.barrier()
    return run


# --- what is settled before a run starts ------------------------------------------------------------


def resolve(recipe: str | Path | Recipe, corpus: Corpus, overrides: Overrides, taught: bool = False) -> Recipe:
    """The complete recipe for this corpus and this machine; `taught`: with a teacher."""
    if not taught and "distill" in from_overrides(overrides).values:
        raise UserError(
            "distill.* says how a teacher teaches, and there is none: use 'etude distill', or leave it out."
        )
    loaded = recipe.with_settings(overrides) if isinstance(recipe, Recipe) else Recipe.load(recipe, overrides)
    resolved = loaded.resolve(vocab=corpus.tokenizer.vocab)
    settings = resolved.train
    changes: dict[str, Any] = {}
    if settings.device is None:
        changes["train.device"] = "cuda" if torch.cuda.is_available() else "cpu"
    device = settings.device or changes["train.device"]
    if settings.precision == "auto":
        changes["train.precision"] = peak.resolve_precision("auto", device)
    return resolved.with_settings(changes) if changes else resolved


def device_of(recipe: Recipe) -> torch.device:
    name = recipe.train.device or "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserError("This run wants a CUDA device and there is none here. Set train.device=cpu.")
    return torch.device(name)


def fix_budget(recipe: Recipe, corpus: Corpus, device: torch.device) -> Recipe:
    """Turns the budget (tokens, FLOPs, minutes) into a number of steps, stored with the run."""
    if recipe.train.steps is not None:
        return recipe
    if recipe.train.tokens is not None or recipe.train.epochs is not None:  # counted: no trial, nothing compiled twice
        _, objective = fresh(recipe, corpus.tokenizer)
        rows = checked_rows(recipe, corpus, objective.rows(corpus, recipe.train.seed))
        return recipe.with_settings(
            {"train.steps": schedule.total_steps(recipe.train, rows.row_tokens, epoch_rows=len(rows))}
        )
    speed = trial(recipe, corpus, device)
    steps = schedule.total_steps(
        recipe.train, speed.row_tokens, speed.flops_per_token, tokens_per_second=speed.tokens_per_second,
        epoch_rows=speed.epoch_rows,
    )  # fmt: skip
    return recipe.with_settings({"train.steps": steps})


def checked_rows(recipe: Recipe, corpus: Corpus, rows: Rows) -> Rows:
    if len(rows) == 0:
        raise UserError(
            f"{corpus.folder} holds {corpus.total:,} tokens: not enough for one row of {rows.row_tokens} tokens. "
            "Prepare more text, or choose a smaller model.context and objective.row_tokens."
        )
    return rows


def held_out(corpus: Corpus) -> Corpus | None:
    """The part that is never trained on, where the corpus has one."""
    part = corpus.manifest["parts"].get("valid")
    return Corpus.open(corpus.folder, split="valid") if part and part["tokens"] else None


def make_deterministic(wanted: bool) -> None:
    if wanted:
        import os

        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS needs it to repeat its sums
        torch.use_deterministic_algorithms(True)


WARM = 5  # steps after the first before a compiled loop runs at speed: graphs are recorded at the second and third


# --- the trial --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Speed:
    tokens_per_second: float
    seconds_per_step: float
    flops_per_token: float
    row_tokens: int
    epoch_rows: int  # of one pass over the corpus
    loss: float  # at the start: near log(vocabulary) where all is well
    started: float  # seconds until steps ran at speed: compilation, recording, first touches
    waited: float  # the share of the time that was spent on waiting for batches


def trial(recipe: Recipe, corpus: Corpus, device: torch.device, seconds: float = 2.0) -> Speed:
    """A few real steps on a throw-away copy: what the run will cost, measured."""
    settings = recipe.train
    model, objective = fresh(recipe, corpus.tokenizer)
    rows = checked_rows(recipe, corpus, objective.rows(corpus, settings.seed))
    with tempfile.TemporaryDirectory() as folder:
        loop = Loop(Path(folder), model, objective, rows, settings, total=10**9, device=device)
        with contextlib.closing(loop.loader.steps(0, 10**9)) as steps:
            begun = time.perf_counter()
            loop.advance(next(steps))
            first = loop.running.get("loss ")
            for _ in range(WARM if loop.compiled else 0):
                loop.advance(next(steps))
            settle(device)
            started = time.perf_counter() - begun
            begun, tokens, flops, number, waited = time.perf_counter(), loop.state.tokens, loop.state.flops, 0, 0.0
            while number < 2 or (time.perf_counter() - begun < seconds and number < 50):
                asked = time.perf_counter()
                step = next(steps)
                waited += time.perf_counter() - asked
                loop.advance(step)
                number += 1
            settle(device)
            passed = time.perf_counter() - begun
    tokens, flops = loop.state.tokens - tokens, loop.state.flops - flops
    return Speed(
        tokens_per_second=tokens / passed,
        seconds_per_step=passed / number,
        flops_per_token=flops / tokens,
        row_tokens=rows.row_tokens or 0,
        epoch_rows=len(rows),
        loss=float(first) if first is not None else float("nan"),
        started=started,
        waited=waited / passed,
    )


def settle(device: torch.device) -> None:
    """Waits until a GPU has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
