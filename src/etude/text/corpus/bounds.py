"""Where documents and sentences start, over all shards of a corpus: read by number, found by offset, one or many."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

BOUND = np.dtype("<u4")  # bounds are counted within a shard, which ends long before 2^32 tokens


class Bounds:
    """Where parts (documents or sentences) start, over all shards: b[i] for i in 0..len(b), b[len(b)] the end."""

    def __init__(self, shards: Sequence[Any], field: str, parts: list[int], tokens: list[int]) -> None:
        """`parts` and `tokens` are the running totals before each shard, and at the end."""
        self._shards, self._field, self._parts, self._tokens = shards, field, parts, tokens

    def __len__(self) -> int:
        return self._parts[-1]

    def __iter__(self) -> Iterator[int]:
        for number in range(len(self) + 1):
            yield self[number]

    def __getitem__(self, index: int) -> int:
        if not 0 <= index <= len(self):
            raise IndexError(f"bound {index} of {len(self)} parts")
        if index == len(self):
            return self._tokens[-1]
        number = bisect.bisect_right(self._parts, index) - 1
        return self._tokens[number] + int(getattr(self._shards[number], self._field)[index - self._parts[number]])

    def at(self, index: np.ndarray) -> np.ndarray:
        """b[i] of many i in 0..len(b), int64."""
        found = np.full(len(index), self._tokens[-1], np.int64)
        for number, chosen in by_shard(self._parts, index):
            starts = getattr(self._shards[number], self._field)
            found[chosen] = starts[index[chosen] - self._parts[number]].astype(np.int64) + self._tokens[number]
        return found

    def find_all(self, offsets: np.ndarray) -> np.ndarray:
        """`find` of many offsets at once, none below 0; int64."""
        found = np.full(len(offsets), len(self), np.int64)
        for number, chosen in by_shard(self._tokens, offsets):
            starts = getattr(self._shards[number], self._field)
            inside = (offsets[chosen] - self._tokens[number]).astype(BOUND)  # of the same type: nothing is copied
            found[chosen] = np.searchsorted(starts, inside, side="right") + (self._parts[number] - 1)
        return found

    def slice(self, start: int, stop: int) -> np.ndarray:
        """b[start..stop) as int64; `stop` may be len(b) + 1 to include the end."""
        if not 0 <= start <= stop <= len(self) + 1:
            raise IndexError(f"bounds {start}..{stop} of {len(self)} parts")
        first = bisect.bisect_right(self._parts, start) - 1
        if start < len(self) and stop <= self._parts[first + 1]:  # of one shard, as most are
            base = self._parts[first]
            values = getattr(self._shards[first], self._field)[start - base : stop - base].astype(np.int64)
            values += self._tokens[first]
            return values
        end = [self._tokens[-1]] if start <= len(self) < stop else []
        pieces = []
        number = bisect.bisect_right(self._parts, start) - 1
        while start < min(stop, len(self)):
            first, last = self._parts[number], min(stop, self._parts[number + 1])
            values = getattr(self._shards[number], self._field)[start - first : last - first]
            pieces.append(values.astype(np.int64) + self._tokens[number])
            start, number = last, number + 1
        return np.concatenate([*pieces, np.array(end, np.int64)])

    def find(self, offset: int, extra: int = 0) -> int:
        """The largest i with b[i] + extra * i <= offset: the part a token lies in if each had `extra` tokens more."""
        if offset < 0:
            raise IndexError(f"offset {offset} lies before the first token")
        if offset >= self._tokens[-1] + extra * len(self):
            return len(self)
        low, high = 0, len(self._tokens) - 1  # the last shard whose first part starts at or before the offset
        while high - low > 1:
            middle = (low + high) // 2
            if self._tokens[middle] + extra * self._parts[middle] <= offset:
                low = middle
            else:
                high = middle
        starts = getattr(self._shards[low], self._field)
        base, rest = self._parts[low], offset - self._tokens[low] - extra * self._parts[low]
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


def by_shard(totals: list[int], index: np.ndarray) -> Iterator[tuple[int, Any]]:
    """Each shard that holds some of the places, and which; those at the end, behind all shards, are left out."""
    if len(totals) == 2:
        yield 0, slice(None) if not len(index) or int(index.max()) < totals[1] else np.flatnonzero(index < totals[1])
        return
    # shards are few: 16 bits are sorted digit by digit, many times as fast as the numbers themselves
    numbers = (np.searchsorted(totals, index, side="right") - 1).astype(np.uint16)
    order = np.argsort(numbers, kind="stable")
    borders = np.flatnonzero(np.diff(numbers[order])) + 1
    for chosen in np.split(order, borders):
        if len(chosen) and (number := int(numbers[chosen[0]])) < len(totals) - 1:
            yield number, chosen
