"""`etude study`: plans a study, runs the cells that are not done, and writes the report.

Cells wait only for the run they start from. A cell that fails is reported, with those that depend on it, and the rest
continues. Stopped or killed, the same command resumes; a second one at the same time is refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import yaml

from etude.errors import UserError, WriteError
from etude.recipes.document import Writer
from etude.study import planner, results
from etude.study.cell_archive import import_cells
from etude.study.cells import Cell, CellStore
from etude.study.execute import Interrupted
from etude.study.executors import Executor, ProcessExecutor, RayExecutor, SerialExecutor
from etude.study.leaderboard import render_markdown
from etude.study.plan import Plan
from etude.study.report.page import write_report
from etude.study.settings import Study
from etude.study.visit import Visit, missing_bases, order_cells
from etude.train import checkpoint

ExecutorName = Literal["here", "processes", "ray"]
STUDY, RESULTS, REPORT, TABLE, REGISTERED = "study.yaml", "results.json", "report.html", "table.md", "registered.json"
MACHINE = "machine.json"
OnProgress = Callable[[str], None]


@dataclass(frozen=True)
class Report:
    """Results of a study and the folder they are in."""

    folder: Path
    results: dict[str, Any]
    others: tuple[Report, ...] = ()  # of the studies that ran from the same queue

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
    minutes: float | None = None,
    import_from: Sequence[str | Path] = (),
    export_to: str | Path | None = None,
    language: str = "en",
    quiet: bool = True,
    on_progress: OnProgress = lambda _: None,
) -> Report:
    """Run the cells of a study that are not done, in the folder `out`; `only` runs one cell and its dependency.

    Without `work` no cell runs: the report shows the cells that are done, of an interrupted study too. With `minutes`
    no cell is started that would end later. Cells travel between machines by `import_from` and `export_to`.
    """
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    visit = Visit(minutes, None if export_to is None else Path(export_to), folder)

    def make_plan() -> Plan:
        return planner.make_plan(
            study, folder, data=None if data is None else Path(data), device=device, keep=keep, on_progress=on_progress
        )

    with _lock_folder(folder):
        _import_archives(CellStore(folder / "cells"), import_from, folder, on_progress)
        plan = make_plan()
        registration = _register(plan)
        if not work:
            visit.export(plan.store)
            return write_results(plan, load_errors(plan, select_cells(plan, only)), registration, language)
        if retry:
            for cell in select_cells(plan, only):
                plan.store.clear_failure(cell.key)
        with _make_executor(on, plan.store.folder, workers, quiet) as executor:
            if only is None:
                (plan,), errors = _run_tuned([plan], plan.store, lambda: [make_plan()], executor, on_progress, visit)
            else:
                errors = run_cells(plan.store, select_cells(plan, only), executor, on_progress, visit)
        return write_results(plan, errors, registration, language)


def _run_tuned(
    planned: list[Plan], store: CellStore, make_plans: Callable[[], list[Plan]], executor: Executor,
    on_progress: OnProgress, visit: Visit,
) -> tuple[list[Plan], dict[str, str]]:  # fmt: skip
    """Run the trials of pre-training, plan again with what they chose, and so on; then everything else."""
    errors: dict[str, str] = {}
    while True:
        if visit.keeps_order or len(planned) > 1:
            cells = order_cells(planned, store)
        else:
            cells = [cell for plan in planned for cell in plan.ready_cells()]
        errors |= run_cells(store, cells, executor, on_progress, visit)
        if not any(plan.untuned for plan in planned):
            return planned, errors
        before = [list(plan.tuning_cells) for plan in planned], [plan.untuned for plan in planned]
        planned = make_plans()
        if before == ([list(plan.tuning_cells) for plan in planned], [plan.untuned for plan in planned]):
            return planned, errors  # the time is up, and trials are left


def run_several(
    studies: Sequence[Study],
    out: str | Path,
    *,
    on: ExecutorName = "here",
    workers: int = 1,
    data: str | Path | None = None,
    device: str | None = None,
    retry: bool = False,
    work: bool = True,
    minutes: float | None = None,
    import_from: Sequence[str | Path] = (),
    export_to: str | Path | None = None,
    language: str = "en",
    quiet: bool = True,
    on_progress: OnProgress = lambda _: None,
) -> list[Report]:
    """Run several studies from one queue, each in its folder under `out`; they share the cells in `out`/cells."""
    names = [study.name for study in studies]
    if len(set(names)) < len(names):
        raise UserError(f"Two of these studies have one name: {', '.join(names)}. Each needs its own.")
    root = Path(out)
    store = CellStore(root / "cells")
    store.folder.mkdir(parents=True, exist_ok=True)
    visit = Visit(minutes, None if export_to is None else Path(export_to), root)
    with contextlib.ExitStack() as locks:
        locks.enter_context(_lock_folder(root))
        _import_archives(store, import_from, root, on_progress)
        for study in studies:
            folder = root / study.name
            folder.mkdir(exist_ok=True)
            locks.enter_context(_lock_folder(folder))
            _share_cells(folder)

        def make_plans() -> list[Plan]:
            planned: list[Plan] = []
            for study in studies:
                folder = root / study.name
                _share_machine(root, folder)
                planned.append(
                    planner.make_plan(
                        study, folder, data=None if data is None else Path(data), device=device, on_progress=on_progress
                    )
                )
                _share_machine(folder, root)
            return planned

        planned = make_plans()
        registrations = [_register(plan) for plan in planned]
        errors: dict[str, str] = {}
        if work:
            if retry:
                for cell in (cell for plan in planned for cell in plan.cells.values()):
                    store.clear_failure(cell.key)
            with _make_executor(on, store.folder, workers, quiet) as executor:
                planned, errors = _run_tuned(planned, store, make_plans, executor, on_progress, visit)
        else:
            visit.export(store)
            for plan in planned:
                errors |= load_errors(plan, list(plan.cells.values()))
        return [
            write_results(plan, {key: errors[key] for key in plan.cells if key in errors}, registration, language)
            for plan, registration in zip(planned, registrations, strict=True)
        ]


def _share_cells(folder: Path) -> None:
    """Link the cells of a study to those of the folder above."""
    link = folder / "cells"
    if link.is_symlink():
        return
    if link.exists():
        raise UserError(
            f"{link} holds the cells of a study that ran alone. Take them along by --export-cells and --import-cells, "
            "or choose another folder with -o."
        )
    link.symlink_to(Path("..") / "cells", target_is_directory=True)


def _share_machine(source: Path, target: Path) -> None:
    """Copy device and measured speeds, so that all studies of a queue are planned for one machine."""
    if (source / MACHINE).is_file():
        checkpoint.write_text(target / MACHINE, (source / MACHINE).read_text(encoding="utf-8"))


def _import_archives(store: CellStore, paths: Sequence[str | Path], folder: Path, on_progress: OnProgress) -> None:
    for path in paths:
        on_progress(f"{path}: {import_cells(store, Path(path), folder)}")


def _register(plan: Plan) -> dict[str, Any]:
    """Register the claims and save the study beside its cells."""
    registration = register_claims(plan)
    text = yaml.dump(plan.study.dump(), Dumper=Writer, sort_keys=False, allow_unicode=True, width=110)
    checkpoint.write_text(plan.folder / STUDY, text)
    return registration


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
    counts = f"{study.seeds.pretrain} × {study.seeds.transfer}"
    registration = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "changed": False,
        "seeds": [counts],
        **current,
    }
    if path.is_file():
        former = json.loads(path.read_text(encoding="utf-8"))
        is_same = {name: former[name] for name in current} == current
        registration["changed"] = former.get("changed", False) if is_same else True  # results could be seen
        if is_same:
            registration["date"] = former["date"]
        if has_results:
            registration["seeds"] = list(dict.fromkeys([*former.get("seeds", []), counts]))
        if registration == former:
            return _describe_registration(study, registration)
    checkpoint.write_text(path, json.dumps(registration, indent=1, ensure_ascii=False))
    return _describe_registration(study, registration)


def _describe_registration(study: Study, registration: dict[str, Any]) -> dict[str, Any]:
    """Describe when claims were registered, and the numbers of seeds that were judged without having been planned."""
    planned = {f"{look} × {study.seeds.transfer}" for look in study.rule.looks}
    seeds = registration["seeds"]
    unplanned = seeds if len(seeds) > 1 and not set(seeds) <= planned else []
    return {"date": registration["date"], "changed": registration["changed"], "unplanned_seeds": unplanned}


# --- cells in their order ---------------------------------------------------------------------------


def run_cells(
    store: CellStore, cells: Sequence[Cell], executor: Executor, on_progress: OnProgress, visit: Visit | None = None
) -> dict[str, str]:
    """Run the cells that are not done; returns the messages of failed cells, by key."""
    visit = visit or Visit()
    by_key = {cell.key: cell for cell in cells}
    for key in missing_bases(store, cells):
        if key in by_key:
            store.forget(key)  # its weights are elsewhere, and a transfer starts from them
    visit.open(store, cells)
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
        if executor.slots > 1 and not visit.keeps_order:
            # the longest first, so that nobody waits at the end for one that was begun late
            ready.sort(key=lambda cell: (cell.kind != "pretrain", -cell.seconds))
        free = max(0, executor.slots - active)
        for cell in [cell for cell in ready if visit.fits(cell, executor.slots, finished.__contains__)][:free]:
            waiting.remove(cell)
            visit.begin(cell)
            executor.submit(cell)
            active += 1
        if not active:
            if ready:
                on_progress(f"The time is up: {len(waiting)} of {total} cells are left for the next visit.")
                break
            continue
        result = executor.wait()
        active -= 1
        cell = by_key[result.key]
        if result.stopped:
            visit.export(store)
            raise Interrupted
        if result.unwritten:
            raise WriteError(result.error)
        planned_seconds += cell.seconds
        if result.error is None:
            finished.add(result.key)
        else:
            errors[result.key] = result.error
        count = total - len(waiting) - active
        elapsed = time.monotonic() - start
        on_progress(_format_progress(store, cell, result.error, count, total, elapsed, planned_seconds, waiting))
        visit.finish(cell, store)
    visit.export(store)
    return errors


def _format_progress(
    store: CellStore,
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
        result = store.result(cell.key)
        score = f"{result['score']} {100 * result['value']:.1f}, " if "value" in result else ""
        outcome = f"{score}{result['seconds']:.1f} s"
    estimate = f"  (left about {_format_duration(remaining)})" if remaining > 2 else ""
    return f"[{count}/{total}] {cell.title}: {outcome}{estimate}"


def _format_duration(seconds: float) -> str:
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600}h{whole // 60 % 60:02d}m"
    return f"{whole // 60}m{whole % 60:02d}s" if whole >= 60 else f"{whole}s"
