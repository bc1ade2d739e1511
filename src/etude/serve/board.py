"""The board: what lies in a folder of runs and studies, finished, running or stopped, as plain data.

A run is running while another process holds its lock, which is read from /proc/locks and never taken: looking must not
get in the way of training. Folders are looked at again on every request, and only what changed is read again.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from etude.baselines.base import is_baseline
from etude.errors import UserError
from etude.recipes.document import parse
from etude.runs.run import METRICS, MODEL_CARD, RECIPE, TASK, WEIGHTS, Run
from etude.runs.training import LOCK
from etude.serve.problems import Problem
from etude.serve.run_curves import Curve, Curves, thin
from etude.study.cells import CellStore
from etude.study.leaderboard import rank_rows
from etude.study.runner import REPORT, RESULTS, STUDY

CELLS = "cells"
DEPTH = 4  # folders below the board's
MOST_FOLDERS, MOST_ENTRIES = 20_000, 500
HIDDEN = frozenset({"checkpoints", "corpora", CELLS, "references", "export", "node_modules", "__pycache__"})
FRESH = 60  # seconds after its last line in which a run without a lock file counts as running
TICKET_SECONDS = 60
LARGEST_TEXT = 2**22  # bytes of a results.json, a card or a recipe; others are not shown
LARGEST_REPORT = 2**26


class BoardRun(BaseModel):
    """A run on the board."""

    path: str = Field(description="below the folder of the board")
    name: str
    system: str = ""
    task: str = ""
    state: str = Field(description="running, finished, stopped or damaged")
    problem: str = ""
    study: str = Field(default="", description="of a cell: the study")
    served: str = Field(default="", description="the name under which this server answers for it")
    step: int = 0
    steps: int | None = None
    tokens: float = 0
    flops: float = 0
    seconds: float = 0
    loss: float | None = None
    valid: dict[str, float] = {}
    spark: list[float] = Field(default=[], description="the training loss, thinned")
    updated: float = Field(default=0, description="seconds since 1970")


class BoardRow(BaseModel):
    name: str | dict[str, str]
    mean: float | None
    low: float | None = None
    high: float | None = None


class BoardStudy(BaseModel):
    """A study, or a pick, on the board."""

    path: str
    name: str
    kind: str = Field(description="study or pick")
    title: str | dict[str, str]
    state: str
    problem: str = ""
    score: str = ""
    rows: list[BoardRow] = []
    verdicts: dict[str, int] = {}
    done: int = Field(default=0, description="cells with a result")
    report: bool = False
    date: str = ""
    updated: float = 0


class BoardData(BaseModel):
    folder: str
    runs: list[BoardRun]
    studies: list[BoardStudy]
    cut: bool = Field(description="there is more than is shown")


class RunDetails(BaseModel):
    """A run with its curve, its settings and its card."""

    run: BoardRun
    train: dict[str, list[float | None]]
    valid: dict[str, list[float | None]]
    settings: dict[str, str]
    card: str


class Board:
    """A folder of runs and studies."""

    def __init__(self, folder: str | Path, served: dict[Path, str] | None = None) -> None:
        self.folder = Path(folder).resolve()
        if not self.folder.is_dir():
            raise UserError(f"--board {folder}: there is no such folder.")
        self.served = served or {}
        self.curves = Curves()
        self._recipes: dict[Path, tuple[int, Run | str]] = {}
        self._secret = secrets.token_bytes(32)

    def data(self) -> BoardData:
        """All runs and studies, those that changed last first."""
        runs: list[BoardRun] = []
        studies: list[BoardStudy] = []
        cut = False
        locks = read_locks()
        for kind, folder in self._walk():
            if len(runs) + len(studies) >= MOST_ENTRIES:
                cut = True
                break
            if kind == "run":
                runs.append(self._describe_run(folder, locks))
            else:
                studies.append(self._describe_study(folder, kind, locks))
                runs += self._running_cells(folder, locks)
        runs.sort(key=lambda run: (run.state != "running", -run.updated))
        studies.sort(key=lambda study: (study.state != "running", -study.updated))
        return BoardData(folder=self.folder.name, runs=runs, studies=studies, cut=cut)

    def details(self, path: str) -> RunDetails:
        """One run, by its path."""
        folder = self._find(path)
        if not (folder / RECIPE).is_file() and not is_baseline(folder):
            raise Problem(404, f"There is no run at {path}.")
        curve = self.curves.read(folder / METRICS)
        return RunDetails(
            run=self._describe_run(folder, read_locks()),
            train=_columns(thin(curve.part("train"))),
            valid=_columns(thin(curve.part("valid"))),
            settings=_read_settings(folder / RECIPE),
            card=_read_text(folder / MODEL_CARD),
        )

    def report(self, path: str) -> bytes:
        """The report of a study or a pick."""
        file = self._find(path) / REPORT
        try:
            if file.stat().st_size > LARGEST_REPORT:
                raise Problem(413, "The report is too large to be shown: open the file itself.")
            return file.read_bytes()
        except OSError:
            raise Problem(404, f"There is no report at {path}.") from None

    # --- tickets: a link cannot carry a token --------------------------------------------------------

    def make_ticket(self, path: str) -> str:
        """A word that opens one report for a minute."""
        expiry = str(int(time.time()) + TICKET_SECONDS)
        return f"{expiry}.{self._sign(path, expiry)}"

    def check_ticket(self, path: str, ticket: str) -> None:
        """Raise 401 where a ticket is not ours, for another report, or too old."""
        expiry, _, signature = ticket.partition(".")
        right = hmac.compare_digest(signature.encode(), self._sign(path, expiry).encode())
        if not right or not expiry.isdecimal() or int(expiry) < time.time():
            raise Problem(401, "This link is over: open the report from the board.", {"WWW-Authenticate": "Bearer"})

    def _sign(self, path: str, expiry: str) -> str:
        return hmac.new(self._secret, f"{expiry}\n{path}".encode(), hashlib.sha256).hexdigest()

    # --- folders --------------------------------------------------------------------------------------

    def _walk(self) -> Iterator[tuple[str, Path]]:
        """("run", "study" or "pick", folder) of everything below; what is inside of them is not looked at."""
        waiting = [(self.folder, 0)]
        seen = 0
        while waiting and seen < MOST_FOLDERS:
            folder, depth = waiting.pop()
            seen += 1
            try:
                with os.scandir(folder) as entries:
                    names = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
            except OSError:
                continue
            if RECIPE in names or is_baseline(folder):
                yield "run", folder
                continue
            if STUDY in names and CELLS in names:
                yield "study", folder
                continue
            if "pick.json" in names:
                yield "pick", folder
            if depth < DEPTH:
                inside = [name for name, is_folder in names.items() if is_folder and not name.startswith(".")]
                waiting += [(folder / name, depth + 1) for name in sorted(inside, reverse=True) if name not in HIDDEN]

    def _find(self, path: str) -> Path:
        """A folder of the board by its path; 404 for whatever lies outside."""
        try:
            folder = (self.folder / path).resolve()
            inside = folder.is_relative_to(self.folder) and folder.is_dir()
        except (OSError, ValueError):  # a name that no file system takes
            inside = False
        if not inside:
            raise Problem(404, f"There is nothing at {path} on this board.")
        return folder

    def _relative(self, folder: Path) -> str:
        return folder.relative_to(self.folder).as_posix()

    # --- runs -----------------------------------------------------------------------------------------

    def _describe_run(self, folder: Path, locks: frozenset[int], study: str = "") -> BoardRun:
        curve = self.curves.read(folder / METRICS)
        last = curve.lines[-1] if curve.lines else {}
        train, valid = curve.part("train"), curve.part("valid")
        common: dict[str, Any] = {
            "path": self._relative(folder),
            "name": folder.name if folder != self.folder else self.folder.name,
            "study": study,
            "served": self.served.get(folder, ""),
            "step": int(last.get("step") or 0),
            "tokens": float(last.get("tokens") or 0),
            "flops": float(last.get("flops") or 0),
            "seconds": float(last.get("seconds") or 0),
            "loss": _number(train[-1].get("loss")) if train else None,
            "valid": _scores(valid[-1]) if valid else {},
            "spark": [loss for line in thin(train, 60) if (loss := _number(line.get("loss"))) is not None],
            "updated": max(_changed(folder / name) for name in (METRICS, WEIGHTS, RECIPE, "baseline.json")),
        }
        if not (folder / RECIPE).is_file():
            return BoardRun(**common, system="baseline", state="finished")
        run = self._open_run(folder)
        if isinstance(run, str):
            return BoardRun(**common, state="damaged", problem=run)
        state = "finished" if run.finished else "running" if _is_running(folder, curve, locks) else "stopped"
        steps, task = run.recipe.train.steps, ""
        if run.is_fine_tuned:  # its recipe is that of the pre-training
            plan = _read_yaml(folder / TASK)
            task, planned = str(plan.get("kind", "")), _number(_dict(plan.get("train")).get("steps"))
            steps = None if planned is None else int(planned)
        if study:  # all cells keep their run under the same name
            common["name"] = run.recipe.name or common["name"]
        return BoardRun(**common, system=run.recipe.system, task=task, state=state, steps=steps)

    def _open_run(self, folder: Path) -> Run | str:
        """The run with its recipe read, or what is wrong with it; read again only where the recipe changed."""
        changed = _changed_ns(folder / RECIPE)
        cached = self._recipes.get(folder)
        if cached is None or cached[0] != changed:
            try:
                run = Run.open(folder)
                _ = run.recipe
                cached = (changed, run)
            except (UserError, OSError) as problem:
                cached = (changed, str(problem))
            self._recipes[folder] = cached
        return cached[1]

    def _running_cells(self, study: Path, locks: frozenset[int]) -> Iterator[BoardRun]:
        store = CellStore(study / CELLS)
        for lock in _held_cells(study, locks):
            folder = store.work_folder(lock.name.removeprefix(".").removesuffix(".lock")) / "run"
            if (folder / RECIPE).is_file():
                yield self._describe_run(folder, locks, study.name)

    # --- studies --------------------------------------------------------------------------------------

    def _describe_study(self, folder: Path, kind: str, locks: frozenset[int]) -> BoardStudy:
        running = bool(_held_cells(folder, locks)) or _inode(folder / LOCK) in locks
        results = _read_json(folder / RESULTS)
        common: dict[str, Any] = {
            "path": self._relative(folder),
            "name": folder.name,
            "kind": kind,
            "state": "running" if running else "finished" if results else "stopped",
            "report": (folder / REPORT).is_file(),
            "done": sum(1 for _ in (folder / CELLS).glob("*/result.json")) if kind == "study" else 0,
            "updated": max(_changed(folder / name) for name in (RESULTS, STUDY, "pick.json")),
        }
        try:
            summary = _summarise_study(results) if kind == "study" else _summarise_pick(results)
        except (KeyError, TypeError, AttributeError, ValueError):
            return BoardStudy(**common | {"state": "damaged"}, title=folder.name, problem=f"{RESULTS} cannot be read.")
        if kind == "study" and not results:
            summary["title"] = _read_yaml(folder / STUDY).get("title") or folder.name
        return BoardStudy(**common, **({"title": folder.name} | summary))


def _summarise_study(results: dict[str, Any]) -> dict[str, Any]:
    if not results:
        return {}
    verdicts: dict[str, int] = {}
    for claim in results["claims"]:
        verdicts[str(claim["verdict"])] = verdicts.get(str(claim["verdict"]), 0) + 1
    rows = [
        BoardRow(name=row["label"], mean=_number(mean["mean"]), low=_number(mean["low"]), high=_number(mean["high"]))
        for row in rank_rows(results)
        if (mean := row["mean"]) is not None
    ]
    scores = list(dict.fromkeys(str(column["score"]) for column in results["columns"]))
    return {
        "title": results["title"] or results["name"],
        "score": ", ".join(scores[:3]),
        "rows": rows[:8],
        "verdicts": verdicts,
        "date": str(results["date"]),
    }


def _summarise_pick(results: dict[str, Any]) -> dict[str, Any]:
    if not results:
        return {}
    rows = [BoardRow(name=row["label"], mean=_number(row["score"])) for row in results["rows"]]
    rows.sort(key=lambda row: -(row.mean if row.mean is not None else -math.inf))
    return {
        "title": results["label"],
        "score": str(results["score"]),
        "rows": rows[:8],
        "date": str(results["date"])[:10],
    }


# --- files ------------------------------------------------------------------------------------------


def read_locks() -> frozenset[int]:
    """The inodes of all files that a process holds a lock on."""
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return frozenset()
    inodes = set()
    for line in lines:
        parts = line.split()
        if len(parts) >= 6 and parts[1] == "FLOCK":
            inodes.add(int(parts[5].rpartition(":")[2]))
    return frozenset(inodes)


def _held_cells(study: Path, locks: frozenset[int]) -> list[Path]:
    """The lock files of the cells that a process works on."""
    return [path for path in sorted((study / CELLS).glob(".*.lock")) if _inode(path) in locks]


def _is_running(folder: Path, curve: Curve, locks: frozenset[int]) -> bool:
    inode = _inode(folder / LOCK)
    return inode in locks if inode is not None else time.time() - _changed(folder / METRICS) < FRESH


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _changed(path: Path) -> float:
    return _changed_ns(path) / 1e9


def _changed_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _number(value: object) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None  # type: ignore[arg-type]


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _scores(line: dict[str, Any]) -> dict[str, float]:
    hidden = {"step", "tokens", "flops", "seconds", "split"}
    numbers = {name: _number(value) for name, value in line.items() if name not in hidden}
    return {name: value for name, value in numbers.items() if value is not None}


def _columns(lines: list[dict[str, Any]]) -> dict[str, list[float | None]]:
    names = list(dict.fromkeys(name for line in lines for name in line if name != "split"))
    return {name: [_number(line.get(name)) for line in lines] for name in names}


def _read_text(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST_TEXT:
            return ""
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(_read_text(path) or "{}")
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        return parse(_read_text(path), path.name).values
    except UserError:
        return {}


def _read_settings(path: Path) -> dict[str, str]:
    """The settings of a recipe by their full names."""
    flat: dict[str, str] = {}
    waiting: list[tuple[str, Any]] = list(_read_yaml(path).items())
    while waiting:
        name, value = waiting.pop(0)
        if isinstance(value, dict):
            waiting = [(f"{name}.{key}", inner) for key, inner in value.items()] + waiting
        elif value is not None:
            flat[str(name)] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return flat
