"""The words of many texts at once, with hashes: what a trie of labels is built from and searched with.

A word is a run of letters, marks and digits; every symbol and every Han character is a word of its own
(text/tokenizer/characters.py). Hashes are of folded characters: lower case, one kind of apostrophe and of hyphen. The
hash of a prefix of a word is a difference of two running sums, so stems before Korean particles cost no second pass.
Everything is array work over the texts joined: about a microsecond a word.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np

from etude.chance import fold, mix_array, random_bits
from etude.text.tokenizer import characters

BETWEEN = "\0"  # between texts: a word of its own that is in no label
LONGEST_WORD = 64  # characters that are hashed at their own place; what is longer is a word of no label
_APOSTROPHES, _HYPHENS = "’‘ʼ＇", "‐‑‒–—−"


@cache
def fold_table() -> np.ndarray:
    """Return the folded character of each code point, (0x110000,) uint32."""
    table = np.arange(0x110000, dtype=np.uint32)
    for code in np.flatnonzero(case_table()[:0x1F000] == UPPER).tolist():
        lower = chr(code).lower()
        if len(lower) == 1:
            table[code] = ord(lower)
    table[[ord(mark) for mark in _APOSTROPHES]] = ord("'")
    table[[ord(mark) for mark in _HYPHENS]] = ord("-")
    return table


UPPER, LOWER = 1, 2


@cache
def case_table() -> np.ndarray:
    """Return whether each code point is an upper-case (1) or lower-case (2) letter or neither (0), uint8."""
    table = np.zeros(0x110000, np.uint8)
    for code in range(0x1F000):
        letter = chr(code)
        if letter.isupper() or letter.istitle():
            table[code] = UPPER
        elif letter.islower():
            table[code] = LOWER
    return table


@cache
def _factors() -> np.ndarray:
    """Return the odd factor of each place in a word, (LONGEST_WORD,) uint64."""
    return random_bits(fold("linking"), np.arange(LONGEST_WORD, dtype=np.uint64)) | np.uint64(1)


class Words:
    """The words of texts joined by `BETWEEN`, as arrays over all of them (W words, C characters)."""

    def __init__(self, texts: Sequence[str]) -> None:
        joined = BETWEEN.join([*texts, ""])
        self.codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), np.uint32)  # (C,)
        self.classes = characters.class_table()[self.codes]
        is_start = characters.find_word_starts(self.classes)
        self.starts = np.flatnonzero(is_start)  # (W,) first character
        is_solid = self.classes != characters.SPACE
        # a word goes on up to the next word or to white space
        is_last = is_solid.copy()
        is_last[:-1] &= is_start[1:] | ~is_solid[1:]
        self.ends = np.flatnonzero(is_last) + 1  # (W,)
        self.lengths = self.ends - self.starts
        self.follows_space = np.ones(len(self.starts), bool)
        self.follows_space[1:] = self.starts[1:] != self.ends[:-1]
        places = np.arange(len(self.codes), dtype=np.int32)
        firsts = np.concatenate([[0], self.starts])  # white space may stand before the first word
        places -= np.repeat(firsts.astype(np.int32), np.diff(firsts, append=len(self.codes)))
        self.places = np.minimum(places, LONGEST_WORD - 1, out=places)

    @cached_property
    def sums(self) -> np.ndarray:
        """Running sums of folded character times the factor of its place, (C + 1,) uint64."""
        sums = np.zeros(len(self.codes) + 1, np.uint64)
        np.cumsum(_factors()[self.places] * fold_table()[self.codes], out=sums[1:])  # wraps around, as it should
        return sums

    def hash_prefixes(self, words: np.ndarray | slice, ends: np.ndarray) -> np.ndarray:
        """Return the hash of each of the words from its start up to a place in it, uint64."""
        starts = self.starts[words]
        lengths = ends - starts
        hashes = mix_array((self.sums[ends] - self.sums[starts]) ^ (lengths.astype(np.uint64) << np.uint64(48)))
        hashes[lengths > LONGEST_WORD] = 0
        return hashes

    def hash_cases(self, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Return a hash of the places of upper-case letters in each span, none of which is empty; uint64."""
        if not len(starts):
            return np.zeros(0, np.uint64)
        lengths = ends - starts
        firsts = np.cumsum(lengths) - lengths
        inside = np.arange(int(lengths.sum())) - np.repeat(firsts, lengths)
        is_upper = case_table()[self.codes[np.repeat(starts, lengths) + inside]] == UPPER
        factors = _factors()[np.minimum(inside, LONGEST_WORD - 1)] * is_upper
        return mix_array(np.add.reduceat(factors, firsts))

    @cached_property
    def _counts(self) -> np.ndarray:
        """Running counts of four kinds of characters, (C + 1,) uint64: sixteen bits each of a difference of two."""
        values = _count_table()[self.codes]
        values[self.starts] += (values[self.starts] & np.uint64(1)) << np.uint64(32)
        counts = np.zeros(len(values) + 1, np.uint64)
        np.cumsum(values, out=counts[1:])
        return counts

    def count_letters(self, starts: np.ndarray, ends: np.ndarray) -> LetterCounts:
        """Return how many letters of each kind are in each span, all shorter than 2^16."""
        counts = self._counts[ends] - self._counts[starts]
        mask = np.uint64(0xFFFF)
        return LetterCounts(*((counts >> np.uint64(16 * kind)) & mask for kind in range(4)))


class LetterCounts(NamedTuple):
    """The letters of spans."""

    upper: np.ndarray
    lower: np.ndarray
    initial: np.ndarray  # upper-case letters at the start of a word
    letters: np.ndarray  # of any script


@cache
def _count_table() -> np.ndarray:
    """Return what each code point adds to the running counts, (0x110000,) uint64."""
    cases = case_table()
    table = (cases == UPPER).astype(np.uint64) | ((cases == LOWER).astype(np.uint64) << np.uint64(16))
    return table | ((characters.class_table() >= characters.FIRST_SCRIPT).astype(np.uint64) << np.uint64(48))
