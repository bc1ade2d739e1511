"""`etude study`: plans a study, runs the cells that are not done, and writes the report.

Cells wait only for the run they start from. A cell that fails is reported, with those that depend on it, and the rest
continues. Stopped or killed, the same command resumes; a second one at the same time is refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import yaml

from etude.errors import UserError
from etude.recipes.document import Writer
from etude.study import plan as plans
from etude.study import results
from etude.study.cells import Cell
from etude.study.execute import Interrupted
from etude.study.executors import Executor, ProcessExecutor, RayExecutor, SerialExecutor
from etude.study.leaderboard import render_markdown
from etude.study.plan import Plan
from etude.study.report.page import write_report
from etude.study.settings import Study
from etude.train import checkpoint

ExecutorName = Literal["here", "processes", "ray"]
STUDY, RESULTS, REPORT, TABLE, REGISTERED = "study.yaml", "results.json", "report.html", "table.md", "registered.json"
OnProgress = Callable[[str], None]


@dataclass(frozen=True)
class Report:
    """Results of a study and the folder they are in."""

    folder: Path
    results: dict[str, Any]

    @property
    def page(self) -> Path:
        return self.folder / REPORT

    @property
    def failed(self) -> list[str]:
        return [f"{cell['title']}: {cell['error']}" for cell in self.results["cells"] if "error" in cell]


def run(
    study: Study,
    out: str | Path,
    *,
    on: ExecutorName = "here",
    workers: int = 1,
    data: str | Path | None = None,
    device: str | None = None,
    retry: bool = False,
    keep: bool = False,
    only: str | None = None,
    work: bool = True,
    language: str = "en",
    quiet: bool = True,
    on_progress: OnProgress = lambda _: None,
) -> Report:
    """Run the cells of a study that are not done, in the folder `out`; `only` runs one cell and its dependency.

    Without `work` no cell runs: the report shows the cells that are done, of an interrupted study too.
    """
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    with _lock_folder(folder):
        plan = plans.make_plan(
            study, folder, data=None if data is None else Path(data), device=device, keep=keep, on_progress=on_progress
        )
        registration = register_claims(plan)
        checkpoint.write_text(
            folder / STUDY, yaml.dump(study.dump(), Dumper=Writer, sort_keys=False, allow_unicode=True, width=110)
        )
        cells = select_cells(plan, only)
        if not work:
            return write_results(plan, load_errors(plan, cells), registration, language)
        if retry:
            for cell in cells:
                plan.store.clear_failure(cell.key)
        with _make_executor(on, plan.store.folder, workers, quiet) as executor:
            errors = run_cells(plan, cells, executor, on_progress)
        return write_results(plan, errors, registration, language)


def load_errors(plan: Plan, cells: list[Cell]) -> dict[str, str]:
    """Load the messages of stored failures, by key."""
    return {cell.key: plan.store.error(cell.key) for cell in cells if plan.store.state(cell.key) == "failed"}


def write_results(plan: Plan, errors: dict[str, str], registration: dict[str, Any], language: str = "en") -> Report:
    """Write results.json, the Markdown table and the HTML report."""
    collected = results.collect(plan, errors, registration)
    checkpoint.write_text(plan.folder / RESULTS, json.dumps(collected, indent=1, ensure_ascii=False))
    checkpoint.write_text(plan.folder / TABLE, render_markdown(collected))
    write_report(plan.folder / REPORT, collected, language)
    return Report(plan.folder, collected)


def select_cells(plan: Plan, only: str | None) -> list[Cell]:
    """Select all cells, or one of them with the cell it depends on."""
    if only is None:
        return list(plan.cells.values())
    matches = [cell for key, cell in plan.cells.items() if key.startswith(only)]
    if len(matches) != 1:
        count = "no cell" if not matches else f"{len(matches)} cells"
        raise UserError(
            f"--cell {only}: {count} of this study begin{'' if matches[1:] else 's'} like this. --dry-run lists them."
        )
    dependencies = [plan.cells[matches[0].depends_on]] if matches[0].depends_on else []
    return [*dependencies, *matches]


@contextlib.contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    with open(folder / ".lock", "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"{folder} is being worked on by another process. Wait for it, or choose another folder with -o."
            ) from None
        yield


def _make_executor(on: ExecutorName, folder: Path, workers: int, quiet: bool) -> Executor:
    folder.mkdir(parents=True, exist_ok=True)
    if on == "ray":
        return RayExecutor(folder)
    return ProcessExecutor(folder, workers) if on == "processes" else SerialExecutor(folder, quiet)


def register_claims(plan: Plan) -> dict[str, Any]:
    """Save the claims and the rule before the first cell runs, so that the report can say if they changed later."""
    study, path = plan.study, plan.folder / REGISTERED
    current = {
        "claims": [claim.model_dump(mode="json") for claim in study.claims],
        "rule": study.rule.model_dump(mode="json", exclude={"deviation"}),  # a guess for plans decides nothing
    }
    has_results = any(plan.store.state(key) != "absent" for key in plan.cells)
    if path.is_file():
        registration = json.loads(path.read_text(encoding="utf-8"))
        if {name: registration[name] for name in current} == current:
            return {"date": registration["date"], "changed": registration.get("changed", False)}
        has_results = True  # somebody has seen a result of this folder
    registration = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "changed": has_results and path.is_file(),
        **current,
    }
    checkpoint.write_text(path, json.dumps(registration, indent=1, ensure_ascii=False))
    return {"date": registration["date"], "changed": registration["changed"]}


# --- cells in their order ---------------------------------------------------------------------------


def run_cells(plan: Plan, cells: list[Cell], executor: Executor, on_progress: OnProgress) -> dict[str, str]:
    """Run the cells that are not done; returns the messages of failed cells, by key."""
    store = plan.store
    waiting = [cell for cell in cells if store.state(cell.key) != "done"]
    total, start, active = len(waiting), time.monotonic(), 0
    errors: dict[str, str] = {}
    finished = {cell.key for cell in cells if store.state(cell.key) == "done"}
    if len(finished) and total:
        on_progress(f"{len(finished)} of {len(cells)} cells are there already")
    planned_seconds = 0.0
    while waiting or active:
        for cell in [cell for cell in waiting if cell.depends_on in errors]:
            waiting.remove(cell)
            errors[cell.key] = f"what it starts from failed: {errors[cell.depends_on or '']}"
        ready = [cell for cell in waiting if cell.depends_on is None or cell.depends_on in finished]
        if executor.slots > 1:  # the longest first, so that nobody waits at the end for one that was begun late
            ready.sort(key=lambda cell: (cell.kind != "pretrain", -cell.seconds))
        for cell in ready[: max(0, executor.slots - active)]:
            waiting.remove(cell)
            executor.submit(cell)
            active += 1
        if not active:
            continue
        result = executor.wait()
        active -= 1
        cell = plan.cells[result.key]
        if result.stopped:
            raise Interrupted
        planned_seconds += cell.seconds
        if result.error is None:
            finished.add(result.key)
        else:
            errors[result.key] = result.error
        count = total - len(waiting) - active
        on_progress(
            _format_progress(plan, cell, result.error, count, total, time.monotonic() - start, planned_seconds, waiting)
        )
    return errors


def _format_progress(
    plan: Plan,
    cell: Cell,
    error: str | None,
    count: int,
    total: int,
    elapsed: float,
    planned_seconds: float,
    pending: list[Cell],
) -> str:
    remaining = (
        sum(cell.seconds for cell in pending) * elapsed / planned_seconds if planned_seconds and pending else 0.0
    )
    if error is not None:
        outcome = f"FAILED: {error.splitlines()[0]}"
    else:
        result = plan.store.result(cell.key)
        score = f"{result['score']} {100 * result['value']:.1f}, " if "value" in result else ""
        outcome = f"{score}{result['seconds']:.1f} s"
    estimate = f"  (left about {_format_duration(remaining)})" if remaining > 2 else ""
    return f"[{count}/{total}] {cell.title}: {outcome}{estimate}"


def _format_duration(seconds: float) -> str:
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600}h{whole // 60 % 60:02d}m"
    return f"{whole // 60}m{whole % 60:02d}s" if whole >= 60 else f"{whole}s"
