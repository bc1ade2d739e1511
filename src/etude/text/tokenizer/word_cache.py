"""Caches of the tokens of words: very many words in bounded memory.

The tokens of all entries lie end to end in arrays, so that looking up a whole text is array work. `WordCache` finds an
entry's number in a dictionary of strings. `SpanCache` never makes strings of known words at all: it hashes spans of
bytes, all at once, and finds numbers in a table by those hashes. A full cache drops the least used half of its entries.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import compress, count
from typing import Self

import numpy as np

from etude.chance import mix_array

WORD_START, WHITE_SPACE = np.uint32(1 << 31), np.uint32(1 << 30)  # flags on an id: starts a word; is white space only
ID_BITS = np.uint32((1 << 30) - 1)
WORD_ENTRY_BYTES = 85  # of an entry of WordCache beside its key: dictionary, number and arrays, as measured
SPAN_ENTRY_BYTES = 56  # of an entry of SpanCache: at least two slots of the table, and the arrays
LOW_BYTES = np.array([(1 << (8 * count)) - 1 for count in range(9)], np.uint64)  # masks of so many bytes
LENGTH_FACTOR = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: lengths land far apart
MAX_HASHED_BYTES = 128  # of a span, eight at a time for all spans; longer ones are hashed one by one


@dataclass
class Tokens:
    """The tokens of several words (or texts) end to end."""

    flagged: np.ndarray  # (N,) uint32: ids with the flags WORD_START and WHITE_SPACE
    lengths: np.ndarray  # (words,) int64: tokens of each word
    byte_lengths: np.ndarray | None = None  # (N,) int64: UTF-8 bytes of each token's surface (word-level tokenizers)
    letters: np.ndarray | None = None  # (bytes,) uint8: the surfaces end to end
    offsets: np.ndarray | None = None  # (N, 2): characters of each token in its text, if just encoded

    @classmethod
    def build(
        cls, flagged: np.ndarray, lengths: np.ndarray, surfaces: list[bytes] | None, offsets: np.ndarray | None = None
    ) -> Self:
        """Tokens from ids with flags; `surfaces` are the UTF-8 letters of each token."""
        if surfaces is None:
            return cls(flagged, lengths, offsets=offsets)
        byte_lengths = np.fromiter(map(len, surfaces), np.int64, len(surfaces))
        return cls(flagged, lengths, byte_lengths, np.frombuffer(b"".join(surfaces), np.uint8), offsets)

    @classmethod
    def concatenate(cls, parts: list[Self]) -> Self:
        byte_lengths = [part.byte_lengths for part in parts if part.byte_lengths is not None]
        letters = [part.letters for part in parts if part.letters is not None]
        return cls(
            np.concatenate([part.flagged for part in parts]), np.concatenate([part.lengths for part in parts]),
            np.concatenate(byte_lengths) if byte_lengths else None, np.concatenate(letters) if letters else None,
        )  # fmt: skip

    def regroup(self, lengths: np.ndarray) -> Tokens:
        """Return the same tokens as those of longer words: `lengths` of the new ones."""
        return Tokens(self.flagged, lengths, self.byte_lengths, self.letters)

    def select(self, numbers: np.ndarray) -> Tokens:
        """Return the tokens of the words with these numbers, in that order; numbers may repeat."""
        lengths = self.lengths[numbers]
        places = _join_ranges((np.cumsum(self.lengths) - self.lengths)[numbers], lengths)
        if self.byte_lengths is None or self.letters is None:
            return Tokens(self.flagged[places], lengths)
        byte_lengths = self.byte_lengths[places]
        letters = _join_ranges((np.cumsum(self.byte_lengths) - self.byte_lengths)[places], byte_lengths)
        return Tokens(self.flagged[places], lengths, byte_lengths, self.letters[letters])


def _join_ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return start, start + 1, ... of each range, end to end."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))


class _Entries:
    """The tokens of numbered words, with how often each was used; older uses count less."""

    def __init__(self, surfaces: bool) -> None:
        letters, byte_lengths = (np.zeros(0, np.uint8), np.zeros(0, np.int64)) if surfaces else (None, None)
        self.tokens = Tokens(np.zeros(0, np.uint32), np.zeros(0, np.int64), byte_lengths, letters)
        self.uses = np.zeros(0, np.int64)

    def add(self, new: Tokens) -> None:
        self.tokens = Tokens.concatenate([self.tokens, new])
        self.uses = np.concatenate([self.uses, np.zeros(len(new.lengths), np.int64)])

    def take(self, numbers: np.ndarray) -> Tokens:
        self.uses += np.bincount(numbers, minlength=len(self.uses))
        return self.tokens.select(numbers)

    def drop_half(self) -> np.ndarray:
        """Drop the least used half; return a mask (entries,) bool of those that stay."""
        survivors = np.zeros(len(self.uses), bool)
        survivors[np.argsort(-self.uses, kind="stable")[: len(self.uses) // 2]] = True
        self.tokens = self.tokens.select(np.flatnonzero(survivors))
        self.uses = self.uses[survivors] // 2
        return survivors


class _KeyNumbers(dict[str, int]):
    """A dictionary that gives a missing key the next number and lists it in `new`."""

    def __init__(self, pairs: Iterable[tuple[str, int]] = ()) -> None:
        super().__init__(pairs)
        self.new: list[str] = []

    def __missing__(self, key: str) -> int:
        number = self[key] = len(self)
        self.new.append(key)
        return number


class WordCache:
    """Tokens by word, found in a dictionary."""

    def __init__(self, compute: Callable[[list[str]], Tokens], max_bytes: int, surfaces: bool) -> None:
        """`compute` encodes words that are not in the cache.

        `surfaces`: whether tokens come with their letters.
        """
        self.compute, self.max_bytes = compute, max_bytes
        self.numbers = _KeyNumbers()
        self.entries = _Entries(surfaces)
        self.used_bytes = 0  # an estimate

    def look_up(self, keys: list[str]) -> Tokens:
        numbers = np.fromiter(map(self.numbers.__getitem__, keys), np.int64, len(keys))
        if new := self.numbers.new:
            self.entries.add(self.compute(new))
            self.used_bytes += sum(map(sys.getsizeof, new)) + WORD_ENTRY_BYTES * len(new)
            self.numbers.new = []
        tokens = self.entries.take(numbers)
        if self.used_bytes > self.max_bytes:
            survivors = self.entries.drop_half()
            self.numbers = _KeyNumbers(zip(compress(self.numbers, survivors.tolist()), count(), strict=False))
            self.used_bytes = sum(map(sys.getsizeof, self.numbers)) + WORD_ENTRY_BYTES * len(self.numbers)
        return tokens


def hash_spans(encoded: bytes, words: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Hash spans of bytes, (spans,) uint64, never 0; `words` are the eight bytes at each position."""
    hashes = words.take(starts) & LOW_BYTES.take(lengths, mode="clip")
    hashes ^= lengths.astype(np.uint64) * np.uint64(LENGTH_FACTOR)
    mix_array(hashes)
    longer, done = np.flatnonzero(lengths > 8), 8
    while len(longer) and done < MAX_HASHED_BYTES:
        more = words.take(starts[longer] + done) & LOW_BYTES.take(lengths[longer] - done, mode="clip")
        hashes[longer] = mix_array(hashes[longer] ^ more)
        done += 8
        longer = longer[lengths[longer] > done]
    for number in longer.tolist():  # long and rare: a data dump, or a script without spaces
        start, end = int(starts[number]), int(starts[number] + lengths[number])
        digest = hashlib.blake2b(encoded[start:end], digest_size=8).digest()
        hashes[number] = int.from_bytes(digest, "little")
    hashes |= np.uint64(1)
    return hashes


