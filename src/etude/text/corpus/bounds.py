"""The bounds of documents and sentences over all shards of a corpus, by number or by offset."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import Literal

import numpy as np

from etude.text.corpus.shard import Shards

BOUND = np.dtype("<u4")  # bounds are counted within a shard, which ends long before 2^32 tokens


class Bounds:
    """The first tokens of units (documents or sentences): b[i] for i in 0..len(b), b[len(b)] the end."""

    def __init__(
        self, shards: Shards, unit: Literal["documents", "sentences"], units: list[int], tokens: list[int]
    ) -> None:
        """`units` and `tokens` are the running totals before each shard, and at the end."""
        self._shards, self._unit, self._units, self._tokens = shards, unit, units, tokens

    def _starts(self, shard: int) -> np.ndarray:
        """Return the first token of each unit of a shard, counted in the shard."""
        return self._shards[shard].documents if self._unit == "documents" else self._shards[shard].sentences

    def __len__(self) -> int:
        return self._units[-1]

    def __iter__(self) -> Iterator[int]:
        for number in range(len(self) + 1):
            yield self[number]

    def __getitem__(self, index: int) -> int:
        if not 0 <= index <= len(self):
            raise IndexError(f"bound {index} of {len(self)} units")
        if index == len(self):
            return self._tokens[-1]
        number = bisect.bisect_right(self._units, index) - 1
        return self._tokens[number] + int(self._starts(number)[index - self._units[number]])

    def at(self, index: np.ndarray) -> np.ndarray:
        """Return b[i] of many i in 0..len(b), int64."""
        bounds = np.full(len(index), self._tokens[-1], np.int64)
        for number, chosen in group_by_shard(self._units, index):
            starts = self._starts(number)
            bounds[chosen] = starts[index[chosen] - self._units[number]].astype(np.int64) + self._tokens[number]
        return bounds

    def find_all(self, offsets: np.ndarray) -> np.ndarray:
        """`find` many offsets at once, none below 0; int64."""
        units = np.full(len(offsets), len(self), np.int64)
        for number, chosen in group_by_shard(self._tokens, offsets):
            starts = self._starts(number)
            inside = (offsets[chosen] - self._tokens[number]).astype(BOUND)  # of the same type: nothing is copied
            units[chosen] = np.searchsorted(starts, inside, side="right") + (self._units[number] - 1)
        return units

    def slice(self, start: int, stop: int) -> np.ndarray:
        """Return b[start..stop) as int64; `stop` may be len(b) + 1 to include the end."""
        if not 0 <= start <= stop <= len(self) + 1:
            raise IndexError(f"bounds {start}..{stop} of {len(self)} units")
        first = bisect.bisect_right(self._units, start) - 1
        if start < len(self) and stop <= self._units[first + 1]:  # of one shard, as most are
            base = self._units[first]
            values = self._starts(first)[start - base : stop - base].astype(np.int64)
            values += self._tokens[first]
            return values
        end = [self._tokens[-1]] if start <= len(self) < stop else []
        pieces = []
        number = bisect.bisect_right(self._units, start) - 1
        while start < min(stop, len(self)):
            first, last = self._units[number], min(stop, self._units[number + 1])
            values = self._starts(number)[start - first : last - first]
            pieces.append(values.astype(np.int64) + self._tokens[number])
            start, number = last, number + 1
        return np.concatenate([*pieces, np.array(end, np.int64)])

    def find(self, offset: int, extra: int = 0) -> int:
        """Return the largest i with b[i] + extra * i <= offset.

        It is the unit of a token if each unit had `extra` tokens more.
        """
        if offset < 0:
            raise IndexError(f"offset {offset} lies before the first token")
        if offset >= self._tokens[-1] + extra * len(self):
            return len(self)
        low, high = 0, len(self._tokens) - 1  # the last shard whose first part starts at or before the offset
        while high - low > 1:
            middle = (low + high) // 2
            if self._tokens[middle] + extra * self._units[middle] <= offset:
                low = middle
            else:
                high = middle
        starts = self._starts(low)
        base, rest = self._units[low], offset - self._tokens[low] - extra * self._units[low]
        if not extra:
            return base + int(np.searchsorted(starts, BOUND.type(rest), side="right")) - 1
        left, right = 0, len(starts)
        while right - left > 1:
            middle = (left + right) // 2
            if int(starts[middle]) + extra * middle <= rest:
                left = middle
            else:
                right = middle
        return base + left


def group_by_shard(totals: list[int], index: np.ndarray) -> Iterator[tuple[int, slice | np.ndarray]]:
    """Yield each shard that holds some of the places, and which; those behind all shards are left out."""
    if len(totals) == 2:
        yield 0, slice(None) if not len(index) or int(index.max()) < totals[1] else np.flatnonzero(index < totals[1])
        return
    # shards are few: 16 bits are sorted digit by digit, many times as fast as the numbers themselves
    narrow = np.uint16 if len(totals) <= 1 << 16 else np.uint32
    numbers = (np.searchsorted(totals, index, side="right") - 1).astype(narrow)
    order = np.argsort(numbers, kind="stable")
    borders = np.flatnonzero(np.diff(numbers[order])) + 1
    for chosen in np.split(order, borders):
        if len(chosen) and (number := int(numbers[chosen[0]])) < len(totals) - 1:
            yield number, chosen
