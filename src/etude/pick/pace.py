"""How fast the machine is at the moment: the seconds of a small piece of work that is always the same.

A refit takes what the folds took as long as the machine stays as it was. Where other work came up since, it takes as
many times longer, and the time that is set aside for it must grow, before it is too late to stop. So every fold is
stored with the pace it ran at, and what it says about a refit is scaled by the pace of now.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

ROUNDS, SIZE = 16, 192  # products of matrices and plain loops: some 10 milliseconds of one core
TRIES = 3  # the shortest of them counts: others may have been interrupted
FRESH = 4.0  # seconds for which a measurement holds
MOST = 3.0  # a slowdown that is planned for at most: a single measurement may be bad luck, and margins come on top


def measure() -> float:
    """Return the seconds of the piece of work, the shortest of some tries."""
    return min(_work() for _ in range(TRIES))


def _work() -> float:
    matrix = np.linspace(0.0, 1.0, SIZE * SIZE, dtype=np.float64).reshape(SIZE, SIZE)
    start, total = time.perf_counter(), 0.0
    for _ in range(ROUNDS):
        total += float(np.einsum("ij,jk->", matrix, matrix[:, :8]))  # a loop of numpy's own: no threads of a BLAS
        total += sum(number * number for number in range(4_000))
    return time.perf_counter() - start


@dataclass
class Pace:
    """Seconds of the piece of work, measured again where the last time is too long ago."""

    seconds: float = 0.0
    measured_at: float = float("-inf")  # of time.monotonic

    def now(self) -> float:
        if time.monotonic() - self.measured_at > FRESH:
            self.seconds = measure()
            self.measured_at = time.monotonic()
        return self.seconds

    def slowdown(self, then: float | None, most: float = MOST) -> float:
        """Return how many times longer work takes now than at the pace of `then`; from 1 to `most`."""
        return max(1.0, self.change(then, most))

    def change(self, then: float | None, most: float = MOST) -> float:
        """Return how many times longer, or less than 1 where the machine became faster, down to 1 / `most`."""
        return 1.0 if not then else min(most, max(1 / most, self.now() / then))
