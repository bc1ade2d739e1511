"""The grouping of lengths: which get a size of their own, and which share a larger one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def round_lengths(lengths: np.ndarray, grain: int) -> tuple[np.ndarray, np.ndarray]:
    """Round sorted lengths (S,) up: the distinct multiples of `grain` (K,), and their starts (K+1,)."""
    sizes, first = np.unique(-(-lengths // grain) * grain, return_index=True)
    return sizes, np.append(first, len(lengths))


def find_cheapest_runs(count: int, cost: Callable[[int], np.ndarray]) -> list[tuple[int, int]]:
    """Split 0 .. count into runs (begin, end) of the least total cost; the longest lengths come last.

    `cost(end)` returns the cost of a run that ends there, for each possible begin before it, (end,). Dynamic
    programming over the distinct lengths; few remain after rounding, so this takes microseconds.
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
