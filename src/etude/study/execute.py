"""How a cell is done: the work itself, in whatever process it happens to run.

Killed at any moment, the same call goes on: runs resume from their last checkpoint bit for bit, and a result is
written once, whole. What a user or a setting can cause (a rate that diverges) ends the cell with its message and
nothing else.
"""

from __future__ import annotations

import contextlib
import logging
import math
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from etude.errors import UserError
from etude.hub.run_weights import save_final
from etude.inference.task_model import TaskModel
from etude.pretraining import pretrain as pretraining
from etude.recipes.document import parse_overrides
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe, validate_settings
from etude.runs.model_card import describe_hardware, describe_versions
from etude.runs.run import Run, corpus_origin
from etude.runs.task_plan import Plan, task_module
from etude.study.cells import Cell, CellStore
from etude.tasks.outcomes import Outcome
from etude.text.corpus.corpus import Corpus
from etude.train import schedule
from etude.train.device import resolve_device
from etude.train.failures import is_memory_error
from etude.train.loader import Loader
from etude.train.loop import Learner, total_loss
from etude.transfer import finetune

OUTCOME = "outcome.npy"
WINDOW = 3  # last lines of the log whose mean loss tells whether a run learnt or diverged


class Interrupted(Exception):
    """A signal asked for an end; what was done is saved."""


@dataclass(frozen=True)
class CellResult:
    """What became of a cell: an error is a message; a crash may be tried again."""

    key: str
    error: str | None = None
    stopped: bool = False


def run_cell(cell: Cell, folder: Path, quiet: bool = True) -> CellResult:
    """Does a cell unless it is done; never raises for what the cell itself is to blame for."""
    store = CellStore(folder)
    with store.lock(cell.key) as work:
        state = store.state(cell.key)
        if state == "done":
            shutil.rmtree(work, ignore_errors=True)
            return CellResult(cell.key)
        if state == "failed":
            shutil.rmtree(work, ignore_errors=True)
            return CellResult(cell.key, store.error(cell.key))
        try:
            with _collect_warnings() as notes:
                result = CELL_RUNNERS[cell.kind](cell, store, work, quiet)
        except Interrupted:
            return CellResult(cell.key, stopped=True)
        except UserError as problem:
            store.fail(cell.key, str(problem))
            return CellResult(cell.key, str(problem))
        except (RuntimeError, MemoryError) as problem:
            if not is_memory_error(problem):
                raise
            message = f"memory ran out: {str(problem).splitlines()[0]}"
            return CellResult(cell.key, message)  # not kept: another time there may be more
        about = {"kind": cell.kind, "title": cell.title, "place": cell.position, "date": _now()}
        about |= {"hardware": describe_hardware(), "versions": describe_versions(), "notes": sorted(notes)}
        store.finish(cell.key, {**about, **result})
        _remove_checkpoints(
            store.result_folder(cell.key) / "run", keep=cell.kind != "transfer" or bool(cell.arguments.get("keep"))
        )
        return CellResult(cell.key)


@contextlib.contextmanager
def _collect_warnings() -> Iterator[set[str]]:
    """What is said on the way (texts that were cut) belongs to the result; said for every cell, it is noise."""
    found: set[str] = set()
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: found.add(re.sub(r"^\S*/", "", record.getMessage()))  # type: ignore[method-assign]
    log = logging.getLogger("etude")
    before = log.propagate
    log.addHandler(handler)
    log.propagate = False
    try:
        yield found
    finally:
        log.removeHandler(handler)
        log.propagate = before


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _remove_checkpoints(run: Path, keep: bool) -> None:
    """Checkpoints go when nothing can be resumed any more; weights of transfers, which nobody starts from, too."""
    shutil.rmtree(run / "checkpoints", ignore_errors=True)
    if not keep:
        (run / "model.safetensors").unlink(missing_ok=True)


# --- pre-training -----------------------------------------------------------------------------------


def _run_pretraining(cell: Cell, store: CellStore, work: Path, quiet: bool) -> dict[str, Any]:
    folder = work / "run"
    if (folder / "recipe.yaml").is_file():
        run = pretraining.resume(folder, corpus=cell.arguments["corpus"], quiet=quiet)
    else:
        recipe = Recipe.parse(cell.arguments["recipe"], cell.title)
        run = pretraining.pretrain(recipe, cell.arguments["corpus"], folder, quiet=quiet)
    if not run.finished:
        raise Interrupted
    check_not_diverged(run, Corpus.open(cell.arguments["corpus"]))
    last = run.metrics()[-1]
    valid = run.metrics("valid")
    place = ("step", "tokens", "flops", "seconds")
    return {
        **{name: last[name] for name in place},
        "valid": {name: value for name, value in (valid[-1] if valid else {}).items() if name not in (*place, "split")},
        "curve": [{name: value for name, value in line.items() if name != "split"} for line in valid],
    }


