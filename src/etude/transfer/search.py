"""Grid search over settings and seeds: one run a trial, the best setting by its mean score on dev.

It chooses learning rates, and compares poolings, or features with fine-tuning.

    OUT/trials.json             the request, and in the end the result
    OUT/trials/lr-3e-05-seed-1  one run a trial; the weights of those that did not win are removed at the end
    OUT/...                     the run that won: the best seed of the setting with the best mean

Trials run one after another in this process, or several at once in processes of their own (trial_processes.py), with
the same result. A setting with which a seed diverges has lost; what went wrong stands under `diverged`.

A fine-tuned score varies with the seed alone by more than most claims are worth (Dodge et al. 2020; BERT's README
gives MRPC as 84 to 88), hence the mean and the deviation.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import shutil
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NotRequired

from typing_extensions import TypedDict  # that of Python 3.11 cannot be checked

from etude.errors import UserError
from etude.recipes.datasets import leaves
from etude.recipes.document import Overrides, parse_overrides, parse_value
from etude.runs.completion import complete_finished
from etude.runs.model_card import rename_card
from etude.runs.run import MODEL_CARD, TRIALS, Run
from etude.runs.staging import refuse_existing
from etude.runs.task_plan import Plan, check_settings, distill_settings
from etude.settings import Count, read_json
from etude.train import checkpoint
from etude.train.failures import DivergenceError
from etude.transfer import finetune as single
from etude.transfer import trial_processes

FOLDER = "trials"


def search(
    base: str | Path,
    task: str,
    train: str | Path,
    out: str | Path,
    *,
    dev: str | Path | None,
    vary: Mapping[str, Sequence[Any]] | None = None,
    seeds: int = 1,
    columns: Mapping[str, str] | None = None,
    overrides: Overrides = (),
    skip_bad: bool = False,
    quiet: bool = False,
    encoding: str | None = None,
    parallel: int = 1,
) -> Run:
    """Run a trial for every combination of `vary` ({"train.lr": [2e-5, 5e-5]}) and seed, `parallel` at a time.

    Returns the winner, or an unfinished run where the search was interrupted.
    """
    trial_processes.check_parallel(parallel)
    if dev is None:
        raise UserError("Settings and seeds are compared on held-out examples: name them with --dev.")
    out = Path(out)
    refuse_existing(out)
    request: dict[str, Any] = {
        "base": str(Path(base).resolve()),
        "task": task,
        "train": str(Path(train).resolve()),
        "dev": str(Path(dev).resolve()),
        "columns": dict(columns or {}),
        "overrides": {".".join(path): value for path, value in leaves(parse_overrides(overrides).values)},
        "skip_bad": skip_bad,
        **({} if encoding is None else {"encoding": encoding}),
        "vary": {key: list(values) for key, values in (vary or {}).items()},
        "seeds": seeds,
    }
    refuse_set_twice(request["vary"], request["overrides"])
    _check_trials(request)
    if len(_plan_trials(out, request)) == 1:
        trial_processes.refuse_single(parallel)
    staging = out.with_name(f".{out.name}.creating-{os.getpid()}")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    checkpoint.write_text(staging / TRIALS, json.dumps(request, indent=1, ensure_ascii=False))
    if out.is_dir():  # empty: checked above
        out.rmdir()
    os.rename(staging, out)
    try:
        return resume(out, quiet, parallel)
    except UserError:
        if not any((out / FOLDER).glob("*/recipe.yaml")):  # nothing has begun: the same folder may be named again
            shutil.rmtree(out)
        raise


def refuse_set_twice(varied: Collection[str], overrides: Overrides) -> None:
    """Raise UserError where a setting is varied and set: one of the two would count for nothing."""
    names = {".".join(path) for path, _ in leaves(parse_overrides(overrides).values)}
    if twice := [name for name in varied if name in names]:
        raise UserError(f"{twice[0]} is both varied and set: give it once.")


def refuse_lists(kind: str, overrides: Overrides) -> None:
    """Raise UserError where a setting is given several values, each of which it could have: they are to be varied."""
    for path, value in leaves(parse_overrides(overrides).values):
        name, values = ".".join(path), _split_values(value)
        problem = _find_problem(kind, name, value) if len(values) > 1 else None
        if problem is not None and all(_find_problem(kind, name, each) is None for each in values):
            listed = ",".join(each if isinstance(each, str) else json.dumps(each) for each in values)
            raise UserError(f"{problem} To compare several values: --vary {name}={listed}")


def _split_values(value: object) -> list[Any]:
    """Split `1e-4,1e-3` or [1e-4, 1e-3] into its values; nothing else has several."""
    if not isinstance(value, str):
        return value if isinstance(value, list) else []
    try:
        return [parse_value(part, "a value") for part in value.split(",") if part.strip()]
    except UserError:
        return []


def _find_problem(kind: str, name: str, value: object) -> str | None:
    try:
        check_settings(kind, {name: value})
    except UserError as error:
        return str(error)
    return None


def _check_trials(request: dict[str, Any]) -> None:
    """Raise UserError where trials would be none, the same, or without a score to compare them by."""
    if request["seeds"] < 1:
        raise UserError(f"seeds={request['seeds']}: ask for one or more.")
    if "train.seed" in request["vary"]:
        raise UserError("train.seed is not varied: --seeds says how many are compared, from train.seed on.")
    for key, values in request["vary"].items():
        written = [json.dumps(value) for value in values]
        if not values:
            raise UserError(f"{key} is varied over no value: give two or more.")
        if len(set(written)) < len(written):
            raise UserError(f"{key} is varied over {', '.join(written)}: a value stands there twice.")
    for settings in _combinations(request):
        distill = distill_settings(request["overrides"] | settings)
        if distill is not None and not distill.answers:
            raise UserError(
                "Without distill.soft_weight and distill.hard_weight no head learns, so no score compares the trials."
            )


class SearchRequest(TypedDict):
    """What `trials.json` holds while a search runs; `chosen`, `trials` and `diverged` at its end."""

    base: str
    task: str
    train: str
    dev: str
    columns: dict[str, str]
    overrides: dict[str, Any]
    skip_bad: bool
    encoding: NotRequired[str]
    vary: dict[str, list[Any]]
    seeds: Count
    chosen: NotRequired[dict[str, Any]]
    trials: NotRequired[list[dict[str, Any]]]
    diverged: NotRequired[list[dict[str, Any]]]


def is_search(folder: str | Path) -> bool:
    """Whether a folder belongs to a grid search."""
    return (Path(folder) / TRIALS).is_file()


class PlannedTrial(NamedTuple):
    """A trial before it runs."""

    folder: Path
    settings: dict[str, Any]  # those that are varied
    seed: int  # counted from 0, which is train.seed


def resume(out: str | Path, quiet: bool = False, parallel: int = 1) -> Run:
    """Go on with the trials that are not finished, `parallel` at a time, however many it was before."""
    trial_processes.check_parallel(parallel)
    out = Path(out)
    request = _read_request(out)
    if "chosen" in request:
        return Run.open(out)
    planned = _plan_trials(out, request)
    errors = _run_in_turn(request, planned, quiet) if parallel == 1 else _run_at_once(out, planned, quiet, parallel)
    if isinstance(errors, Run):
        return errors
    trials: list[dict[str, Any]] = []
    diverged: list[dict[str, Any]] = []
    for folder, settings, seed in planned:
        trial = {"folder": folder.name, "settings": settings, "seed": seed}
        if folder.name in errors:
            diverged.append({**trial, "error": errors[folder.name]})
        else:
            plan = Plan.read(folder)
            trials.append({**trial, "score": plan.scores[plan.score]["value"]})
    return _keep_best(out, request, trials, diverged)


def run_stored_trial(out: Path, name: str) -> Run:
    """Run a trial of a stored search, by the name of its folder, and print nothing; for a process of its own."""
    request = _read_request(out)
    trial = next(trial for trial in _plan_trials(out, request) if trial.folder.name == name)
    return _run_trial(request, *trial, quiet=True)


def _read_request(out: Path) -> dict[str, Any]:
    return {**read_json(out / TRIALS, SearchRequest, "Take it from a copy, or start again.")}


def _run_in_turn(request: dict[str, Any], planned: list[PlannedTrial], quiet: bool) -> dict[str, str] | Run:
    """Run trials in this process; return the errors of those that diverged, or the run that was interrupted."""
    warned: set[str] = set()
    errors: dict[str, str] = {}
    for trial in planned:
        try:
            with _once(warned):
                run = _run_trial(request, *trial, quiet)
        except DivergenceError as error:
            logging.getLogger("etude").warning("%s has lost: %s", trial.folder.name, error)
            errors[trial.folder.name] = str(error)
            continue
        if not run.finished:
            return run
    return errors


def _run_at_once(out: Path, planned: list[PlannedTrial], quiet: bool, parallel: int) -> dict[str, str] | Run:
    """Run trials in processes of their own; return as `_run_in_turn` does, with the search's folder as the run."""
    finished = [trial.folder for trial in planned if Run(trial.folder).finished]
    for folder in finished:  # here: a process takes seconds to start
        complete_finished(Run(folder))
    names = [trial.folder.name for trial in planned if trial.folder not in finished]
    errors = trial_processes.run_trials(out / FOLDER, names, len(planned), parallel, quiet)
    return Run(out) if errors is None else errors


