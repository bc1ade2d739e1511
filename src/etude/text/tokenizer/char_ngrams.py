"""A word's character n-grams and their buckets, as fastText has them (Bojanowski et al. 2017, section 3.2) [code].

A word is written between two marks, `<word>`; its n-grams are all runs of `smallest` to `largest` characters of that
(characters, not bytes; a mark alone is none). An n-gram's bucket is a 32-bit FNV-1a hash over its UTF-8 bytes, modulo
the number of buckets. The original reads a byte as a signed number, so bytes from 128 on enter the hash with all upper
bits set: without that, every n-gram with a letter beyond ASCII, all of Korean, lands in a wrong bucket.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from etude.text.tokenizer.tokenizer import Tokenizer

END = "</s>"  # fastText's word for the end of a line, which has no n-grams
OFFSET, PRIME = 2166136261, 16777619
SIGN = 0xFFFFFF00  # of a byte from 128 on, read as a signed number


def fnv1a(text: str) -> int:
    """fastText's hash of a string, 32 bits."""
    value = OFFSET
    for byte in text.encode():
        value = ((value ^ (byte | SIGN if byte > 127 else byte)) * PRIME) & 0xFFFFFFFF
    return value


def hash_ngram(gram: str, buckets: int) -> int:
    return fnv1a(gram) % buckets


def extract_ngrams(word: str, smallest: int, largest: int) -> list[str]:
    """By their first character, the shorter ones first: fastText's order."""
    marked = f"<{word}>"
    return [
        marked[start : start + size]
        for start in range(len(marked))
        for size in range(smallest, largest + 1)
        if start + size <= len(marked) and not (size == 1 and start in (0, len(marked) - 1))
    ]


def hash_ngrams(words: Sequence[str], buckets: int, smallest: int, largest: int) -> tuple[np.ndarray, np.ndarray]:
    """(W+1,) bounds and (n,) int64 buckets of the n-grams of each word, in the order of `grams`; all words at once."""
    marked = [f"<{word}>".encode() for word in words]
    sizes = np.fromiter(map(len, marked), np.int64, len(marked))
    text = np.frombuffer(b"".join(marked), np.uint8)
    places = np.flatnonzero((text & 0xC0) != 0x80)  # where characters begin
    letters = np.append(places[1:], len(text)) - places  # (C,) bytes of each character
    word = np.repeat(np.arange(len(marked)), sizes)[places]  # (C,) the word a character belongs to
    if not len(places) or largest < 1:
        return np.zeros(len(marked) + 1, np.int64), np.zeros(0, np.int64)

    signed = np.where(text > 127, text | np.uint32(SIGN), text).astype(np.uint64)  # 64 bits: products do not overflow
    value = np.full(len(places), OFFSET, np.uint64)
    found, whole = [], np.ones(len(places), bool)
    edge = np.ones(len(places), bool)  # a character that is the first or the last of its word
    edge[1:-1] = (word[1:-1] != word[:-2]) | (word[1:-1] != word[2:])
    for size in range(1, largest + 1):
        at = np.minimum(np.arange(len(places)) + size - 1, len(places) - 1)  # the character that is added
        whole = whole & (np.arange(len(places)) + size <= len(places)) & (word[at] == word)
        for byte in range(4):  # a character of UTF-8 has no more
            more = whole & (letters[at] > byte)
            value[more] = ((value[more] ^ signed[places[at[more]] + byte]) * np.uint64(PRIME)) & np.uint64(0xFFFFFFFF)
        if size >= smallest:
            found.append(np.where(whole & ~edge if size == 1 else whole, (value % buckets).astype(np.int64), -1))
    table = np.stack(found, axis=1) if found else np.zeros((len(places), 0), np.int64)  # (C, sizes)
    kept = table >= 0
    counts = np.bincount(word, weights=kept.sum(1), minlength=len(marked)).astype(np.int64)
    return np.concatenate([[0], np.cumsum(counts)]), table[kept]


def build_subword_rows(
    words: Sequence[str | None], buckets: int, smallest: int, largest: int
) -> tuple[np.ndarray, np.ndarray]:
    """(W+1,) bounds and rows of each word in a table of the words and, behind them, the buckets: itself, its n-grams.

    None stands for a word that is no letters, such as a special token: it has no n-grams.
    """
    letters = [word for word in words if word is not None and word != END]
    known = np.array([word is not None and word != END for word in words], bool)
    bounds, found = hash_ngrams(letters, buckets, smallest, largest)
    sizes = np.ones(len(words), np.int64)
    sizes[known] += np.diff(bounds)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    rows = np.empty(starts[-1], np.int64)
    own = np.zeros(len(rows), bool)
    own[starts[:-1]] = True
    rows[own], rows[~own] = np.arange(len(words)), found + len(words)
    return starts, rows


def list_token_strings(tokenizer: Tokenizer) -> list[str | None]:
    """How every token is written; None for special ones and for ids without a name."""
    special = set(tokenizer.special.ids())
    named = {id: word for word, id in tokenizer.backend.get_vocab(with_added_tokens=True).items()}
    return [None if id in special else named.get(id) for id in range(tokenizer.vocab)]
