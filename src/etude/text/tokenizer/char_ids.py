"""Words as rows of character numbers, for models that read letters: ELMo's scheme (Peters et al. 2018) [code].

A word is its UTF-8 bytes between two marks, filled up to a fixed length; what does not fit is cut, the mark of the
end kept. Numbers are those of the released weights in use, one above those in its training: 0 stands for nothing.

    1 .. 256   a byte          257, 258   the words <S> and </S> around a sentence
    259, 260   word starts, ends          261   filling
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

CHAR_VOCAB = 262  # rows of a table of characters
SENTENCE_START, SENTENCE_END, WORD_START, WORD_END, FILLING = 257, 258, 259, 260, 261
MAX_CHARS = 50  # of a row, the two marks of the word among them


def words_to_char_ids(
    words: Sequence[bytes | str | int], length: int = MAX_CHARS, widest: int | None = None
) -> np.ndarray:
    """(n, length) int64. A number among the words is one of SENTENCE_START, SENTENCE_END: a word of that letter alone.

    With `widest`, the width of the widest filter over the rows, filling that no maximum over windows can tell from
    other filling is left out: rows are as long as the longest word and that filter together, or `length` if less.
    """
    if length < 3:
        raise ValueError(f"a row of {length} has no room for a letter between two marks")
    letters = [_letters(word)[: length - 2] for word in words]
    sizes = np.fromiter(map(len, letters), np.int64, len(letters))
    if widest is not None:
        length = min(length, int(sizes.max(initial=1)) + 2 + widest)
    rows = np.full((len(letters), length), FILLING, np.int64)
    rows[:, 0] = WORD_START
    owner = np.repeat(np.arange(len(letters)), sizes)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    rows[owner, place + 1] = np.frombuffer(b"".join(letters), np.uint8).astype(np.int64) + 1
    rows[np.arange(len(letters)), sizes + 1] = WORD_END
    for number, word in enumerate(words):
        if isinstance(word, int):
            rows[number, 1] = word
    return rows


def _letters(word: bytes | str | int) -> bytes:
    if isinstance(word, int):
        return b"\0"  # one place, filled in afterwards
    return word.encode() if isinstance(word, str) else word
