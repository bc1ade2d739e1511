"""Several rates, several seeds: so many runs, the rate chosen on dev, the spread over seeds told.

    OUT/trials.json             what was asked for, and in the end what came out
    OUT/trials/lr-3e-05-seed-1  one run a trial; the weights of those that did not win are removed at the end
    OUT/...                     the run that won: the best seed of the rate with the best mean

A fine-tuned score varies with the seed alone by more than most claims are worth (Dodge et al. 2020; BERT's README
gives MRPC as 84 to 88), hence the mean and the deviation.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from etude.errors import UserError
from etude.recipes.document import Overrides, from_overrides
from etude.run import Run, refuse_existing
from etude.train import checkpoint
from etude.transfer import finetune as single
from etude.transfer.plan import Plan

FILE = "trials.json"
FOLDER = "trials"


def search(
    base: str | Path,
    task: str,
    train: str | Path,
    out: str | Path,
    *,
    dev: str | Path | None,
    rates: Sequence[float] = (),
    seeds: int = 1,
    columns: Mapping[str, str] | None = None,
    overrides: Overrides = (),
    skip_bad: bool = False,
    quiet: bool = False,
) -> Run:
    """One run for every rate and seed; returns the winner, or an unfinished run where it was stopped."""
    if dev is None:
        raise UserError("Rates and seeds are compared on held-out examples: name them with --dev.")
    out = Path(out)
    refuse_existing(out)
    asked: dict[str, Any] = {
        "base": str(Path(base).resolve()),
        "task": task,
        "train": str(Path(train).resolve()),
        "dev": str(Path(dev).resolve()),
        "columns": dict(columns or {}),
        "overrides": {".".join(path): value for path, value in leaves(from_overrides(overrides).values)},
        "skip_bad": skip_bad,
        "rates": list(rates),
        "seeds": seeds,
    }
    if rates and "train.lr" in asked["overrides"]:
        raise UserError("Give the rates once: as --lr a,b,c or as train.lr=a.")
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
    for rate in asked["rates"] or [None]:
        for seed in range(asked["seeds"]):
            folder = out / FOLDER / _name(rate, seed)
            run = _trial(asked, folder, rate, seed, quiet)
            if not run.finished:
                return run
            plan = Plan.read(folder)
            score = plan.scores[plan.score]["value"]
            trials.append({"folder": folder.name, "lr": plan.train.lr, "seed": seed, "score": score})
    return _choose(out, asked, trials)


def _trial(asked: dict[str, Any], folder: Path, rate: float | None, seed: int, quiet: bool) -> Run:
    if (folder / "recipe.yaml").is_file():
        return single.resume(folder, quiet)
    first = int(asked["overrides"].get("train.seed", 0))
    changes = asked["overrides"] | {"train.seed": first + seed} | ({} if rate is None else {"train.lr": rate})
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


def _name(rate: float | None, seed: int) -> str:
    return f"seed-{seed}" if rate is None else f"lr-{rate:g}-seed-{seed}"


def _choose(out: Path, asked: dict[str, Any], trials: list[dict[str, Any]]) -> Run:
    rates: dict[float, list[float]] = {}
    for trial in trials:
        rates.setdefault(trial["lr"], []).append(trial["score"])
    chosen = max(rates, key=lambda rate: statistics.fmean(rates[rate]))  # the first of equals
    scores = rates[chosen]
    best = max((trial for trial in trials if trial["lr"] == chosen), key=lambda trial: trial["score"])
    for trial in trials:
        if trial is not best:
            (out / FOLDER / trial["folder"] / "model.safetensors").unlink(missing_ok=True)
    winner = out / FOLDER / best["folder"]
    for file in sorted(winner.iterdir(), key=lambda file: file.name == "model.safetensors"):  # the weights last
        if file.is_file():
            shutil.copy2(file, out / file.name)
    (winner / "model.safetensors").unlink()
    result = {
        "trials": trials,
        "score": Plan.read(out).score,
        "mean": statistics.fmean(scores),
        "deviation": statistics.stdev(scores) if len(scores) > 1 else None,
        "chosen": {"lr": chosen, "seed": best["seed"], "trial": best["folder"]},
    }
    checkpoint.write_text(out / FILE, json.dumps(asked | result, indent=1, ensure_ascii=False))
    return Run.open(out)


def table(out: str | Path) -> str:
    """What came out, one line a rate."""
    found = json.loads((Path(out) / FILE).read_text(encoding="utf-8"))
    lines = []
    for rate in dict.fromkeys(trial["lr"] for trial in found["trials"]):
        scores = [trial["score"] for trial in found["trials"] if trial["lr"] == rate]
        spread = f" ± {statistics.stdev(scores):.4f}" if len(scores) > 1 else ""
        mark = "  <- chosen" if rate == found["chosen"]["lr"] else ""
        each = ", ".join(f"{score:.4f}" for score in scores)
        lines.append(f"lr {rate:<9g} {found['score']} {statistics.fmean(scores):.4f}{spread}  ({each}){mark}")
    return "\n".join(lines)


def leaves(values: Mapping[str, Any], path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """(path, value) of every setting in nested groups."""
    found: list[tuple[tuple[str, ...], Any]] = []
    for key, value in values.items():
        found += leaves(value, (*path, key)) if isinstance(value, dict) else [((*path, key), value)]
    return found
