"""The files of runs and studies as the board reads them: what is missing, damaged or too large reads as empty.

Locks are read from /proc/locks and never taken: looking must not get in the way of training.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from etude.errors import UserError
from etude.recipes.document import parse
from etude.runs.run import METRICS, RECIPE, TASK
from etude.runs.training import LOCK
from etude.serve.run_curves import Curve, is_finite

CELLS = "cells"
FRESH = 60  # seconds after its last line in which a run without a lock file counts as running
LARGEST_TEXT = 2**22  # bytes of a results.json, a card or a recipe; others are not shown


def read_locks() -> frozenset[int]:
    """The inodes of all files that a process holds a lock on."""
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return frozenset()
    inodes = set()
    for line in lines:
        parts = line.split()
        if len(parts) >= 6 and parts[1] in ("FLOCK", "POSIX"):  # of a run, of a pick (pick/folder_lock.py)
            inodes.add(int(parts[5].rpartition(":")[2]))
    return frozenset(inodes)


def find_held_cells(study: Path, locks: frozenset[int]) -> list[Path]:
    """The lock files of the cells that a process works on."""
    return [path for path in sorted((study / CELLS).glob(".*.lock")) if find_inode(path) in locks]


def is_running(folder: Path, curve: Curve, locks: frozenset[int]) -> bool:
    inode = find_inode(folder / LOCK)
    return inode in locks if inode is not None else time.time() - find_change(folder / METRICS) < FRESH


def find_inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def find_change(path: Path) -> float:
    return find_change_ns(path) / 1e9


def find_change_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def as_number(value: object) -> float | None:
    return float(value) if is_finite(value) and not isinstance(value, bool) else None  # type: ignore[arg-type]


def as_dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def list_scores(line: dict[str, Any]) -> dict[str, float]:
    hidden = {"step", "tokens", "flops", "seconds", "split"}
    numbers = {name: as_number(value) for name, value in line.items() if name not in hidden}
    return {name: value for name, value in numbers.items() if value is not None}


def list_columns(lines: list[dict[str, Any]]) -> dict[str, list[float | None]]:
    names = list(dict.fromkeys(name for line in lines for name in line if name != "split"))
    return {name: [as_number(line.get(name)) for line in lines] for name in names}


def read_text(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST_TEXT:
            return ""
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(read_text(path) or "{}")
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def read_yaml(path: Path) -> dict[str, Any]:
    try:
        return parse(read_text(path), path.name).values
    except UserError:
        return {}


def read_settings(folder: Path) -> dict[str, str]:
    """The settings of a run by their full names.

    A fine-tuned run has the recipe of its pre-training, of which the model and the tokenizer hold, and a plan of its
    own (task.yaml): training, transfer, and the settings of the task.
    """
    settings = _flatten(read_yaml(folder / RECIPE))
    if not (folder / TASK).is_file():
        return settings
    plan = read_yaml(folder / TASK)
    parts = {"task": {"kind": plan.get("kind"), **as_dict(plan.get("settings"))}}
    own = _flatten(parts | {name: plan.get(name) for name in ("transfer", "train")})
    of_model = {name: value for name, value in settings.items() if name.partition(".")[0] not in ("train", "objective")}
    return of_model | own


def _flatten(values: dict[str, Any]) -> dict[str, str]:
    flat: dict[str, str] = {}
    waiting: list[tuple[str, Any]] = list(values.items())
    while waiting:
        name, value = waiting.pop(0)
        if isinstance(value, dict):
            waiting = [(f"{name}.{key}", inner) for key, inner in value.items()] + waiting
        elif value is not None:
            flat[str(name)] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return flat
