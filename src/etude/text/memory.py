"""What the tokens of a word are, remembered for very many words in bounded memory.

A dictionary gives each key a number; the tokens of all keys lie end to end in arrays. So a text is one pass of the
dictionary over its keys, and everything after that is array work. When the memory is full, the half that was asked
for least is dropped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np

START, BLANK = np.uint32(1 << 31), np.uint32(1 << 30)  # flags on an id: starts a word; is white space only
ID = np.uint32((1 << 30) - 1)
SLOT = 150  # bytes an entry takes beside its key: dictionary, list, number and array places, as measured


@dataclass
class Tokens:
    """The tokens of several keys end to end."""

    flagged: np.ndarray  # (n,) uint32: ids with flags
    lengths: np.ndarray  # (keys,) int64: tokens of each key
    sizes: np.ndarray | None = None  # (n,) int64: bytes of each token's letters (word-level tokenizers)
    spelled: np.ndarray | None = None  # (bytes,) uint8: those letters
    offsets: np.ndarray | None = None  # (n, 2): where the token stood, when just encoded

    @classmethod
    def of(
        cls, flagged: np.ndarray, lengths: np.ndarray, surfaces: list[bytes] | None, offsets: np.ndarray | None = None
    ) -> Self:
        if surfaces is None:
            return cls(flagged, lengths, offsets=offsets)
        sizes = np.fromiter(map(len, surfaces), np.int64, len(surfaces))
        return cls(flagged, lengths, sizes, np.frombuffer(b"".join(surfaces), np.uint8), offsets)

    @classmethod
    def joined(cls, parts: list[Self]) -> Self:
        sizes = [part.sizes for part in parts if part.sizes is not None]
        spelled = [part.spelled for part in parts if part.spelled is not None]
        return cls(
            np.concatenate([part.flagged for part in parts]), np.concatenate([part.lengths for part in parts]),
            np.concatenate(sizes) if sizes else None, np.concatenate(spelled) if spelled else None,
        )  # fmt: skip

    def regrouped(self, lengths: np.ndarray) -> Tokens:
        """The same tokens as those of other, larger keys."""
        return Tokens(self.flagged, lengths, self.sizes, self.spelled)

    def taken(self, numbers: np.ndarray) -> Tokens:
        """The tokens of the keys with these numbers, in that order, repeated as asked."""
        lengths = self.lengths[numbers]
        places = _ranges((np.cumsum(self.lengths) - self.lengths)[numbers], lengths)
        if self.sizes is None or self.spelled is None:
            return Tokens(self.flagged[places], lengths)
        sizes = self.sizes[places]
        letters = _ranges((np.cumsum(self.sizes) - self.sizes)[places], sizes)
        return Tokens(self.flagged[places], lengths, sizes, self.spelled[letters])


def _ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """start, start + 1, ... of each range, end to end."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))


class _Numbers(dict[str, int]):
    """A dictionary that gives a key it does not have the next number, and remembers that it was new."""

    def __init__(self, pairs: Iterable[tuple[str, int]] = ()) -> None:
        super().__init__(pairs)
        self.new: list[str] = []

    def __missing__(self, key: str) -> int:
        number = self[key] = len(self)
        self.new.append(key)
        return number


class Memory:
    def __init__(self, compute: Callable[[list[str]], Tokens], size: int, surfaces: bool) -> None:
        """`compute` finds the tokens of new keys; `size` is in bytes."""
        self.compute, self.size = compute, size
        self.numbers = _Numbers()
        letters = np.zeros(0, np.uint8) if surfaces else None
        sizes = np.zeros(0, np.int64) if surfaces else None
        self.held = Tokens(np.zeros(0, np.uint32), np.zeros(0, np.int64), sizes, letters)
        self.uses = np.zeros(0, np.int64)  # of each key, older uses counting less
        self.taken = 0

    def tokens(self, keys: list[str]) -> Tokens:
        numbers = np.fromiter(map(self.numbers.__getitem__, keys), np.int64, len(keys))
        if self.numbers.new:
            self._learn(self.numbers.new)
            self.numbers.new = []
        self.uses += np.bincount(numbers, minlength=len(self.uses))
        found = self.held.taken(numbers)
        if self.taken > self.size:
            self._clear()
        return found

    def _learn(self, keys: list[str]) -> None:
        self.held = Tokens.joined([self.held, self.compute(keys)])
        self.uses = np.concatenate([self.uses, np.zeros(len(keys), np.int64)])
        self.taken += sum(map(sys.getsizeof, keys)) + SLOT * len(keys)

    def _clear(self) -> None:
        kept = np.sort(np.argsort(-self.uses, kind="stable")[: len(self.uses) // 2])
        names = list(self.numbers)
        names = [names[number] for number in kept.tolist()]
        self.held = self.held.taken(kept)
        self.numbers = _Numbers(zip(names, range(len(names)), strict=True))
        self.uses = self.uses[kept] // 2
        self.taken = sum(map(sys.getsizeof, names)) + SLOT * len(names)
