"""Character ids of words, for models with a character CNN: ELMo's scheme (Peters et al. 2018) [code].

A word is its UTF-8 bytes between two markers, padded to a fixed length; a longer word is truncated and keeps its end
marker. Ids are those that the released weights use, one above those of their training: 0 stands for nothing.

    1 .. 256   a byte          257, 258   the words <S> and </S> around a sentence
    259, 260   word starts, ends          261   padding
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

CHAR_VOCAB = 262  # rows of the table of character embeddings
SENTENCE_START, SENTENCE_END, WORD_START, WORD_END, PADDING = 257, 258, 259, 260, 261
MAX_CHARS = 50  # of a word, its two markers among them


def words_to_char_ids(
    words: Sequence[bytes | str | int], length: int = MAX_CHARS, widest_filter: int | None = None
) -> np.ndarray:
    """Return the character ids of words, (words, length) int64.

    An int among the words is SENTENCE_START or SENTENCE_END: a word of that character alone. `widest_filter` is the
    width of the widest convolution over the rows: padding beyond it changes no maximum over windows and is left out, so
    that rows are as long as the longest word and that filter together, or `length` if that is less.
    """
    if length < 3:
        raise ValueError(f"a row of {length} has no room for a character between two markers")
    letters = [_encode_word(word)[: length - 2] for word in words]
    sizes = np.fromiter(map(len, letters), np.int64, len(letters))
    if widest_filter is not None:
        length = min(length, int(sizes.max(initial=1)) + 2 + widest_filter)
    rows = np.full((len(letters), length), PADDING, np.int64)
    rows[:, 0] = WORD_START
    owner = np.repeat(np.arange(len(letters)), sizes)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    rows[owner, place + 1] = np.frombuffer(b"".join(letters), np.uint8).astype(np.int64) + 1
    rows[np.arange(len(letters)), sizes + 1] = WORD_END
    for number, word in enumerate(words):
        if isinstance(word, int):
            rows[number, 1] = word
    return rows


def _encode_word(word: bytes | str | int) -> bytes:
    if isinstance(word, int):
        return b"\0"  # a placeholder of one character
    return word.encode() if isinstance(word, str) else word