class SpanCache:
    """Tokens by span of bytes; spans are compared by a 64-bit hash of their bytes and their length.

    The hash is that of SplitMix64 over eight bytes at a time, one to one for a single step: two given spans share it
    with a chance of about 2^-63, so that in a million different words any two do with one of 10^-7: less than that of a
    memory error.
    """

    def __init__(self, compute: Callable[[list[str]], Tokens], max_bytes: int, surfaces: bool) -> None:
        self.compute, self.max_entries = compute, max(1024, max_bytes // SPAN_ENTRY_BYTES)
        self.entries = _Entries(surfaces)
        self.hashes = np.zeros(0, np.uint64)  # of each entry
        self._empty_table(1 << 12)

    def look_up(self, encoded: bytes, words: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> Tokens:
        """Return the tokens of spans of UTF-8; `words` are the eight bytes at each position (text_batch.py)."""
        hashes = hash_spans(encoded, words, starts, lengths)
        numbers = self._find(hashes)
        missing = np.flatnonzero(numbers < 0)
        if len(missing):
            new, first, inverse = np.unique(hashes[missing], return_index=True, return_inverse=True)
            places = missing[first]
            spans = zip(starts[places].tolist(), (starts + lengths)[places].tolist(), strict=True)
            self.entries.add(self.compute([encoded[start:end].decode() for start, end in spans]))
            numbers[missing] = len(self.hashes) + inverse
            self.hashes = np.concatenate([self.hashes, new])
            self._insert(np.arange(len(self.hashes) - len(new), len(self.hashes)))
        tokens = self.entries.take(numbers)
        if len(self.hashes) > self.max_entries:
            self.hashes = self.hashes[self.entries.drop_half()]
            self._empty_table(len(self.slots))
            self._insert(np.arange(len(self.hashes)))
        return tokens

    def _empty_table(self, size: int) -> None:
        self.slots = np.zeros(size, np.uint64)  # hashes, by open addressing; 0 is empty
        self.slot_numbers = np.zeros(size, np.int32)

    def _home(self, hashes: np.ndarray) -> np.ndarray:
        """Return the slot at which a search starts: the top bits of the hash."""
        return (hashes >> np.uint64(64 - (len(self.slots).bit_length() - 1))).astype(np.int64)

    def _find(self, hashes: np.ndarray) -> np.ndarray:
        """Return the entry number of each hash, (spans,) int64; -1 where there is none."""
        places = self._home(hashes)
        numbers = self.slot_numbers.take(places).astype(np.int64)
        slots = self.slots.take(places)
        others = np.flatnonzero(slots != hashes)
        numbers[others] = -1
        unresolved = others[slots[others] != 0]
        while len(unresolved):
            places[unresolved] = (places[unresolved] + 1) & (len(self.slots) - 1)
            slots = self.slots[places[unresolved]]
            hit = slots == hashes[unresolved]
            numbers[unresolved[hit]] = self.slot_numbers[places[unresolved[hit]]]
            unresolved = unresolved[~hit & (slots != 0)]
        return numbers

    def _insert(self, numbers: np.ndarray) -> None:
        """Insert distinct new hashes; the table stays at most half full, so that searches are short."""
        if 2 * len(self.hashes) > len(self.slots):
            while 2 * len(self.hashes) > len(self.slots):
                self._empty_table(2 * len(self.slots))
            numbers = np.arange(len(self.hashes))
        places = self._home(self.hashes[numbers])
        while len(numbers):
            free = self.slots[places] == 0
            self.slots[places[free]] = self.hashes[numbers[free]]  # of several for one slot one gets it
            inserted = free & (self.slots[places] == self.hashes[numbers])
            self.slot_numbers[places[inserted]] = numbers[inserted]
            numbers, places = numbers[~inserted], (places[~inserted] + 1) & (len(self.slots) - 1)
