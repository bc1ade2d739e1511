"""Loader of training steps: rows and batches as a pure function of (seed, step), built ahead in workers.

Step k reads the next `batch_rows(k)` positions of an endless stream; position p of epoch e holds row π_e(p), with π_e a
keyed permutation. The loader has no state: resume is a seek, and the number of workers, ranks and micro-batches cannot
change what is trained on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np

from etude.chance import Chance, Permutation, fold
from etude.errors import UserError
from etude.objectives.base import Batch, Objective, Row, Rows, rows_of
from etude.train.padding import pad_batch
from etude.train.workers import SLOTS, ProcessPool

Handle = TypeVar("Handle")


class Pool(Protocol[Handle]):
    """Workers that build steps from their numbers."""

    def submit(self, number: int) -> Handle: ...

    def result(self, handle: Handle) -> Step: ...

    def shutdown(self) -> None: ...


@dataclass
class Step:
    """This rank's micro-batches of one step, and the counts that their loss terms are divided by."""

    number: int
    batches: list[Batch]
    counts: dict[str, float]  # summed over this rank's micro-batches

    @property
    def tokens(self) -> int:
        return sum(batch.size for batch in self.batches)


class Loader:
    """Builds the steps of one rank, in this process, in threads or in processes."""

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
        pad: bool = False,
    ) -> None:
        """`batch_rows` and `rows_before` give the rows of a step and of all steps before it.

        `sizes`: every number of rows a step can have, where a batch ramp has several. For a GPU workers are
        `processes`, and `pin` puts batches in pinned memory, which is fast to copy from. `pad` gives batches of
        labelled examples static shapes (train/padding.py).
        """
        self.objective, self.rows, self.seed = objective, rows, seed
        self.batch_rows, self.rows_before, self.micro_tokens = batch_rows, rows_before, micro_tokens
        self.rank, self.ranks = rank, ranks
        self.workers, self.processes, self.pin, self.pad = workers, processes, pin, pad
        uneven = [size for size in sizes or [batch_rows(0)] if size % ranks]
        if uneven:
            raise UserError(
                f"A step of {uneven[0]} rows cannot be divided among {ranks} processes. "
                f"Choose train.batch_tokens (or batch_examples, batch_ramp) so that they always divide by {ranks}."
            )
        if not rows.shuffle:
            self._fix_lanes(set(sizes or [batch_rows(0)]))

    def _fix_lanes(self, sizes: set[int]) -> None:
        """Set the number of lanes of an objective that carries states from step to step."""
        if len(sizes) > 1 and self.ranks > 1:  # each rank carries its share of the lanes, and would hand them on
            raise UserError(
                "This objective carries states in lanes, which several processes share: a batch ramp would move them "
                "from one to another. Remove train.batch_ramp, or train in one process."
            )
        if len(self.rows) < max(sizes):
            raise UserError(
                f"The corpus gives {len(self.rows)} rows, fewer than the {max(sizes)} lanes of a step. "
                "Lower train.batch_tokens, or prepare more text."
            )
        self.objective.set_lanes(self.batch_rows(0))

    def row_numbers(self, step: int) -> np.ndarray:
        """Return (R,) the row numbers of a step, in the order of its slots."""
        size, count = len(self.rows), self.batch_rows(step)
        if not self.rows.shuffle:
            length = size // count  # rows of a lane; the remainder is not read
            return np.arange(count) * length + step % length
        positions = self.rows_before(step) + np.arange(count)
        epochs, within = np.divmod(positions, size)
        numbers = np.empty(count, dtype=np.int64)
        for epoch in np.unique(epochs):
            in_epoch = epochs == epoch
            shuffled = Permutation(size, fold(self.seed, int(epoch), "order"))(within[in_epoch])
            numbers[in_epoch] = int(epoch) * size + shuffled
        return numbers

    def step(self, number: int) -> Step:
        """Build this rank's share of a step."""
        numbers = self.row_numbers(number)
        share = len(numbers) // self.ranks
        slots = range(self.rank * share, (self.rank + 1) * share)
        share_rows = rows_of(self.rows, numbers[slots.start : slots.stop])
        rows = [replace(row, slot=slot) for row, slot in zip(share_rows, slots, strict=True)]
        chance = Chance(self.seed, number)
        batches = [self.objective.batch(group, chance) for group in split_into_micro_batches(rows, self.micro_tokens)]
        if self.pad:
            batches = [pad_batch(batch) for batch in batches]
        return Step(number, batches, sum_counts(batches))

    def steps(self, start: int, stop: int) -> Generator[Step, None, None]:
        """Yield steps in order, a few built ahead."""
        if self.workers <= 0:
            yield from map(self._copy_out, map(self.step, range(start, stop)))
        elif self.processes:  # a process has a slot for each step in flight
            yield from self._steps_ahead(ProcessPool(self.step, self.workers), SLOTS * self.workers - 1, start, stop)
        else:
            yield from self._steps_ahead(ThreadPool(self.step, self.workers), self.workers + 1, start, stop)

    def _steps_ahead(self, pool: Pool[Handle], ahead: int, start: int, stop: int) -> Generator[Step, None, None]:
        """Keep `ahead` steps in flight, so that no worker idles while a step waits to be used."""
        try:
            pending: deque[Handle] = deque()
            for number in range(start, stop):
                pending.append(pool.submit(number))
                if len(pending) > ahead:
                    yield self._copy_out(pool.result(pending.popleft()))
            while pending:
                yield self._copy_out(pool.result(pending.popleft()))
        finally:
            pool.shutdown()

    def _copy_out(self, step: Step) -> Step:
        """Copy a step to memory of its own: a process writes a later step over what it built."""
        if not (self.pin or self.processes):
            return step
        return replace(step, batches=[batch.clone(self.pin) for batch in step.batches])


class ThreadPool:
    """Builds steps in threads, for a CPU: they share Python's lock, but also memory, and cost nothing to start."""

    def __init__(self, build: Callable[[int], Step], workers: int) -> None:
        self.build, self.executor = build, ThreadPoolExecutor(workers, thread_name_prefix="etude-loader")

    def submit(self, number: int) -> Future[Step]:
        return self.executor.submit(self.build, number)

    def result(self, future: Future[Step]) -> Step:
        return future.result()

    def shutdown(self) -> None:
        self.executor.shutdown(wait=False, cancel_futures=True)


def split_into_micro_batches(rows: Sequence[Row], micro_tokens: int | None) -> list[list[Row]]:
    """Group whole rows into micro-batches of at most `micro_tokens` (at least one row each)."""
    groups: list[list[Row]] = [[]]
    tokens = 0
    for row in rows:
        if groups[-1] and micro_tokens is not None and tokens + len(row.tokens) > micro_tokens:
            groups.append([])
            tokens = 0
        groups[-1].append(row)
        tokens += len(row.tokens)
    return groups


def sum_counts(batches: Sequence[Batch]) -> dict[str, float]:
    """Add up the counts of loss terms over micro-batches."""
    counts: dict[str, float] = {}
    for batch in batches:
        for name, count in batch.counts.items():
            counts[name] = counts.get(name, 0) + count
    return counts