@contextmanager
def _once(warned: set[str]) -> Iterator[None]:
    """Leave out warnings that an earlier trial gave: all trials read the same files."""

    def is_new(record: logging.LogRecord) -> bool:
        before = len(warned)
        warned.add(record.getMessage())
        return len(warned) > before

    log = logging.getLogger("etude")
    log.addFilter(is_new)
    try:
        yield
    finally:
        log.removeFilter(is_new)


def _run_trial(request: dict[str, Any], folder: Path, settings: dict[str, Any], seed: int, quiet: bool) -> Run:
    if (folder / "recipe.yaml").is_file():
        return complete_finished(single.resume(folder, quiet))
    first = int(request["overrides"].get("train.seed", 0))
    changes = request["overrides"] | settings | {"train.seed": first + seed}
    return single.finetune(
        request["base"],
        request["task"],
        request["train"],
        folder,
        dev=request["dev"],
        columns=request["columns"],
        overrides=changes,
        skip_bad=request["skip_bad"],
        quiet=quiet,
        encoding=request.get("encoding"),
    )


def _combinations(request: dict[str, Any]) -> list[dict[str, Any]]:
    """The settings of the trials, in their order."""
    return [dict(zip(request["vary"], values, strict=True)) for values in itertools.product(*request["vary"].values())]


