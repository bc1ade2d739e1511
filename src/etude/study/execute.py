"""Execution of one cell, in whichever process runs it.

Killed at any moment, the same call resumes: runs continue from their last checkpoint bit for bit, and a result is
written once, complete. An error that a setting can cause (a learning rate that diverges) ends only this cell, with
its message. Divergence alone is stored: it would repeat itself, and only training shows it. Memory that ran out, a GPU
that is lost and files that are missing may be there the next time, and an invalid setting is found again in no time;
the working folder stays, so that no step is taken twice.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import os
import re
import shutil
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from etude.baselines import registry as baselines
from etude.errors import UserError
from etude.hub.run_weights import save_final
from etude.inference.model import load as load_model
from etude.inference.task_model import TaskModel
from etude.inference.translation import Search, translate
from etude.pretraining import pretrain as pretraining
from etude.pretraining.distill import distill
from etude.pretraining.first_weights import FirstWeights
from etude.pretraining.student import build_run_learner
from etude.recipes.document import parse_overrides
from etude.recipes.schema import Recipe, validate_settings
from etude.runs.checksums import remove_checksums, write_checksums
from etude.runs.completion import complete_finished
from etude.runs.model_card import describe_hardware, describe_versions
from etude.runs.run import Run, corpus_origin
from etude.runs.task_plan import Plan, task_module
from etude.study.cells import Cell, CellStore
from etude.study.prompts import answer_prompts
from etude.study.starts import copy_start
from etude.tasks.base import Scoring
from etude.tasks.data.examples import Examples
from etude.tasks.outcomes import Outcome, mean_outcome
from etude.text.corpus.corpus import Corpus
from etude.train import schedule
from etude.train.device import resolve_device
from etude.train.failures import DivergenceError, describe_memory_error, is_device_error, is_memory_error
from etude.train.learner import Learner, total_loss
from etude.train.loader import Loader
from etude.transfer import finetune

OUTCOME = "outcome.npy"
RETAINED = 1 << 30  # bytes of a GPU that a process may hold between two cells
NO_DEVICE = "wants a CUDA device"  # how train/device.py says that there is none
WINDOW = 3  # last lines of the log whose mean loss tells whether a run learnt or diverged


class Interrupted(Exception):
    """Raised when a signal stopped the work; a checkpoint is saved."""


@dataclass(frozen=True)
class CellResult:
    """Outcome of running a cell; `error` is its message if it failed."""

    key: str
    error: str | None = None
    stopped: bool = False
    unwritten: bool = False  # the disk refused a write: the error is no cell's, and no cell can go on
    out_of_memory: bool = False  # beside fewer cells it may not fail
    lost: bool = False  # the GPU of its process: no cell can use one there any more, and another process may
    retains_memory: bool = False  # its process cannot give back what it holds of the GPU: another one takes its place


def run_cell(cell: Cell, folder: Path, quiet: bool = True) -> CellResult:
    """Run a cell unless it is done; errors of the cell itself are returned, not raised."""
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
            with _collect_warnings() as warnings:
                result = CELL_RUNNERS[cell.kind](cell, store, work, quiet)
        except Interrupted:
            return CellResult(cell.key, stopped=True)
        except DivergenceError as error:
            store.fail(cell.key, str(error))
            return CellResult(cell.key, str(error))
        except (UserError, RuntimeError, MemoryError, OSError) as error:
            failure = _describe_failure(cell.key, error)
            if failure is None:
                raise
            return failure
        metadata = {"kind": cell.kind, "title": cell.title, "place": cell.position, "date": _now()}
        metadata |= {"hardware": describe_hardware(), "versions": describe_versions(), "notes": sorted(warnings)}
        metadata |= {"settings_key": cell.settings_key, "code": cell.code}
        metadata |= {"text": cell.text} if cell.text else {}
        store.finish(cell.key, {**metadata, **result})
        _remove_checkpoints(
            store.result_folder(cell.key) / "run", keep=cell.kind != "transfer" or bool(cell.arguments.get("keep"))
        )
        return CellResult(cell.key)


def _describe_failure(key: str, error: Exception) -> CellResult | None:
    """Describe a failure that is not stored; None of an error that nobody foresaw, or of a disk."""
    if is_memory_error(error):
        message = str(error) if isinstance(error, UserError) else describe_memory_error(error)
        return CellResult(key, message, out_of_memory=True)
    if isinstance(error, OSError):
        return None
    if is_device_error(error) or _lacks_given_gpu(error):
        if not isinstance(error, UserError):
            traceback.print_exc()  # where in its kernels, nobody else will know
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        return CellResult(key, f"its GPU failed ({reason}). Run the study again to try it again.", lost=True)
    return CellResult(key, str(error)) if isinstance(error, UserError) else None


def _lacks_given_gpu(error: Exception) -> bool:
    """Whether a process that was given a GPU finds none: under NVIDIA's MPS, while others live that lost it."""
    return NO_DEVICE in str(error) and bool(os.environ.get("CUDA_VISIBLE_DEVICES"))


