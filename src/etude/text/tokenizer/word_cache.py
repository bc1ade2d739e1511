"""A cache of the tokens of words: very many words in bounded memory.

The tokens of all entries lie end to end in arrays, so that looking up a whole text is array work. No strings are made
of known words at all: spans of bytes are hashed, all at once, and an entry's number is found in a table by the hash. A
full cache drops the least used half of its entries.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from etude.chance import mix_array
from etude.text.tokenizer.text_batch import load_words

WORD_START, WHITE_SPACE = np.uint32(1 << 31), np.uint32(1 << 30)  # flags on an id: starts a word; is white space only
ID_BITS = np.uint32((1 << 30) - 1)
SPAN_ENTRY_BYTES = 64  # of an entry: at least two slots of the table, and the arrays with the room behind them
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


class _GrowingArray:
    """An array with room behind it, so that adding to it copies it rarely."""

    def __init__(self, dtype: type) -> None:
        self.room: np.ndarray = np.zeros(64, dtype)
        self.size = 0

    @property
    def values(self) -> np.ndarray:
        return self.room[: self.size]

    def extend(self, values: np.ndarray) -> None:
        end = self.size + len(values)
        if end > len(self.room):
            room = np.zeros(max(end, len(self.room) * 5 // 4), self.room.dtype)
            room[: self.size] = self.values
            self.room = room
        self.room[self.size : end] = values
        self.size = end

    def replace(self, values: np.ndarray) -> None:
        self.room, self.size = values.astype(self.room.dtype), len(values)


class _Entries:
    """The tokens of numbered words, with how often each was used; older uses count less."""

    def __init__(self, surfaces: bool) -> None:
        self.surfaces = surfaces
        self._clear()

    def _clear(self) -> None:
        self.flagged = _GrowingArray(np.uint32)  # of all entries, end to end
        self.starts = _GrowingArray(np.int32)  # first token of each entry
        self.lengths = _GrowingArray(np.int32)  # tokens of each entry
        self.uses = _GrowingArray(np.int64)
        self.byte_starts = _GrowingArray(np.int32)  # of each token's letters
        self.byte_lengths = _GrowingArray(np.int32)
        self.letters = _GrowingArray(np.uint8)

    def add(self, new: Tokens) -> None:
        self.starts.extend(self.flagged.size + np.cumsum(new.lengths) - new.lengths)
        self.lengths.extend(new.lengths)
        self.flagged.extend(new.flagged)
        self.uses.extend(np.zeros(len(new.lengths), np.int64))
        if self.surfaces:
            assert new.byte_lengths is not None and new.letters is not None
            self.byte_starts.extend(self.letters.size + np.cumsum(new.byte_lengths) - new.byte_lengths)
            self.byte_lengths.extend(new.byte_lengths)
            self.letters.extend(new.letters)

    def take(self, numbers: np.ndarray) -> Tokens:
        """Return the tokens of the entries with these numbers, in that order; numbers may repeat."""
        self.uses.values[:] += np.bincount(numbers, minlength=self.uses.size)
        return self._select(numbers)

    def _select(self, numbers: np.ndarray) -> Tokens:
        lengths = self.lengths.values.take(numbers).astype(np.int64)
        places = _join_ranges(self.starts.values.take(numbers), lengths)
        flagged = self.flagged.values.take(places)
        if not self.surfaces:
            return Tokens(flagged, lengths)
        byte_lengths = self.byte_lengths.values.take(places).astype(np.int64)
        letters = self.letters.values.take(_join_ranges(self.byte_starts.values.take(places), byte_lengths))
        return Tokens(flagged, lengths, byte_lengths, letters)

    def drop_half(self) -> np.ndarray:
        """Drop the least used half; return a mask (entries,) bool of those that stay."""
        uses = self.uses.values.copy()
        survivors = np.zeros(len(uses), bool)
        survivors[np.argsort(-uses, kind="stable")[: len(uses) // 2]] = True
        tokens = self._select(np.flatnonzero(survivors))
        self._clear()
        self.add(tokens)
        self.uses.replace(uses[survivors] // 2)
        return survivors


@dataclass(frozen=True)
class SpanList:
    """Spans of UTF-8, each of whole characters, none empty."""

    encoded: bytes
    words: np.ndarray  # (B,) uint64: the eight bytes at each position (text_batch.py)
    starts: np.ndarray  # (spans,) int64
    lengths: np.ndarray  # (spans,) int64

    def __len__(self) -> int:
        return len(self.starts)

    @classmethod
    def join(cls, parts: Sequence[bytes]) -> Self:
        """Return whole strings, end to end."""
        lengths = np.fromiter(map(len, parts), np.int64, len(parts))
        encoded = b"".join(parts)
        return cls(encoded, load_words(encoded), np.cumsum(lengths) - lengths, lengths)

    def select(self, numbers: np.ndarray) -> SpanList:
        """Return some of the spans, end to end."""
        lengths = self.lengths[numbers]
        data = np.frombuffer(self.encoded, np.uint8)
        encoded = data[_join_ranges(self.starts[numbers], lengths)].tobytes()
        return SpanList(encoded, load_words(encoded), np.cumsum(lengths) - lengths, lengths)

    def decode(self) -> list[str]:
        """Return the spans as strings."""
        bounds = zip(self.starts.tolist(), (self.starts + self.lengths).tolist(), strict=True)
        return [self.encoded[start:end].decode() for start, end in bounds]


def hash_spans(spans: SpanList) -> np.ndarray:
    """Hash spans, (spans,) uint64, never 0."""
    words, starts, lengths = spans.words, spans.starts, spans.lengths
    if not len(starts):
        return np.zeros(0, np.uint64)
    hashes = words[starts] & LOW_BYTES.take(lengths, mode="clip")
    hashes ^= lengths.astype(np.uint64) * np.uint64(LENGTH_FACTOR)
    mix_array(hashes)
    longer, done = np.flatnonzero(lengths > 8), 8
    while len(longer) and done < MAX_HASHED_BYTES:
        more = words[starts[longer] + done] & LOW_BYTES.take(lengths[longer] - done, mode="clip")
        hashes[longer] = mix_array(hashes[longer] ^ more)
        done += 8
        longer = longer[lengths[longer] > done]
    for number in longer.tolist():  # long and rare: a data dump, or a script without spaces
        start, end = int(starts[number]), int(starts[number] + lengths[number])
        digest = hashlib.blake2b(spans.encoded[start:end], digest_size=8).digest()
        hashes[number] = int.from_bytes(digest, "little")
    hashes |= np.uint64(1)
    return hashes


class SpanCache:
    """Tokens by span of bytes; spans are compared by a 64-bit hash of their bytes and their length.

    The hash is that of SplitMix64 over eight bytes at a time, one to one for a single step: two given spans share it
    with a chance of about 2^-63, so that in a million different words any two do with one of 10^-7: less than that of a
    memory error.
    """

    def __init__(self, compute: Callable[[SpanList], Tokens], max_bytes: int, surfaces: bool) -> None:
        """`compute` encodes spans that are not in the cache.

        `surfaces`: whether tokens come with their letters.
        """
        self.compute, self.max_entries = compute, max(1024, max_bytes // SPAN_ENTRY_BYTES)
        self.entries = _Entries(surfaces)
        self.hashes = _GrowingArray(np.uint64)  # of each entry
        self._empty_table(1 << 12)

    def __len__(self) -> int:
        return self.hashes.size

    def look_up(self, spans: SpanList) -> Tokens:
        """Return the tokens of spans of UTF-8."""
        hashes = hash_spans(spans)
        numbers = self._find(hashes)
        missing = np.flatnonzero(numbers < 0)
        if len(missing):
            new, first, inverse = np.unique(hashes[missing], return_index=True, return_inverse=True)
            self.entries.add(self.compute(spans.select(missing[first])))
            numbers[missing] = len(self) + inverse
            self.hashes.extend(new)
            if 2 * len(self) > len(self.slots):
                self._rebuild(2 * len(self.slots))
            else:
                self._insert(np.arange(len(self) - len(new), len(self)))
        tokens = self.entries.take(numbers)
        if len(self) > self.max_entries:
            self.hashes.replace(self.hashes.values[self.entries.drop_half()])
            self._rebuild(len(self.slots))
        return tokens

    def _rebuild(self, size: int) -> None:
        """Make a new table of at least this size. It stays at most half full, so that searches are short."""
        while size < 2 * len(self):
            size *= 2
        self._empty_table(size)
        # of several entries for one slot the last gets it, and the most used ones should need no search
        self._insert(np.argsort(self.entries.uses.values, kind="stable"))

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
        """Insert distinct new hashes."""
        hashes = self.hashes.values[numbers]
        places = self._home(hashes)
        while len(numbers):
            free = self.slots[places] == 0
            self.slots[places[free]] = hashes[free]
            inserted = free & (self.slots[places] == hashes)
            self.slot_numbers[places[inserted]] = numbers[inserted]
            rest = ~inserted
            numbers, hashes, places = numbers[rest], hashes[rest], (places[rest] + 1) & (len(self.slots) - 1)
