"""Texts by number, and names that are found in O(log n): UTF-8 bytes end to end, with their bounds.

Nothing is read before it is asked for, so a million names in a memory-mapped file open at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from etude.errors import UserError


class Texts(Sequence[str]):
    """One text a number: of an entity its label, its aliases or its description."""

    def __init__(self, letters: np.ndarray, bounds: np.ndarray) -> None:
        self.letters = letters  # (bytes,) uint8
        self.bounds = bounds  # (n + 1,) int64

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, number: int) -> str:  # type: ignore[override]  # by number only
        try:
            return self.encoded(number).decode()
        except UnicodeDecodeError:
            raise UserError(f"Text {number} of the graph is not UTF-8. Prepare the graph again.") from None

    def __iter__(self) -> Iterator[str]:
        for number in range(len(self)):
            yield self[number]

    def encoded(self, number: int) -> bytes:
        """Return a text as UTF-8."""
        if not 0 <= number < len(self):
            raise IndexError(f"number {number} of {len(self)}")
        return self.letters[self.bounds[number] : self.bounds[number + 1]].tobytes()


class Names(Texts):
    """The names of entities or relations: all different, in any order."""

    def __init__(self, letters: np.ndarray, bounds: np.ndarray, order: np.ndarray) -> None:
        super().__init__(letters, bounds)
        self.order = order  # (n,) int32: numbers by ascending UTF-8 bytes

    def find(self, name: str) -> int | None:
        """Return the number of a name, or None; a binary search."""
        wanted = name.encode("utf-8", "surrogatepass")  # a lone surrogate is in no file: simply not there
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self.encoded(int(self.order[middle])) < wanted:
                low = middle + 1
            else:
                high = middle
        if low == len(self):
            return None
        number = int(self.order[low])
        return number if self.encoded(number) == wanted else None

    def is_valid(self) -> bool:
        """Whether the order is one of ascending, different names."""
        if len(self.order) != len(self) or not np.array_equal(np.sort(self.order), np.arange(len(self))):
            return False
        return all(left < right for left, right in pairwise(self.encoded(int(number)) for number in self.order))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.find(name) is not None


def pack_texts(texts: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return texts as the letters (bytes,) uint8 and bounds (n + 1,) int64 of `Texts`."""
    encoded = [text.encode() for text in texts]
    bounds = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(text) for text in encoded], out=bounds[1:])
    return np.frombuffer(b"".join(encoded), np.uint8), bounds


def sort_names(names: Sequence[str]) -> np.ndarray:
    """Return the numbers of names by ascending UTF-8 bytes, (n,) int32; a name twice is a ValueError."""
    encoded = [name.encode() for name in names]
    order = sorted(range(len(encoded)), key=encoded.__getitem__)
    for left, right in pairwise(order):
        if encoded[left] == encoded[right]:
            raise ValueError(f"the name {names[left]!r} stands at {left} and at {right}")
    return np.array(order, np.int32).reshape(-1)
