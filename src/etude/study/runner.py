"""`etude study`: plans, does the cells that are not done, and tells what came out.

Cells wait only for the run they start from. One that fails is told, with those that needed it, and the rest goes on.
Stopped or killed, the same command goes on; a second one at the same time is refused.
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
    """A study that has come to its end."""

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
    say: OnProgress = lambda _: None,
) -> Report:
    """Does what is not done yet of a study in the folder `out`; `only` does one cell and what it needs.

    Without `work` no cell is done: the report tells what there is, of a study that was cut off too.
    """
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    with _lock_folder(folder):
        plan = plans.make_plan(
            study, folder, data=None if data is None else Path(data), device=device, keep=keep, say=say
        )
        known = register_claims(plan)
        checkpoint.write_text(
            folder / STUDY, yaml.dump(study.dump(), Dumper=Writer, sort_keys=False, allow_unicode=True, width=110)
        )
        wanted = select_cells(plan, only)
        if not work:
            return write_results(plan, load_errors(plan, wanted), known, language)
        if retry:
            for cell in wanted:
                plan.store.clear_failure(cell.key)
        with _make_executor(on, plan.store.folder, workers, quiet) as place:
            errors = run_cells(plan, wanted, place, say)
        return write_results(plan, errors, known, language)


def load_errors(plan: Plan, cells: list[Cell]) -> dict[str, str]:
    """The messages of failures that were kept, by key."""
    return {cell.key: plan.store.error(cell.key) for cell in cells if plan.store.state(cell.key) == "failed"}


def write_results(plan: Plan, errors: dict[str, str], known: dict[str, Any], language: str = "en") -> Report:
    """results.json, the table and the page."""
    found = results.collect(plan, errors, known)
    checkpoint.write_text(plan.folder / RESULTS, json.dumps(found, indent=1, ensure_ascii=False))
    checkpoint.write_text(plan.folder / TABLE, render_markdown(found))
    write_report(plan.folder / REPORT, found, language)
    return Report(plan.folder, found)


def select_cells(plan: Plan, only: str | None) -> list[Cell]:
    """All cells, or one of them with what it starts from."""
    if only is None:
        return list(plan.cells.values())
    found = [cell for key, cell in plan.cells.items() if key.startswith(only)]
    if len(found) != 1:
        many = "no cell" if not found else f"{len(found)} cells"
        raise UserError(
            f"--cell {only}: {many} of this study begin{'' if found[1:] else 's'} like this. --dry-run lists them."
        )
    before = [plan.cells[found[0].depends_on]] if found[0].depends_on else []
    return [*before, *found]


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
    """The claims and the rule as they stood before the first cell: whoever changes them later, the report says so."""
    study, path = plan.study, plan.folder / REGISTERED
    now = {
        "claims": [claim.model_dump(mode="json") for claim in study.claims],
        "rule": study.rule.model_dump(mode="json"),
    }
    begun = any(plan.store.state(key) != "absent" for key in plan.cells)
    if path.is_file():
        known = json.loads(path.read_text(encoding="utf-8"))
        if {name: known[name] for name in now} == now:
            return {"date": known["date"], "changed": known.get("changed", False)}
        begun = True  # somebody has seen a result of this folder
    known = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "changed": begun and path.is_file(), **now}
    checkpoint.write_text(path, json.dumps(known, indent=1, ensure_ascii=False))
    return {"date": known["date"], "changed": known["changed"]}


# --- cells in their order ---------------------------------------------------------------------------


def run_cells(plan: Plan, cells: list[Cell], place: Executor, say: OnProgress) -> dict[str, str]:
    """Does what is not done; the messages of what failed, by key."""
    store = plan.store
    waiting = [cell for cell in cells if store.state(cell.key) != "done"]
    total, begun, running = len(waiting), time.monotonic(), 0
    errors: dict[str, str] = {}
    finished = {cell.key for cell in cells if store.state(cell.key) == "done"}
    if len(finished) and total:
        say(f"{len(finished)} of {len(cells)} cells are there already")
    spent = 0.0
    while waiting or running:
        for cell in [one for one in waiting if one.depends_on in errors]:
            waiting.remove(cell)
            errors[cell.key] = f"what it starts from failed: {errors[cell.depends_on or '']}"
        ready = [one for one in waiting if one.depends_on is None or one.depends_on in finished]
        if place.slots > 1:  # the longest first, so that nobody waits at the end for one that was begun late
            ready.sort(key=lambda one: (one.kind != "pretrain", -one.seconds))
        for cell in ready[: max(0, place.slots - running)]:
            waiting.remove(cell)
            place.submit(cell)
            running += 1
        if not running:
            continue
        done = place.wait()
        running -= 1
        cell = plan.cells[done.key]
        if done.stopped:
            raise Interrupted
        spent += cell.seconds
        if done.error is None:
            finished.add(done.key)
        else:
            errors[done.key] = done.error
        count = total - len(waiting) - running
        say(_format_progress(plan, cell, done.error, count, total, time.monotonic() - begun, spent, waiting))
    return errors


def _format_progress(
    plan: Plan, cell: Cell, error: str | None, count: int, total: int, passed: float, spent: float, waiting: list[Cell]
) -> str:
    left = sum(one.seconds for one in waiting) * passed / spent if spent and waiting else 0.0
    if error is not None:
        outcome = f"FAILED: {error.splitlines()[0]}"
    else:
        result = plan.store.result(cell.key)
        score = f"{result['score']} {100 * result['value']:.1f}, " if "value" in result else ""
        outcome = f"{score}{result['seconds']:.1f} s"
    wait = f"  (left about {_format_duration(left)})" if left > 2 else ""
    return f"[{count}/{total}] {cell.title}: {outcome}{wait}"


def _format_duration(seconds: float) -> str:
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600}h{whole // 60 % 60:02d}m"
    return f"{whole // 60}m{whole % 60:02d}s" if whole >= 60 else f"{whole}s"