def release_memory() -> bool:
    """Give back the memory that this process keeps for later cells; returns whether it still has its GPU, if any.

    Processes that share a GPU cannot use what another one has cached: one evaluation may leave more than all trainings
    beside it need. What was compiled stays, for the next cells of the same model, and with it graphs that the compiler
    recorded on memory of their own (see `retains_memory`).
    """
    gc.collect()  # models and recorded steps hang in cycles
    if not torch.cuda.is_initialized():
        return True
    try:
        torch.cuda.synchronize()  # raises what the last kernels did
        torch.cuda.empty_cache()
    except RuntimeError as error:
        if not is_device_error(error):
            raise
        return False
    return torch.cuda.is_available()


def retains_memory() -> bool:
    """Whether this process holds more of a GPU than is worth a new one, after it gave back what it could."""
    return torch.cuda.is_initialized() and torch.cuda.memory_reserved() > RETAINED


@contextlib.contextmanager
def _collect_warnings() -> Iterator[set[str]]:
    """Collect warnings (such as truncated texts) for the cell's result in place of logging them per cell."""
    messages: set[str] = set()
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.add(re.sub(r"^\S*/", "", record.getMessage()))  # type: ignore[method-assign]
    log = logging.getLogger("etude")
    propagated = log.propagate
    log.addHandler(handler)
    log.propagate = False
    try:
        yield messages
    finally:
        log.removeHandler(handler)
        log.propagate = propagated


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _remove_checkpoints(run: Path, keep: bool) -> None:
    """Remove the checkpoints of a finished run; the weights too unless `keep`."""
    shutil.rmtree(run / "checkpoints", ignore_errors=True)
    if not keep and (run / "model.safetensors").is_file():
        remove_checksums(run)
        (run / "model.safetensors").unlink()
        write_checksums(run)  # of what stays: a run whose weights are missing is damaged otherwise


# --- pre-training -----------------------------------------------------------------------------------


def _run_pretraining(cell: Cell, store: CellStore, work: Path, quiet: bool) -> dict[str, Any]:
    folder, teacher = work / "run", cell.arguments.get("teacher")
    recipe = Recipe.parse(cell.arguments["recipe"], cell.title)
    if (folder / "recipe.yaml").is_file():
        run = pretraining.resume(folder, corpus=cell.arguments["corpus"], quiet=quiet)
    elif teacher is not None:
        run = distill(
            recipe, cell.arguments["corpus"], folder, teacher=store.result_folder(teacher) / "run", quiet=quiet
        )
    else:
        run = pretraining.pretrain(
            recipe, cell.arguments["corpus"], folder, quiet=quiet, start=cell.arguments.get("start"),
            entities=cell.arguments.get("entities"),
        )  # fmt: skip
    if not run.finished:
        raise Interrupted
    check_not_diverged(run, Corpus.open(cell.arguments["corpus"]))
    last = run.metrics()[-1]
    valid = run.metrics("valid")
    progress_keys = ("step", "tokens", "flops", "seconds")
    return {
        **{name: last[name] for name in progress_keys},
        "valid": {
            name: value for name, value in (valid[-1] if valid else {}).items() if name not in (*progress_keys, "split")
        },
        "curve": [{name: value for name, value in line.items() if name != "split"} for line in valid],
    }


