"""The board: what lies in a folder of runs and studies, finished, running or stopped, as plain data.

A run is running while another process holds its lock, which is read from /proc/locks and never taken: looking must not
get in the way of training. Folders are looked at again on every request, and only what changed is read again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from etude.baselines.base import is_baseline
from etude.errors import UserError
from etude.runs.run import METRICS, MODEL_CARD, RECIPE, TASK, WEIGHTS, Run
from etude.runs.training import LOCK
from etude.serve.board_entries import BoardData, BoardRow, BoardRun, BoardStudy, RunDetails
from etude.serve.board_files import (
    CELLS,
    as_dict,
    as_number,
    find_change,
    find_change_ns,
    find_held_cells,
    find_inode,
    is_running,
    list_columns,
    list_scores,
    read_json,
    read_locks,
    read_settings,
    read_text,
    read_yaml,
)
from etude.serve.problems import Problem, hide_folder
from etude.serve.run_curves import Curves, thin
from etude.study.cells import CellStore
from etude.study.leaderboard import rank_rows
from etude.study.study_folder import REPORT, RESULTS, STUDY

DEPTH = 4  # folders below the board's
MOST_FOLDERS, MOST_ENTRIES = 20_000, 500
HIDDEN = frozenset({"checkpoints", "corpora", CELLS, "references", "export", "node_modules", "__pycache__"})
LARGEST_REPORT = 2**26


class Board:
    """A folder of runs and studies."""

    def __init__(self, folder: str | Path, served: dict[Path, str] | None = None) -> None:
        self.folder = Path(folder).resolve()
        if not self.folder.is_dir():
            raise UserError(f"--board {folder}: there is no such folder.")
        self.served = served or {}
        self.curves = Curves()
        self._recipes: dict[Path, tuple[int, Run | str]] = {}

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
            train=list_columns(thin(curve.part("train"))),
            valid=list_columns(thin(curve.part("valid"))),
            settings=read_settings(folder),
            card=read_text(folder / MODEL_CARD),
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
            "loss": as_number(train[-1].get("loss")) if train else None,
            "valid": list_scores(valid[-1]) if valid else {},
            "spark": [loss for line in thin(train, 60) if (loss := as_number(line.get("loss"))) is not None],
            "updated": max(find_change(folder / name) for name in (METRICS, WEIGHTS, RECIPE, "baseline.json")),
        }
        if not (folder / RECIPE).is_file():
            return BoardRun(**common, system="baseline", state="finished")
        run = self._open_run(folder)
        if isinstance(run, str):
            return BoardRun(**common, state="damaged", problem=run)
        state = "finished" if run.finished else "running" if is_running(folder, curve, locks) else "stopped"
        steps, task = run.recipe.train.steps, ""
        if run.is_fine_tuned:  # its recipe is that of the pre-training
            plan = read_yaml(folder / TASK)
            task, planned = str(plan.get("kind", "")), as_number(as_dict(plan.get("train")).get("steps"))
            steps = None if planned is None else int(planned)
        if study:  # all cells keep their run under the same name
            common["name"] = run.recipe.name or common["name"]
        return BoardRun(**common, system=run.recipe.system, task=task, state=state, steps=steps)

    def _open_run(self, folder: Path) -> Run | str:
        """The run with its recipe read, or what is wrong with it; read again only where the recipe changed."""
        changed = find_change_ns(folder / RECIPE)
        cached = self._recipes.get(folder)
        if cached is None or cached[0] != changed:
            try:
                run = Run.open(folder)
                _ = run.recipe
                cached = (changed, run)
            except UserError as problem:
                cached = (changed, hide_folder(problem.message, self.folder))
            except OSError as problem:
                cached = (changed, f"{RECIPE} cannot be read: {problem.strerror}.")
            self._recipes[folder] = cached
        return cached[1]

    def _running_cells(self, study: Path, locks: frozenset[int]) -> Iterator[BoardRun]:
        store = CellStore(study / CELLS)
        for lock in find_held_cells(study, locks):
            folder = store.work_folder(lock.name.removeprefix(".").removesuffix(".lock")) / "run"
            if (folder / RECIPE).is_file():
                yield self._describe_run(folder, locks, study.name)

    # --- studies --------------------------------------------------------------------------------------

    def _describe_study(self, folder: Path, kind: str, locks: frozenset[int]) -> BoardStudy:
        running = bool(find_held_cells(folder, locks)) or find_inode(folder / LOCK) in locks
        results = read_json(folder / RESULTS)
        common: dict[str, Any] = {
            "path": self._relative(folder),
            "name": folder.name,
            "kind": kind,
            "state": "running" if running else "finished" if results else "stopped",
            "report": (folder / REPORT).is_file(),
            "done": sum(1 for _ in (folder / CELLS).glob("*/result.json")) if kind == "study" else 0,
            "updated": max(find_change(folder / name) for name in (RESULTS, STUDY, "pick.json")),
        }
        try:
            summary = _summarise_study(results) if kind == "study" else _summarise_pick(results)
            if kind == "study" and not results:
                summary["title"] = read_yaml(folder / STUDY).get("title") or folder.name
            return BoardStudy(**common, **({"title": folder.name} | summary))
        except (KeyError, TypeError, AttributeError, ValueError):  # also where it fits no entry: pydantic's is one
            problem = f"{RESULTS if results else STUDY} cannot be read."
            return BoardStudy(**common | {"state": "damaged"}, title=folder.name, problem=problem)


def _summarise_study(results: dict[str, Any]) -> dict[str, Any]:
    if not results:
        return {}
    verdicts: dict[str, int] = {}
    for claim in results["claims"]:
        verdicts[str(claim["verdict"])] = verdicts.get(str(claim["verdict"]), 0) + 1
    rows = [
        BoardRow(
            name=row["label"], mean=as_number(mean["mean"]), low=as_number(mean["low"]), high=as_number(mean["high"])
        )
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
    # in the order that chose, the one that was returned first: a higher score of few folds is no better one
    ordered = sorted(results["rows"], key=lambda row: row["name"] != results["winner"])
    rows = [BoardRow(name=row["label"], mean=as_number(row["score"])) for row in ordered]
    return {
        "title": results["label"],
        "score": str(results["score"]),
        "rows": rows[:8],
        "date": str(results["date"])[:10],
    }
