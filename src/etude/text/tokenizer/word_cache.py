"""What the tokens of words are, remembered for very many words in bounded memory.

The tokens of all keys lie end to end in arrays, so that looking up a whole text is array work. `ByText` finds a key's
number in a dictionary of strings. `BySpan` never makes strings of known keys at all: it hashes spans of a text, all at
once, and finds numbers in a table by those hashes. When a memory is full, the half that was asked for least goes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import compress, count
from typing import Self

import numpy as np

from etude.chance import fold, random_bits

START, BLANK = np.uint32(1 << 31), np.uint32(1 << 30)  # flags on an id: starts a word; is white space only
ID = np.uint32((1 << 30) - 1)
TEXT_ENTRY = 85  # bytes an entry of ByText takes beside its key: dictionary, number and array places, as measured
SPAN_ENTRY = 56  # bytes an entry of BySpan takes: two places of the table at least, and those of the arrays


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


class _Held:
    """Tokens of numbered keys, with how often each was asked for, older times counting less."""

    def __init__(self, surfaces: bool) -> None:
        letters, sizes = (np.zeros(0, np.uint8), np.zeros(0, np.int64)) if surfaces else (None, None)
        self.tokens = Tokens(np.zeros(0, np.uint32), np.zeros(0, np.int64), sizes, letters)
        self.uses = np.zeros(0, np.int64)

    def add(self, new: Tokens) -> None:
        self.tokens = Tokens.joined([self.tokens, new])
        self.uses = np.concatenate([self.uses, np.zeros(len(new.lengths), np.int64)])

    def take(self, numbers: np.ndarray) -> Tokens:
        self.uses += np.bincount(numbers, minlength=len(self.uses))
        return self.tokens.taken(numbers)

    def halve(self) -> np.ndarray:
        """Drops the half asked for least; which were kept, bool."""
        kept = np.zeros(len(self.uses), bool)
        kept[np.argsort(-self.uses, kind="stable")[: len(self.uses) // 2]] = True
        self.tokens = self.tokens.taken(np.flatnonzero(kept))
        self.uses = self.uses[kept] // 2
        return kept


class _Numbers(dict[str, int]):
    """A dictionary that gives a key it does not have the next number, and remembers that it was new."""

    def __init__(self, pairs: Iterable[tuple[str, int]] = ()) -> None:
        super().__init__(pairs)
        self.new: list[str] = []

    def __missing__(self, key: str) -> int:
        number = self[key] = len(self)
        self.new.append(key)
        return number


class ByText:
    def __init__(self, compute: Callable[[list[str]], Tokens], size: int, surfaces: bool) -> None:
        """`compute` finds the tokens of new keys; `size` is in bytes."""
        self.compute, self.size = compute, size
        self.numbers = _Numbers()
        self.held = _Held(surfaces)
        self.taken = 0  # bytes, about

    def tokens(self, keys: list[str]) -> Tokens:
        numbers = np.fromiter(map(self.numbers.__getitem__, keys), np.int64, len(keys))
        if new := self.numbers.new:
            self.held.add(self.compute(new))
            self.taken += sum(map(sys.getsizeof, new)) + TEXT_ENTRY * len(new)
            self.numbers.new = []
        found = self.held.take(numbers)
        if self.taken > self.size:
            kept = self.held.halve()
            self.numbers = _Numbers(zip(compress(self.numbers, kept.tolist()), count(), strict=False))
            self.taken = sum(map(sys.getsizeof, self.numbers)) + TEXT_ENTRY * len(self.numbers)
        return found


class BySpan:
    """Keys are spans of a text, told apart by a 64-bit multilinear hash and their length.

    Two given spans of one length share a hash with a chance of about 2^-62, so that in a million different words any
    two do with one of 10^-7: less than that of a memory error.
    """

    def __init__(self, compute: Callable[[list[str]], Tokens], size: int, surfaces: bool) -> None:
        self.compute, self.most = compute, max(1024, size // SPAN_ENTRY)
        self.held = _Held(surfaces)
        self.hashes = np.zeros(0, np.uint64)  # of each number
        self.factors = np.zeros(0, np.uint64)  # by which the characters of a span are multiplied
        self._empty_table(1 << 12)

    def tokens(self, text: str, codes: np.ndarray, starts: np.ndarray) -> Tokens:
        """Of the spans of `text` (characters `codes`) from each start to the next, the last to the end."""
        hashes = self._hash(codes, starts)
        numbers = self._find(hashes)
        missing = np.flatnonzero(numbers < 0)
        if len(missing):
            new, first, which = np.unique(hashes[missing], return_index=True, return_inverse=True)
            ends = np.append(starts[1:], len(codes))
            places = missing[first]
            spans = zip(starts[places].tolist(), ends[places].tolist(), strict=True)
            self.held.add(self.compute([text[start:end] for start, end in spans]))
            numbers[missing] = len(self.hashes) + which
            self.hashes = np.concatenate([self.hashes, new])
            self._insert(np.arange(len(self.hashes) - len(new), len(self.hashes)))
        found = self.held.take(numbers)
        if len(self.hashes) > self.most:
            self.hashes = self.hashes[self.held.halve()]
            self._empty_table(len(self.slots))
            self._insert(np.arange(len(self.hashes)))
        return found

    def _hash(self, codes: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """(spans,) uint64, never 0: the sum of character times factor of its place, mixed with the length."""
        lengths = np.diff(starts, append=len(codes))
        longest = int(lengths.max(initial=1))
        if longest > len(self.factors):
            self.factors = random_bits(fold("span"), np.arange(2 * longest)) | np.uint64(1)
        places = np.arange(len(codes), dtype=np.int32) - np.repeat(starts.astype(np.int32), lengths)
        sums = np.add.reduceat(self.factors[places] * codes, starts)  # wraps around, as it should
        return random_bits(fold("length"), sums ^ (lengths.astype(np.uint64) << np.uint64(44))) | np.uint64(1)

    def _empty_table(self, size: int) -> None:
        self.slots = np.zeros(size, np.uint64)  # hashes, by open addressing; 0 is empty
        self.number_of = np.zeros(size, np.int32)

    def _home(self, hashes: np.ndarray) -> np.ndarray:
        """Where a search starts: the top bits."""
        return (hashes >> np.uint64(64 - (len(self.slots).bit_length() - 1))).astype(np.int64)

    def _find(self, hashes: np.ndarray) -> np.ndarray:
        """(spans,) int64: the numbers, -1 where there is none."""
        places = self._home(hashes)
        slots = self.slots[places]
        numbers = np.where(slots == hashes, self.number_of[places], -1).astype(np.int64)
        going = np.flatnonzero((slots != hashes) & (slots != 0))
        while len(going):
            places[going] = (places[going] + 1) & (len(self.slots) - 1)
            slots = self.slots[places[going]]
            hit = slots == hashes[going]
            numbers[going[hit]] = self.number_of[places[going[hit]]]
            going = going[~hit & (slots != 0)]
        return numbers

    def _insert(self, numbers: np.ndarray) -> None:
        """Enters new hashes, all different; the table is kept at most half full, so searches stay short."""
        if 2 * len(self.hashes) > len(self.slots):
            while 2 * len(self.hashes) > len(self.slots):
                self._empty_table(2 * len(self.slots))
            numbers = np.arange(len(self.hashes))
        places = self._home(self.hashes[numbers])
        while len(numbers):
            free = self.slots[places] == 0
            self.slots[places[free]] = self.hashes[numbers[free]]  # several may want one place: one gets it
            got = free & (self.slots[places] == self.hashes[numbers])
            self.number_of[places[got]] = numbers[got]
            numbers, places = numbers[~got], (places[~got] + 1) & (len(self.slots) - 1)