def check_not_diverged(run: Run, corpus: Corpus) -> None:
    """A run that ends worse than it began has diverged, finite or not: better no number than that one."""
    lines = run.metrics("train")
    losses = [math.nan if line["loss"] is None else line["loss"] for line in lines]
    last = sum(losses[-WINDOW:]) / len(losses[-WINDOW:])
    first = compute_initial_loss(run, corpus, losses[0])
    if not math.isfinite(last) or last > first + 0.1 * abs(first):
        raise UserError(
            f"Training diverged: the loss began at {first:.3g} and ended at {last:.3g} after {lines[-1]['step']} steps "
            f"at train.lr={run.recipe.train.lr:g}. Lower train.lr, or lengthen train.warmup."
        )


def compute_initial_loss(run: Run, corpus: Corpus, logged: float) -> float:
    """Of the first weights on the first step; where a model updates itself, what the log says first."""
    recipe = run.recipe
    model, objective = build_learner(recipe, corpus.tokenizer)
    if objective.updates_itself:
        return logged
    rows = objective.rows(corpus, recipe.train.seed)
    count = schedule.batch_rows(recipe.train, rows.row_tokens, 0)
    loader = Loader(
        objective, rows, seed=recipe.train.seed, batch_rows=lambda _: count, rows_before=lambda step: step * count,
        micro_tokens=recipe.train.micro_tokens, workers=0,
    )  # fmt: skip
    step = loader.step(0)
    device = resolve_device(recipe.train.device)
    Learner(model, objective).eval().to(device)
    with torch.no_grad():
        return sum(float(total_loss(objective.loss(model, batch.to(device)), step.counts)) for batch in step.batches)


def _write_initial_weights(cell: Cell, store: CellStore, work: Path, quiet: bool) -> dict[str, Any]:
    """A run with its first weights: what every pre-training starts from."""
    folder = work / "run"
    shutil.rmtree(folder, ignore_errors=True)
    recipe = Recipe.parse(cell.arguments["recipe"], cell.title)
    corpus = Corpus.open(cell.arguments["corpus"])
    run = Run.create(folder, recipe, corpus.tokenizer, corpus_origin(corpus))
    model, objective = build_learner(recipe, corpus.tokenizer)
    save_final(run, model, objective, f"# {recipe.name}, not trained\n\nThe first weights, for comparison.\n")
    return {"step": 0, "tokens": 0, "flops": 0, "seconds": 0.0, "valid": {}, "curve": []}


# --- tasks ------------------------------------------------------------------------------------------


def _run_transfer(cell: Cell, store: CellStore, work: Path, quiet: bool) -> dict[str, Any]:
    order, folder = cell.arguments, work / "run"
    if (folder / "recipe.yaml").is_file():
        run = finetune.resume(folder, quiet)
    else:
        base = store.result_folder(order["base"]) / "run"
        run = finetune.finetune(
            base, order["task"], order["train"], folder, dev=order["dev"], columns=order["columns"],
            overrides=order["settings"], quiet=quiet,
        )  # fmt: skip
    if not run.finished:
        raise Interrupted
    plan, last = Plan.read(folder), run.metrics()[-1]
    tuned = TaskModel.open(folder, device=plan.train.device)
    examples = tuned.read(order["test"])
    outcome = tuned.task.outcome(examples, tuned.predict(examples))
    return {
        **_save_outcome(outcome, work, tuned.task.score),
        "dev": plan.scores[plan.score]["value"],
        **{name: last[name] for name in ("step", "tokens", "flops", "seconds")},
    }


def _save_outcome(outcome: Outcome, work: Path, score: str) -> dict[str, Any]:
    outcome.save(work / OUTCOME)
    count = len(outcome.parts)
    return {"score": score, "how": outcome.statistic, "examples": count, "value": float(outcome.score())}


def _score_majority(cell: Cell, store: CellStore, work: Path, quiet: bool) -> dict[str, Any]:
    order = cell.arguments
    module = task_module(order["task"])
    train, test, dev = (module.read(order[part], order["columns"]) for part in ("train", "test", "dev"))
    own = {name.removeprefix("task."): value for name, value in order["settings"].items() if name.startswith("task.")}
    settings = validate_settings(module.Settings, own, parse_overrides({}), "task")
    scoring = module.scoring(settings, module.learn(train, settings))
    on_test = scoring.outcome(test, module.majority(train, test))
    on_dev = scoring.outcome(dev, module.majority(train, dev))
    nothing = {"step": 0, "tokens": 0, "flops": 0, "seconds": 0.0}
    return {**_save_outcome(on_test, work, scoring.score), "dev": float(on_dev.score()), **nothing}


CELL_RUNNERS = {
    "pretrain": _run_pretraining,
    "untrained": _write_initial_weights,
    "transfer": _run_transfer,
    "majority": _score_majority,
}


def load_outcome(store: CellStore, key: str) -> Outcome:
    return Outcome.load(store.result_folder(key) / OUTCOME, store.result(key)["how"])
