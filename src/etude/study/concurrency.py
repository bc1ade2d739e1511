"""How many cells run at once where they share memory: fewer after it ran out, and slowly more again.

Nobody knows before how much memory a cell takes, nor who took it when it runs out: the cell that is refused may be the
smallest. So it is tried again, beside fewer others. The first time, as many cells go on as are left, and it waits for
one of them to end. When a cell runs out again, room is made for it: one neighbour less, then three, then seven, and at
last none; when it is done, so is its claim. A cell that ran alone fails. So each is tried a few times at most, one
cell at least runs always, and nothing waits for ever.
"""

from __future__ import annotations

import math
from collections import Counter


class Concurrency:
    """Counts the cells that run, and says how many may."""

    def __init__(self) -> None:
        self.limit: float = math.inf  # cells at once
        self.neighbours: dict[str, int] = {}  # of each cell that runs: the most that ran beside it
        self.shortages: Counter[str] = Counter()  # how often memory ran out for a cell
        self.claims: dict[str, int] = {}  # cells at once until one is done for which it ran out again
        self._calm = 0  # cells that ended well since the limit was changed
        self._patience = 1  # rounds of them before one more is tried: twice as many each time that it was too many
        self._has_grown = False

    def allow(self, slots: int) -> int:
        """Return how many cells may run at once, at least one."""
        return int(max(1, min(slots, self.limit, *self.claims.values())))

    def begin(self, key: str) -> None:
        count = len(self.neighbours)
        self.neighbours = {running: max(most, count) for running, most in self.neighbours.items()} | {key: count}

    def leave(self, key: str) -> None:
        """Count a cell no more that ended in another way than `finish` and `run_out`, or will not run."""
        self.neighbours.pop(key, None)
        self.claims.pop(key, None)

    def finish(self, key: str) -> None:
        """Count a cell that ended well; after enough of them one more runs at once."""
        self.leave(key)
        self._calm += 1
        if self._calm >= self._patience * self.limit:
            self.limit, self._calm, self._has_grown = self.limit + 1, 0, True

    def run_out(self, key: str) -> None:
        """Lower the limit after memory ran out for a cell beside others."""
        self.leave(key)
        others = max(1, len(self.neighbours))
        self.shortages[key] += 1
        if self.shortages[key] > 1:
            self.claims[key] = max(1, others + 1 - 2 ** (self.shortages[key] - 1))
        self._patience *= 2 if self._has_grown else 1
        self.limit, self._calm, self._has_grown = min(self.limit, others), 0, False

    def keep(self, keys: set[str]) -> None:
        """Forget claims of cells that are not to run any more."""
        self.claims = {key: limit for key, limit in self.claims.items() if key in keys}
