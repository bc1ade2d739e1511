"""Draws for one document: a short tape of hashed bits, read from the start (etude.chance)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cache
from typing import TypeVar

import numpy as np

from etude.chance import random_bits

Item = TypeVar("Item")
_BLOCK = np.arange(48)  # draws made at once; most documents need fewer
_FLATTEN = 4.0  # Zipf-Mandelbrot shift: keeps the first word of a short list from swallowing it


class Draw:
    """The n-th call is a pure function of (key, n)."""

    __slots__ = ("block", "key", "place", "tape")

    def __init__(self, key: int) -> None:
        self.key, self.place, self.block = key, 0, 0
        self.tape: list[int] = (random_bits(key, _BLOCK) >> np.uint64(32)).tolist()

    def _next(self) -> int:
        if self.place == len(self.tape):
            self.block += 1
            self.place = 0
            self.tape = (random_bits(self.key, _BLOCK + self.block * len(_BLOCK)) >> np.uint64(32)).tolist()
        value = self.tape[self.place]
        self.place += 1
        return value

    def below(self, limit: int) -> int:
        return self._next() * limit >> 32

    def chance(self, probability: float) -> bool:
        return self._next() < probability * 4294967296.0

    def pick(self, items: Sequence[Item]) -> Item:
        return items[self._next() * len(items) >> 32]

    def common(self, items: Sequence[Item]) -> Item:
        """The first items more often than the last: weight 1 / (rank + shift)."""
        weights = _cumulative(len(items))
        return items[bisect_right(weights, self._next() * weights[-1] / 4294967296.0)]

    def shuffled(self, items: Sequence[Item]) -> list[Item]:
        order = list(items)
        for place in range(len(order) - 1, 0, -1):
            chosen = self.below(place + 1)
            order[place], order[chosen] = order[chosen], order[place]
        return order


@cache
def _cumulative(count: int) -> list[float]:
    weights: list[float] = np.cumsum(1.0 / (np.arange(count) + _FLATTEN)).tolist()
    return weights
