"""Which lengths of a batch are worth a size of their own, and which share the next larger one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def round_lengths(lengths: np.ndarray, grain: int) -> tuple[np.ndarray, np.ndarray]:
    """Sorted lengths (S,) -> the distinct multiples of `grain` they fit into, (K,), and where each begins, (K+1,)."""
    sizes, first = np.unique(-(-lengths // grain) * grain, return_index=True)
    return sizes, np.append(first, len(lengths))


def find_cheapest_runs(count: int, cost: Callable[[int], np.ndarray]) -> list[tuple[int, int]]:
    """Cuts 0 .. count into runs (begin, end) of the least cost in all; the longest lengths come last.

    `cost(end)` says what a run costs that ends there, for each place before it to begin at, (end,). Dynamic programming
    over the distinct lengths; few after rounding, so this is microseconds each.
    """
    best, begins = np.zeros(count + 1), np.zeros(count + 1, np.int64)
    for end in range(1, count + 1):
        total = best[:end] + cost(end)
        begins[end] = int(total.argmin())
        best[end] = total[begins[end]]
    runs: list[tuple[int, int]] = []
    end = count
    while end:
        runs.append((int(begins[end]), end))
        end = int(begins[end])
    return runs[::-1]
