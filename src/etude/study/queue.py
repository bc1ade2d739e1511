"""The queue of a study or several: cells in their order, each as soon as what it starts from is done.

A cell that fails is reported, with those that depend on it, and the rest continues. One whose memory ran out beside
others waits and is tried again beside fewer (concurrency.py), and one whose GPU was lost once more in a new process.
Where the cells of a study follow from the outcome of others (trials of pre-training), the queue grows while it runs: no
slot waits for a stage to end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import chain

from etude.errors import WriteError
from etude.stages import report_stage
from etude.study.cells import PRETRAININGS, Cell, CellStore
from etude.study.concurrency import Concurrency
from etude.study.execute import CellResult, Interrupted
from etude.study.executors import Executor
from etude.study.visit import Visit, list_outdated, missing_bases

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
    planned = set(by_key)
    waiting, outdated = _open_queue(store, cells, visit)
    total, start, active = len(waiting), time.monotonic(), 0
    errors: dict[str, str] = {}
    running: set[str] = set()
    retries = Retries(executor)
    finished = set(by_key) - {cell.key for cell in waiting}
    if len(finished) and total:
        on_progress(f"{len(finished)} of {len(cells)} cells are there already")
    planned_seconds = 0.0

    def is_settled(key: str) -> bool:
        return key in finished or key in errors

    report_stage("running cells")
    while waiting or active:
        for cell in [cell for cell in waiting if cell.depends_on in errors]:
            waiting.remove(cell)
            errors[cell.key] = f"what it starts from failed: {errors[cell.depends_on or '']}"
        ready = [cell for cell in waiting if cell.depends_on is None or cell.depends_on in finished]
        if executor.slots > 1 and not visit.keeps_order:
            # the longest first, so that nobody waits at the end for one that was begun late
            ready.sort(key=lambda cell: (cell.kind not in PRETRAININGS, -cell.seconds))
        ready.sort(key=retries.rank)
        usual = retries.count_usual_slots()
        visit.reserve(waiting, finished.__contains__)
        for cell in filter(retries.claims_room, ready):
            if not visit.find_room(cell, usual, is_settled):
                retries.leave(cell)
        for cell in ready:
            # one by one: of a thousand that are ready a few are asked about
            if active >= retries.count_slots():
                break
            room = visit.find_room(cell, usual, is_settled)
            if not room:
                continue
            if active >= room:
                break  # what is under way ends first, and nothing takes its place
            if room < usual:
                retries.make_room(cell, room)
            waiting.remove(cell)
            visit.begin(cell)
            for key in outdated.get(cell.key, ()):
                store.forget(key)
            if not store.has_run(cell.key):
                store.forget(cell.key)  # a result from elsewhere, kept until now: time may be up before its turn
            if store.state(cell.key) != "failed":
                store.clear_failure(cell.key)  # one of an earlier version that does not count
            retries.begin(cell)
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
        visit.end(cell)
        if result.stopped:
            visit.export(store)
            raise Interrupted
        if result.unwritten:
            raise WriteError(result.error)
        if (reason := retries.end(cell, result)) is not None and cell.key in planned:
            waiting.insert(0, cell)
            on_progress(f"{cell.title}: {reason}")
            continue
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
            ended = total - len(waiting) - active  # of this queue, without the cells that were there already
            planned = {cell.key for cell in replanned}  # one that runs may be planned no more
            by_key |= {cell.key: cell for cell in replanned}
            opened, outdated = _open_queue(store, replanned, visit)
            waiting = [cell for cell in opened if cell.key not in running and cell.key not in errors]
            # one that was done may have to run again, now that its weights are needed
            finished = (finished | {cell.key for cell in replanned}) - {cell.key for cell in opened}
            total = ended + active + len(waiting)
            retries.keep(waiting)
    visit.export(store)
    return errors


class Retries:
    """Which failures are no cell's own: they go back into the queue, and say why."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.concurrency = Concurrency()
        self.lost: set[str] = set()  # cells whose GPU was lost

    def count_slots(self) -> int:
        """Cells that may run at once now."""
        return self.concurrency.allow(self.executor.slots)

    def count_usual_slots(self) -> int:
        """Cells that may run at once where no room is made for one of them."""
        return int(min(self.executor.slots, self.concurrency.limit))

    def rank(self, cell: Cell) -> int:
        """Return 0 for a cell that is tried again: it comes first, since room is made for it."""
        return int(cell.key not in self.concurrency.shortages and cell.key not in self.lost)

    def claims_room(self, cell: Cell) -> bool:
        """Whether fewer cells run until this one is done."""
        return cell.key in self.concurrency.claims

    def make_room(self, cell: Cell, limit: int) -> None:
        """Let no more cells run at once until this one is done."""
        self.concurrency.claims[cell.key] = min(limit, self.concurrency.claims.get(cell.key, limit))

    def leave(self, cell: Cell) -> None:
        """Make no room for a cell that has no time left."""
        self.concurrency.leave(cell.key)

    def begin(self, cell: Cell) -> None:
        self.concurrency.begin(cell.key)

    def end(self, cell: Cell, result: CellResult) -> str | None:
        """Count a cell that ended; returns why it is tried again, or None if it is not."""
        key, concurrency = cell.key, self.concurrency
        neighbours = concurrency.neighbours[key]
        if result.out_of_memory and neighbours and self.executor.shares_memory(cell):
            concurrency.run_out(key)
            limit = concurrency.allow(self.executor.slots)
            others = f"{neighbours} other cell{'s' if neighbours > 1 else ''}"
            return f"memory ran out beside {others}; it is tried again, with at most {limit} at once"
        if result.error is None:
            concurrency.finish(key)
            return None
        concurrency.leave(key)
        if result.lost and key not in self.lost:
            self.lost.add(key)
            return "its GPU failed; it is tried once more, in a new process"
        return None

    def keep(self, waiting: Sequence[Cell]) -> None:
        """Make no room for cells that are not to run any more."""
        self.concurrency.keep({cell.key for cell in waiting} | self.concurrency.neighbours.keys())


def _open_queue(
    store: CellStore, cells: Sequence[Cell], visit: Visit
) -> tuple[list[Cell], dict[str, list[str]]]:  # fmt: skip
    """Return the cells that have to run, and the finished ones among them that each pre-training outdates.

    A pre-training whose weights are elsewhere runs again where a cell needs them.
    """
    outdated = list_outdated(store, cells)
    again = {*missing_bases(store, cells), *chain(*outdated.values())}
    visit.open(store, cells)
    return [cell for cell in cells if cell.key in again or store.state(cell.key) != "done"], outdated


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
