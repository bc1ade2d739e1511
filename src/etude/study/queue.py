"""The queue of a study or several: cells in their order, each as soon as what it starts from is done.

A cell that fails is reported, with those that depend on it, and the rest continues. Where the cells of a study follow
from the outcome of others (trials of pre-training), the queue grows while it runs: no slot waits for a stage to end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import islice

from etude.errors import WriteError
from etude.stages import report_stage
from etude.study.cells import PRETRAININGS, Cell, CellStore
from etude.study.execute import Interrupted
from etude.study.executors import Executor
from etude.study.visit import Visit, missing_bases

OnProgress = Callable[[str], None]
Replan = Callable[[], Sequence[Cell] | None]


def run_cells(
    store: CellStore, cells: Sequence[Cell], executor: Executor, on_progress: OnProgress, visit: Visit | None = None,
    replan: Replan = lambda: None,
) -> dict[str, str]:  # fmt: skip
    """Run the cells that are not done; returns the messages of failed cells, by key.

    `replan` is called after each cell; where what is known by then changes the cells, it returns their new list. Those
    that run already go on.
    """
    visit = visit or Visit()
    by_key = {cell.key: cell for cell in cells}
    waiting = _open_queue(store, cells, visit)
    total, start, active = len(waiting), time.monotonic(), 0
    errors: dict[str, str] = {}
    running: set[str] = set()
    finished = set(by_key) - {cell.key for cell in waiting}
    if len(finished) and total:
        on_progress(f"{len(finished)} of {len(cells)} cells are there already")
    planned_seconds = 0.0
    report_stage("running cells")
    while waiting or active:
        for cell in [cell for cell in waiting if cell.depends_on in errors]:
            waiting.remove(cell)
            errors[cell.key] = f"what it starts from failed: {errors[cell.depends_on or '']}"
        ready = [cell for cell in waiting if cell.depends_on is None or cell.depends_on in finished]
        if executor.slots > 1 and not visit.keeps_order:
            # the longest first, so that nobody waits at the end for one that was begun late
            ready.sort(key=lambda cell: (cell.kind not in PRETRAININGS, -cell.seconds))
        free = max(0, executor.slots - active)
        # one by one: of a thousand that are ready a few are asked about
        fitting = (cell for cell in ready if visit.fits(cell, executor.slots, finished.__contains__))
        for cell in islice(fitting, free):
            waiting.remove(cell)
            visit.begin(cell)
            if not store.has_run(cell.key):
                store.forget(cell.key)  # a result from elsewhere, kept until now: time may be up before its turn
            executor.submit(cell)
            running.add(cell.key)
            active += 1
        if not active:
            if ready:
                on_progress(f"The time is up: {len(waiting)} of {total} cells are left for the next visit.")
                break
            continue
        result = executor.wait()
        active -= 1
        running.discard(result.key)
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
        if (replanned := replan()) is not None:
            done_before = len(by_key) - len(waiting) - active
            by_key |= {cell.key: cell for cell in replanned}
            opened = _open_queue(store, replanned, visit)
            waiting = [cell for cell in opened if cell.key not in running and cell.key not in errors]
            finished |= {cell.key for cell in replanned} - {cell.key for cell in opened}
            total = done_before + active + len(waiting)
    visit.export(store)
    return errors


def _open_queue(store: CellStore, cells: Sequence[Cell], visit: Visit) -> list[Cell]:
    """Return the cells that have to run, those among them whose weights are elsewhere and are needed here."""
    missing = set(missing_bases(store, cells))
    visit.open(store, cells)
    return [cell for cell in cells if cell.key in missing or store.state(cell.key) != "done"]


def _estimate_remaining(elapsed: float, planned: float, count: int, pending: Sequence[Cell]) -> float:
    """Seconds that the pending cells take if plans are wrong as they were so far, by a factor or by a delay a cell.

    A short cell mostly loads its program: a factor of minutes over a plan of one second is no measure for the others.
    """
    if not planned or not pending:
        return 0.0
    left = sum(cell.seconds for cell in pending)
    by_factor = left * elapsed / planned
    return min(by_factor, left + len(pending) * (elapsed - planned) / count) if elapsed > planned else by_factor


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
    remaining = _estimate_remaining(elapsed, planned_seconds, count, pending)
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
