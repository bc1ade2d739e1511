"""Character n-grams of words and their hash buckets, as in fastText [code].

Bojanowski et al. 2017, section 3.2: a word is written between two markers, `<word>`; its n-grams are all runs of
`smallest` to `largest` characters of that (characters, not bytes; a marker alone is none). An n-gram's bucket is its
32-bit FNV-1a hash over UTF-8 bytes, modulo the number of buckets. The original reads a byte as a signed number, so
bytes from 128 on enter the hash with all upper bits set: without that, every n-gram with a letter beyond ASCII, all of
Korean, lands in a wrong bucket.

Nothing but numpy is imported here: an exported baseline with word vectors holds a copy of this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

END_OF_LINE = "</s>"  # fastText's word for the end of a line, which has no n-grams
FNV_OFFSET, FNV_PRIME = 2166136261, 16777619
SIGN_BITS = 0xFFFFFF00  # of a byte from 128 on, read as a signed number


def fnv1a(text: str) -> int:
    """Return fastText's 32-bit FNV-1a hash of a string."""
    value = FNV_OFFSET
    for byte in text.encode():
        value = ((value ^ (byte | SIGN_BITS if byte > 127 else byte)) * FNV_PRIME) & 0xFFFFFFFF
    return value


def hash_ngram(ngram: str, buckets: int) -> int:
    """Return the bucket of one n-gram."""
    return fnv1a(ngram) % buckets


def extract_ngrams(word: str, smallest: int, largest: int) -> list[str]:
    """Return a word's n-grams in fastText's order: by first character, the shorter ones first."""
    marked = f"<{word}>"
    return [
        marked[start : start + size]
        for start in range(len(marked))
        for size in range(smallest, largest + 1)
        if start + size <= len(marked) and not (size == 1 and start in (0, len(marked) - 1))
    ]


def hash_ngrams(words: Sequence[str], buckets: int, smallest: int, largest: int) -> tuple[np.ndarray, np.ndarray]:
    """Return bounds (W+1,) and the buckets of each word's n-grams, in the order of `extract_ngrams`."""
    marked = [f"<{word}>".encode() for word in words]
    sizes = np.fromiter(map(len, marked), np.int64, len(marked))
    text = np.frombuffer(b"".join(marked), np.uint8)
    char_starts = np.flatnonzero((text & 0xC0) != 0x80)  # where characters begin
    char_bytes = np.append(char_starts[1:], len(text)) - char_starts  # (C,) bytes of each character
    word = np.repeat(np.arange(len(marked)), sizes)[char_starts]  # (C,) the word a character belongs to
    if not len(char_starts) or largest < 1:
        return np.zeros(len(marked) + 1, np.int64), np.zeros(0, np.int64)

    # in 64 bits, where products do not overflow
    signed = np.where(text > 127, text | np.uint32(SIGN_BITS), text).astype(np.uint64)
    value = np.full(len(char_starts), FNV_OFFSET, np.uint64)
    columns, whole = [], np.ones(len(char_starts), bool)
    edge = np.ones(len(char_starts), bool)  # a character that is the first or the last of its word
    edge[1:-1] = (word[1:-1] != word[:-2]) | (word[1:-1] != word[2:])
    for size in range(1, largest + 1):
        last = np.minimum(np.arange(len(char_starts)) + size - 1, len(char_starts) - 1)  # the character that is added
        whole = whole & (np.arange(len(char_starts)) + size <= len(char_starts)) & (word[last] == word)
        for byte in range(4):  # a character of UTF-8 has no more
            more = whole & (char_bytes[last] > byte)
            mixed = value[more] ^ signed[char_starts[last[more]] + byte]
            value[more] = (mixed * np.uint64(FNV_PRIME)) & np.uint64(0xFFFFFFFF)
        if size >= smallest:
            columns.append(np.where(whole & ~edge if size == 1 else whole, (value % buckets).astype(np.int64), -1))
    table = np.stack(columns, axis=1) if columns else np.zeros((len(char_starts), 0), np.int64)  # (C, sizes)
    exists = table >= 0
    counts = np.bincount(word, weights=exists.sum(1), minlength=len(marked)).astype(np.int64)
    return np.concatenate([[0], np.cumsum(counts)]), table[exists]


def build_subword_rows(
    words: Sequence[str | None], buckets: int, smallest: int, largest: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return bounds (W+1,) and the rows of each word in a table of words with the buckets behind them.

    A word's rows are its own and those of its n-grams. None stands for a word without letters, such as a special
    token: it has no n-grams.
    """
    spelled_words = [word for word in words if word is not None and word != END_OF_LINE]
    known = np.array([word is not None and word != END_OF_LINE for word in words], bool)
    bounds, ngram_buckets = hash_ngrams(spelled_words, buckets, smallest, largest)
    sizes = np.ones(len(words), np.int64)
    sizes[known] += np.diff(bounds)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    rows = np.empty(starts[-1], np.int64)
    own = np.zeros(len(rows), bool)
    own[starts[:-1]] = True
    rows[own], rows[~own] = np.arange(len(words)), ngram_buckets + len(words)
    return starts, rows


@dataclass(frozen=True)
class NgramTable:
    """The vectors of character n-grams, for words that have none of their own."""

    table: np.ndarray  # (buckets, D) float32 or float16
    smallest: int
    largest: int

    def vectors(self, words: Sequence[str]) -> np.ndarray:
        """Return (words, D) float32: the mean of the vectors of each word's n-grams, 0 where it has none."""
        bounds, rows = hash_ngrams(words, len(self.table), self.smallest, self.largest)
        totals = np.zeros((len(words), self.table.shape[1]), np.float32)
        np.add.at(totals, np.repeat(np.arange(len(words)), np.diff(bounds)), self.table[rows])
        return totals / np.maximum(1, np.diff(bounds))[:, None].astype(np.float32)
