"""Which rows form step k, and their batches: a pure function of (seed, k), built ahead by threads or processes.

Step k takes the next `batch_rows(k)` places of an endless stream; place p of epoch e holds row
π_e(p), with π_e a keyed permutation. So nothing is remembered: resume is a seek, and the number of
workers, ranks and micro-batches cannot change what is trained on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from etude.chance import Chance, Permutation, fold
from etude.errors import UserError
from etude.objectives.base import Batch, Objective, Row, Rows, rows_of
from etude.train.workers import SLOTS, Pool


@dataclass
class Step:
    """This rank's micro-batches of one step, and what their loss terms are divided by."""

    number: int
    batches: list[Batch]
    counts: dict[str, float]  # summed over this rank's micro-batches

    @property
    def tokens(self) -> int:
        return sum(batch.size for batch in self.batches)


class Loader:
    def __init__(
        self,
        objective: Objective,
        rows: Rows,
        *,
        seed: int,
        batch_rows: Callable[[int], int],
        rows_before: Callable[[int], int],
        micro_tokens: int | None,
        rank: int = 0,
        ranks: int = 1,
        workers: int = 1,
        sizes: Sequence[int] | None = None,
        processes: bool = False,
        pin: bool = False,
    ) -> None:
        """`sizes`: every number of rows a step can have, where a ramp has several.

        For a GPU: workers are `processes`, and batches are `pin`ned, in memory that is quick to copy from.
        """
        self.objective, self.rows, self.seed = objective, rows, seed
        self.batch_rows, self.rows_before, self.micro_tokens = batch_rows, rows_before, micro_tokens
        self.rank, self.ranks = rank, ranks
        self.workers, self.processes, self.pin = workers, processes, pin
        uneven = [size for size in sizes or [batch_rows(0)] if size % ranks]
        if uneven:
            raise UserError(
                f"A step of {uneven[0]} rows cannot be shared by {ranks} processes. "
                f"Choose train.batch_tokens (or batch_examples, batch_ramp) so that they always divide by {ranks}."
            )
        if not rows.shuffle:
            self._fix_lanes()

    def _fix_lanes(self) -> None:
        lanes = self.batch_rows(0)
        if len(self.rows) < lanes:
            raise UserError(
                f"The corpus gives {len(self.rows)} rows, fewer than the {lanes} lanes of a step. "
                "Lower train.batch_tokens, or prepare more text."
            )
        self.objective.set_lanes(lanes)

    def row_numbers(self, step: int) -> np.ndarray:
        """(R,) the row numbers of a step, in the order of its slots."""
        size, count = len(self.rows), self.batch_rows(step)
        if not self.rows.shuffle:
            lane = size // count  # rows a lane holds; the few left over are not read
            return np.arange(count) * lane + step % lane
        places = self.rows_before(step) + np.arange(count)
        epochs, within = np.divmod(places, size)
        numbers = np.empty(count, dtype=np.int64)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            shuffled = Permutation(size, fold(self.seed, int(epoch), "order"))(within[chosen])
            numbers[chosen] = int(epoch) * size + shuffled
        return numbers

    def step(self, number: int) -> Step:
        """Builds this rank's share of a step, here and now."""
        numbers = self.row_numbers(number)
        share = len(numbers) // self.ranks
        slots = range(self.rank * share, (self.rank + 1) * share)
        found = rows_of(self.rows, numbers[slots.start : slots.stop])
        rows = [replace(row, slot=slot) for row, slot in zip(found, slots, strict=True)]
        chance = Chance(self.seed, number)
        batches = [self.objective.batch(group, chance) for group in split(rows, self.micro_tokens)]
        return Step(number, batches, add_counts(batches))

    def steps(self, start: int, stop: int) -> Generator[Step, None, None]:
        """Steps in order, a few built ahead."""
        if self.workers <= 0:
            yield from map(self._ready, map(self.step, range(start, stop)))
            return
        # so that none of them idles while one waits to be used; a process has a slot for each step under way
        ahead = SLOTS * self.workers - 1 if self.processes else self.workers + 1
        pool: Pool | Threads = Pool(self.step, self.workers) if self.processes else Threads(self.step, self.workers)
        try:
            waiting: deque[Any] = deque()
            for number in range(start, stop):
                waiting.append(pool.submit(number))
                if len(waiting) > ahead:
                    yield self._ready(pool.result(waiting.popleft()))
            while waiting:
                yield self._ready(pool.result(waiting.popleft()))
        finally:
            pool.shutdown()

    def _ready(self, step: Step) -> Step:
        """With memory of its own: what a process built lies where a later step will be written."""
        if not (self.pin or self.processes):
            return step
        return replace(step, batches=[batch.clone(self.pin) for batch in step.batches])


class Threads:
    """On a CPU: threads wait for each other's Python, but share memory and cost nothing to start."""

    def __init__(self, build: Callable[[int], Step], workers: int) -> None:
        self.build, self.executor = build, ThreadPoolExecutor(workers, thread_name_prefix="etude-loader")

    def submit(self, number: int) -> Future[Step]:
        return self.executor.submit(self.build, number)

    def result(self, future: Future[Step]) -> Step:
        return future.result()

    def shutdown(self) -> None:
        self.executor.shutdown(wait=False, cancel_futures=True)


def split(rows: Sequence[Row], micro_tokens: int | None) -> list[list[Row]]:
    """Whole rows into micro-batches of at most `micro_tokens` (at least one row each)."""
    groups: list[list[Row]] = [[]]
    tokens = 0
    for row in rows:
        if groups[-1] and micro_tokens is not None and tokens + len(row.tokens) > micro_tokens:
            groups.append([])
            tokens = 0
        groups[-1].append(row)
        tokens += len(row.tokens)
    return groups


def add_counts(batches: Sequence[Batch]) -> dict[str, float]:
    counts: dict[str, float] = {}
    for batch in batches:
        for name, count in batch.counts.items():
            counts[name] = counts.get(name, 0) + count
    return counts