def _plan_trials(out: Path, request: dict[str, Any]) -> list[PlannedTrial]:
    """The trials with their folders, in their order."""
    trials: list[PlannedTrial] = []
    used: set[str] = set()
    for settings in _combinations(request):
        for seed in range(request["seeds"]):
            name = _unused_name(_trial_name(settings, seed), used)
            used.add(name)
            trials.append(PlannedTrial(out / FOLDER / name, settings, seed))
    return trials


def _unused_name(name: str, used: Collection[str]) -> str:
    """The name, numbered where an earlier trial has it: short names of different values may be equal."""
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(each for each in names if each not in used)


def _trial_name(settings: dict[str, Any], seed: int) -> str:
    parts = [f"{key.rpartition('.')[2]}-{_format_value(value)}" for key, value in settings.items()]
    return re.sub(r"[^\w.+-]", "", "-".join([*parts, f"seed-{seed}"]))


def _format_value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else json.dumps(value).strip('"')


def group_by_settings(trials: list[dict[str, Any]]) -> list[tuple[dict[str, Any], list[float]]]:
    """Return (settings, scores of the seeds), in the order of the trials."""
    groups: dict[str, tuple[dict[str, Any], list[float]]] = {}
    for trial in trials:
        groups.setdefault(json.dumps(trial["settings"]), (trial["settings"], []))[1].append(trial["score"])
    return list(groups.values())