def check_not_diverged(run: Run, corpus: Corpus) -> None:
    """Raise DivergenceError if the training loss ended above its initial value."""
    lines = run.metrics("train")
    losses = [math.nan if line["loss"] is None else line["loss"] for line in lines]
    last = sum(losses[-WINDOW:]) / len(losses[-WINDOW:])
    first = compute_initial_loss(run, corpus, losses[0])
    if not math.isfinite(last) or last > first + 0.1 * abs(first):
        raise DivergenceError(
            f"Training diverged: the loss began at {first:.3g} and ended at {last:.3g} after {lines[-1]['step']} steps "
            f"at train.lr={run.recipe.train.lr:g}. Lower train.lr, or lengthen train.warmup."
        )


def compute_initial_loss(run: Run, corpus: Corpus, logged: float) -> float:
    """Compute the loss of the initial weights on the first step; self-updating models use the first logged loss."""
    recipe = run.recipe
    model, objective = build_run_learner(run, corpus)
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
    """Write a run with initial weights, which every pre-training starts from."""
    folder = work / "run"
    shutil.rmtree(folder, ignore_errors=True)
    recipe = Recipe.parse(cell.arguments["recipe"], cell.title)
    corpus = Corpus.open(cell.arguments["corpus"])
    first = FirstWeights.read(None, cell.arguments.get("entities"))
    run = Run.create(folder, recipe, corpus.tokenizer, corpus_origin(corpus) | first.files(corpus))
    model, objective = first.build(recipe, corpus)
    save_final(run, model, objective, f"# {recipe.name}, not trained\n\nThe first weights, for comparison.\n")
    return {"step": 0, "tokens": 0, "flops": 0, "seconds": 0.0, "valid": {}, "curve": []}


def _copy_start(cell: Cell, store: CellStore, work: Path, quiet: bool) -> dict[str, Any]:
    return copy_start(Path(cell.arguments["run"]), work / "run")


# --- tasks ------------------------------------------------------------------------------------------


def _run_transfer(cell: Cell, store: CellStore, work: Path, quiet: bool) -> dict[str, Any]:
    arguments, folder = cell.arguments, work / "run"
    if (folder / "recipe.yaml").is_file():
        run = complete_finished(finetune.resume(folder, quiet))
    else:
        base = store.result_folder(arguments["base"]) / "run"
        run = finetune.finetune(
            base, arguments["task"], arguments["train"], folder, dev=arguments["dev"], columns=arguments["columns"],
            overrides=arguments["settings"], quiet=quiet,
        )  # fmt: skip
    if not run.finished:
        raise Interrupted
    plan, lines = Plan.read(folder), run.metrics()
    last = lines[-1] if lines else {"step": 0, "tokens": 0, "flops": 0, "seconds": 0.0}  # a probe trains nothing
    tuned = TaskModel.open(folder, device=plan.train.device)
    examples = tuned.read(arguments["test"])
    _check_gold(tuned.task.scoring, examples)
    outcome = tuned.task.outcome(examples, tuned.answer(examples))
    return {
        **_save_outcome(outcome, work, tuned.task.scoring, examples),
        "dev": plan.scores[plan.score]["value"],
        **{name: last[name] for name in ("step", "tokens", "flops", "seconds")},
    }


def _answer_directly(cell: Cell, store: CellStore, work: Path, quiet: bool) -> dict[str, Any]:
    """Score a run that was trained on pairs: it translates as it is."""
    arguments = cell.arguments
    module, settings = task_module(arguments["task"]), _task_settings(arguments)
    train, test, dev = (module.read(arguments[part], arguments["columns"]) for part in ("train", "test", "dev"))
    scoring = module.scoring(settings, module.learn(train, settings))
    loaded = load_model(store.result_folder(arguments["base"]) / "run", arguments["settings"]["train.device"])
    started, values = time.perf_counter(), {}
    for name, examples in (("test", test), ("dev", dev)):
        search = Search(settings.beams, settings.penalty)
        best = translate(loaded, [pair.source for pair in examples], search)
        values[name] = scoring.outcome(examples, [{"translation": each[0].text} for each in best])
    cost = {"step": 0, "tokens": 0, "flops": 0, "seconds": time.perf_counter() - started}
    result = _save_outcome(values["test"], work, scoring, test)
    return {**result, "dev": float(values["dev"].score()), **cost}


