"""Several values of a setting, several seeds: so many runs, the best setting chosen on dev, the spread told.

Rates are task-specific and are chosen so; poolings, or features against fine-tuning, are compared so.

    OUT/trials.json             what was asked for, and in the end what came out
    OUT/trials/lr-3e-05-seed-1  one run a trial; the weights of those that did not win are removed at the end
    OUT/...                     the run that won: the best seed of the setting with the best mean

A fine-tuned score varies with the seed alone by more than most claims are worth (Dodge et al. 2020; BERT's README
gives MRPC as 84 to 88), hence the mean and the deviation.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from etude.errors import UserError
from etude.recipes.datasets import leaves
from etude.recipes.document import Overrides, parse_overrides
from etude.runs.run import Run
from etude.runs.staging import refuse_existing
from etude.runs.task_plan import Plan
from etude.train import checkpoint
from etude.transfer import finetune as single

FILE = "trials.json"
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
) -> Run:
    """One run for every combination of `vary` ({"train.lr": [2e-5, 5e-5]}) and seed.

    Returns the winner, or an unfinished run where it was stopped.
    """
    if dev is None:
        raise UserError("Settings and seeds are compared on held-out examples: name them with --dev.")
    out = Path(out)
    refuse_existing(out)
    asked: dict[str, Any] = {
        "base": str(Path(base).resolve()),
        "task": task,
        "train": str(Path(train).resolve()),
        "dev": str(Path(dev).resolve()),
        "columns": dict(columns or {}),
        "overrides": {".".join(path): value for path, value in leaves(parse_overrides(overrides).values)},
        "skip_bad": skip_bad,
        "vary": {key: list(values) for key, values in (vary or {}).items()},
        "seeds": seeds,
    }
    twice = [key for key in asked["vary"] if key in asked["overrides"]]
    if twice:
        raise UserError(f"{twice[0]} is both varied and set: give it once.")
    writing = out.with_name(f".{out.name}.creating-{os.getpid()}")
    shutil.rmtree(writing, ignore_errors=True)
    writing.mkdir(parents=True)
    checkpoint.write_text(writing / FILE, json.dumps(asked, indent=1, ensure_ascii=False))
    if out.is_dir():  # empty: checked above
        out.rmdir()
    os.rename(writing, out)
    return resume(out, quiet)


def is_search(folder: str | Path) -> bool:
    return (Path(folder) / FILE).is_file()


def resume(out: str | Path, quiet: bool = False) -> Run:
    """Goes on with the trials that are not finished."""
    out = Path(out)
    asked = json.loads((out / FILE).read_text(encoding="utf-8"))
    if "chosen" in asked:
        return Run.open(out)
    trials = []
    for values in itertools.product(*asked["vary"].values()):
        settings = dict(zip(asked["vary"], values, strict=True))
        for seed in range(asked["seeds"]):
            folder = out / FOLDER / _name(settings, seed)
            run = _trial(asked, folder, settings, seed, quiet)
            if not run.finished:
                return run
            plan = Plan.read(folder)
            score = plan.scores[plan.score]["value"]
            trials.append({"folder": folder.name, "settings": settings, "seed": seed, "score": score})
    return _choose(out, asked, trials)


def _trial(asked: dict[str, Any], folder: Path, settings: dict[str, Any], seed: int, quiet: bool) -> Run:
    if (folder / "recipe.yaml").is_file():
        return single.resume(folder, quiet)
    first = int(asked["overrides"].get("train.seed", 0))
    changes = asked["overrides"] | settings | {"train.seed": first + seed}
    return single.finetune(
        asked["base"],
        asked["task"],
        asked["train"],
        folder,
        dev=asked["dev"],
        columns=asked["columns"],
        overrides=changes,
        skip_bad=asked["skip_bad"],
        quiet=quiet,
    )


def _name(settings: dict[str, Any], seed: int) -> str:
    parts = [f"{key.rpartition('.')[2]}-{_word(value)}" for key, value in settings.items()]
    return re.sub(r"[^\w.+-]", "", "-".join([*parts, f"seed-{seed}"]))


def _word(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else json.dumps(value).strip('"')


def by_settings(trials: list[dict[str, Any]]) -> list[tuple[dict[str, Any], list[float]]]:
    """(settings, scores of its seeds), in the order of the trials."""
    found: dict[str, tuple[dict[str, Any], list[float]]] = {}
    for trial in trials:
        found.setdefault(json.dumps(trial["settings"]), (trial["settings"], []))[1].append(trial["score"])
    return list(found.values())


def _choose(out: Path, asked: dict[str, Any], trials: list[dict[str, Any]]) -> Run:
    chosen, scores = max(by_settings(trials), key=lambda one: statistics.fmean(one[1]))  # the first of equals
    best = max((trial for trial in trials if trial["settings"] == chosen), key=lambda trial: trial["score"])
    winner = out / FOLDER / best["folder"]
    for file in sorted(winner.iterdir(), key=lambda file: file.name == "model.safetensors"):  # the weights last
        if file.is_file():
            shutil.copy2(file, out / file.name)
    result = {
        "trials": trials,
        "score": Plan.read(out).score,
        "mean": statistics.fmean(scores),
        "deviation": statistics.stdev(scores) if len(scores) > 1 else None,
        "chosen": {"settings": chosen, "seed": best["seed"], "trial": best["folder"]},
    }
    checkpoint.write_text(out / FILE, json.dumps(asked | result, indent=1, ensure_ascii=False))
    for trial in trials:  # last: a kill before this loses no run, one after it a little disk
        (out / FOLDER / trial["folder"] / "model.safetensors").unlink(missing_ok=True)
    return Run.open(out)


WAYS: dict[str, list[Any]] = {  # features against fine-tuning, under every pooling
    "transfer.frozen": [True, False],
    "task.pooling": ["start", "mean", "max", "last"],
}


def table(out: str | Path) -> str:
    """What came out: one line a combination of settings, or a grid where two settings were varied."""
    found = json.loads((Path(out) / FILE).read_text(encoding="utf-8"))
    each = by_settings(found["trials"])
    varied = [key for key, values in found["vary"].items() if len(values) > 1]
    cells = {json.dumps(settings): _cell(scores, settings == found["chosen"]["settings"]) for settings, scores in each}
    if len(varied) == 2:
        rows = _grid(found, varied[0], varied[1], cells)
    else:
        rows = [
            [_called(settings) or "all seeds", cells[json.dumps(settings)], _each(scores)] for settings, scores in each
        ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    seeds = f", mean ± deviation of {found['seeds']} seeds" if found["seeds"] > 1 else ""
    return "\n".join([f"{found['score']} on dev{seeds}; * is the best and stays", *lines])


def _grid(found: dict[str, Any], down: str, across: str, cells: dict[str, str]) -> list[list[str]]:
    rows = [["", *(_called({across: value}) for value in found["vary"][across])]]
    for value in found["vary"][down]:
        settings = [
            {key: {down: value, across: other}.get(key, values[0]) for key, values in found["vary"].items()}
            for other in found["vary"][across]
        ]
        rows.append([_called({down: value}), *(cells[json.dumps(one)] for one in settings)])
    return rows


def _called(settings: Mapping[str, Any]) -> str:
    """Settings in words a table has room for."""
    plain = {"transfer.frozen=true": "features", "transfer.frozen=false": "fine-tuned"}
    named = {f"{key}={_word(value)}": f"{key.rpartition('.')[2]} {_word(value)}" for key, value in settings.items()}
    return "  ".join(plain.get(key, name) for key, name in named.items())


def _cell(scores: Sequence[float], chosen: bool) -> str:
    spread = f" ± {statistics.stdev(scores):.4f}" if len(scores) > 1 else ""
    return f"{statistics.fmean(scores):.4f}{spread}{' *' if chosen else ''}"


def _each(scores: Sequence[float]) -> str:
    return f"({', '.join(f'{score:.4f}' for score in scores)})" if len(scores) > 1 else ""