def _keep_best(out: Path, request: dict[str, Any], trials: list[dict[str, Any]], diverged: list[dict[str, Any]]) -> Run:
    lost = [trial["settings"] for trial in diverged]
    groups = [group for group in group_by_settings(trials) if group[0] not in lost]
    if not groups:
        raise DivergenceError(f"No setting trains with all its seeds. {diverged[0]['folder']}: {diverged[0]['error']}")
    chosen, scores = max(groups, key=lambda group: statistics.fmean(group[1]))  # the first of equals
    best = max((trial for trial in trials if trial["settings"] == chosen), key=lambda trial: trial["score"])
    winner = out / FOLDER / best["folder"]
    for path in sorted(winner.iterdir(), key=lambda path: path.name == "model.safetensors"):  # the weights last
        if path.is_dir():  # such as the linker of a model that reads entities
            shutil.copytree(path, out / path.name, dirs_exist_ok=True)
        else:
            shutil.copy2(path, out / path.name)
    card = out / MODEL_CARD
    checkpoint.write_text(card, rename_card(card.read_text(encoding="utf-8"), out.resolve().name))
    result = {
        "trials": trials,
        "diverged": diverged,
        "score": Plan.read(out).score,
        "mean": statistics.fmean(scores),
        "deviation": statistics.stdev(scores) if len(scores) > 1 else None,
        "chosen": {"settings": chosen, "seed": best["seed"], "trial": best["folder"]},
    }
    checkpoint.write_text(out / TRIALS, json.dumps(request | result, indent=1, ensure_ascii=False))
    for trial in trials:  # last: a kill before this loses no run, one after it a little disk
        (out / FOLDER / trial["folder"] / "model.safetensors").unlink(missing_ok=True)
    for trial in diverged:
        shutil.rmtree(out / FOLDER / trial["folder"] / "checkpoints", ignore_errors=True)
    return Run.open(out)


POOLING_GRID: dict[str, list[Any]] = {  # features against fine-tuning, under every pooling
    "transfer.frozen": [True, False],
    "task.pooling": ["start", "mean", "max", "last"],
}


def format_table(out: str | Path) -> str:
    """Format the result: one line a combination of settings, or a grid where two settings were varied."""
    result = json.loads((Path(out) / TRIALS).read_text(encoding="utf-8"))
    scores_of = {json.dumps(settings): scores for settings, scores in group_by_settings(result["trials"])}
    lost = [trial["settings"] for trial in result.get("diverged", [])]  # results of earlier versions have none
    groups = [(settings, scores_of.get(json.dumps(settings), [])) for settings in _combinations(result)]
    varied = [key for key, values in result["vary"].items() if len(values) > 1]
    cells = {
        json.dumps(settings): "diverged"
        if settings in lost
        else _format_cell(scores, settings == result["chosen"]["settings"])
        for settings, scores in groups
    }
    if len(varied) == 2:
        rows = _grid_rows(result, varied[0], varied[1], cells)
    else:
        rows = [
            [_format_settings(settings) or "all seeds", cells[json.dumps(settings)], _format_scores(scores)]
            for settings, scores in groups
        ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    seeds = f", mean ± deviation of {result['seeds']} seeds" if result["seeds"] > 1 else ""
    return "\n".join([f"{result['score']} on dev{seeds}; * is the best and stays", *lines])


def _grid_rows(result: dict[str, Any], down: str, across: str, cells: dict[str, str]) -> list[list[str]]:
    rows = [["", *(_format_settings({across: value}) for value in result["vary"][across])]]
    for value in result["vary"][down]:
        settings = [
            {key: {down: value, across: column_value}.get(key, values[0]) for key, values in result["vary"].items()}
            for column_value in result["vary"][across]
        ]
        rows.append(
            [_format_settings({down: value}), *(cells[json.dumps(cell_settings)] for cell_settings in settings)]
        )
    return rows


def _format_settings(settings: Mapping[str, Any]) -> str:
    """Format settings briefly, for a table."""
    special_names = {"transfer.frozen=true": "features", "transfer.frozen=false": "fine-tuned"}
    plain_names = {
        f"{key}={_format_value(value)}": f"{key.rpartition('.')[2]} {_format_value(value)}"
        for key, value in settings.items()
    }
    return "  ".join(special_names.get(key, name) for key, name in plain_names.items())


def _format_cell(scores: Sequence[float], chosen: bool) -> str:
    spread = f" ± {statistics.stdev(scores):.4f}" if len(scores) > 1 else ""
    return f"{statistics.fmean(scores):.4f}{spread}{' *' if chosen else ''}"


def _format_scores(scores: Sequence[float]) -> str:
    return f"({', '.join(f'{score:.4f}' for score in scores)})" if len(scores) > 1 else ""