def _answer_prompts(cell: Cell, store: CellStore, work: Path, quiet: bool) -> dict[str, Any]:
    """Score a causal run by the prompts that it goes on with; nothing is learnt."""
    run = store.result_folder(cell.arguments["base"]) / "run"
    answers = answer_prompts(cell.arguments, _task_settings(cell.arguments), run, work)
    result = _save_outcome(answers.outcome, work, answers.scoring, answers.examples)
    return {**result, "score": answers.score, **answers.values}


def _save_outcome(outcome: Outcome, work: Path, scoring: Scoring[Any], examples: Examples[Any]) -> dict[str, Any]:
    outcome.save(work / OUTCOME)
    # those that are scored: a query without a relevant candidate is not
    values = {"score": scoring.score, "how": outcome.statistic, "examples": len(outcome.parts)}
    lengths = scoring.lengths(examples)
    if lengths is not None:
        values["lengths"] = lengths.tolist()
    return {**values, "value": float(outcome.score())}


def _check_gold(scoring: Scoring[Any], *parts: Examples[Any]) -> None:
    """Raise UserError where examples have answers that cannot be scored, as tags of characters for those of words."""
    for examples in parts:
        scoring.check_gold(examples)


def _task_settings(arguments: dict[str, Any]) -> Any:
    """The settings of the task alone, validated by its kind."""
    values = {
        name.removeprefix("task."): value for name, value in arguments["settings"].items() if name.startswith("task.")
    }
    return validate_settings(task_module(arguments["task"]).Settings, values, parse_overrides({}), "task")


def _fit_baseline(cell: Cell, store: CellStore, work: Path, quiet: bool) -> dict[str, Any]:
    """Fit a linear model of plain text to the labels, and score it."""
    arguments, started = cell.arguments, time.perf_counter()
    module, settings = task_module(arguments["task"]), _task_settings(arguments)
    train, test, dev = (module.read(arguments[part], arguments["columns"]) for part in ("train", "test", "dev"))
    seed = arguments["settings"]["train.seed"]
    baseline = baselines.fit(
        arguments["baseline"], arguments["task"], settings, train, seed, columns=arguments["columns"]
    )
    scoring = baseline.task.scoring
    _check_gold(scoring, test, dev)
    outcomes = {name: scoring.outcome(part, baseline.predict(part)) for name, part in (("test", test), ("dev", dev))}
    cost = {"step": 0, "tokens": 0, "flops": 0, "seconds": time.perf_counter() - started}
    result = _save_outcome(outcomes["test"], work, scoring, test)
    return {**result, "dev": float(outcomes["dev"].score()), **cost}


def _score_majority(cell: Cell, store: CellStore, work: Path, quiet: bool) -> dict[str, Any]:
    arguments = cell.arguments
    module = task_module(arguments["task"])
    train, test, dev = (module.read(arguments[part], arguments["columns"]) for part in ("train", "test", "dev"))
    settings = _task_settings(arguments)
    scoring = module.scoring(settings, module.learn(train, settings))
    _check_gold(scoring, test, dev)
    on_test = scoring.outcome(test, module.majority(train, test))
    on_dev = scoring.outcome(dev, module.majority(train, dev))
    if (arguments.get("prompt") or {}).get("over") is not None:  # it answers alike, whatever is shown
        on_test, on_dev = (mean_outcome([0.0] * len(examples)) for examples in (test, dev))
    no_cost = {"step": 0, "tokens": 0, "flops": 0, "seconds": 0.0}
    return {**_save_outcome(on_test, work, scoring, test), "dev": float(on_dev.score()), **no_cost}


CELL_RUNNERS = {
    "pretrain": _run_pretraining,
    "distill": _run_pretraining,
    "untrained": _write_initial_weights,
    "start": _copy_start,
    "transfer": _run_transfer,
    "direct": _answer_directly,
    "prompt": _answer_prompts,
    "baseline": _fit_baseline,
    "majority": _score_majority,
}


def load_outcome(store: CellStore, key: str) -> Outcome:
    return Outcome.load(store.result_folder(key) / OUTCOME, store.result(key)["how"])
