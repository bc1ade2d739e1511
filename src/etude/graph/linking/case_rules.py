"""Case rules: how well a mention fits a label that has the same letters in another case, from 0 (never) to 1.

What decides is the shape of both, read off the counts of their upper- and lower-case letters:

    label          mention
    apple          Apple: a title, or another thing of that name; a good match where a sentence starts
    Jet engine     jet engine: labels that are titles begin with a capital
    Apple          apple: never (a common word; `titles` allows it), APPLE: in capitals
    New York       new york: careless, below the usual threshold ("the sea" is not "The Sea"); NEW YORK: in capitals
    US, NASA       us: never; Nasa: from four letters on
    eBay           EBay, ebay: careless

A single word in capitals of up to four letters (IT, MAY) matches no label that is a word (it, May). A single name
where a sentence starts (Will, Rose) is less sure than in its middle.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from etude.graph.linking.words import UPPER, LetterCounts, Words, case_table

SHORT = 4  # letters of a word whose capitals say little
SENTENCE_ENDS = ".!?…:;。\n\0\"“‘'(-•*#|"  # before a word that may start a sentence, a title or an item


class Shape(IntEnum):
    """Where the upper-case letters of a surface are."""

    UNCASED = 0  # 서울, 東京
    LOWER = 1  # apple
    INITIAL = 2  # Apple: one word, its first letter alone
    SENTENCE = 3  # Jet engine: several words, the first letter of the first alone
    TITLE = 4  # New York, University of Portsmouth: first letters of words
    UPPER = 5  # NASA, NEW YORK
    MIXED = 6  # eBay, McDonald


_L, _I, _S, _T, _U, _M = Shape.LOWER, Shape.INITIAL, Shape.SENTENCE, Shape.TITLE, Shape.UPPER, Shape.MIXED
# (label, mention) -> factor where they differ in case; what is not named here is 0
FACTORS = {
    (_L, _I): 0.6, (_L, _S): 0.8, (_L, _T): 0.7, (_L, _U): 0.6, (_L, _M): 0.3,
    (_I, _U): 0.7, (_I, _M): 0.3,
    (_S, _L): 0.9, (_S, _T): 0.7, (_S, _U): 0.6, (_S, _M): 0.3,
    (_T, _L): 0.25, (_T, _S): 0.5, (_T, _T): 0.9, (_T, _U): 0.9, (_T, _M): 0.6,
    (_U, _I): 0.5, (_U, _S): 0.4, (_U, _T): 0.6, (_U, _M): 0.4,
    (_M, _L): 0.3, (_M, _I): 0.6, (_M, _S): 0.5, (_M, _T): 0.7, (_M, _U): 0.7, (_M, _M): 0.7,
}  # fmt: skip
TITLE_FACTOR = 0.9  # of an all-lower-case mention of a one-word label, where labels are titles
STARTING_NAME = 0.7  # of a one-word name where a sentence starts


def tabulate_factors(titles: bool) -> np.ndarray:
    """Return the factors by the shapes of label and mention, (7, 7) float32."""
    table = np.zeros((len(Shape), len(Shape)), np.float32)
    for (label, mention), factor in FACTORS.items():
        table[label, mention] = factor
    if titles:
        table[Shape.INITIAL, Shape.LOWER] = TITLE_FACTOR
    return table


def find_shapes(words: Words, starts: np.ndarray, counts: LetterCounts, is_single: np.ndarray) -> np.ndarray:
    """Return the shape of each span of the text, uint8, from the letters in it and whether it is one word."""
    is_first = case_table()[words.codes[starts]] == UPPER
    shapes = np.full(len(starts), Shape.MIXED, np.uint8)
    uppers, lowers, initials = counts.upper, counts.lower, counts.initial
    shapes[uppers == initials] = Shape.TITLE
    shapes[(uppers == 1) & is_first & ~is_single] = Shape.SENTENCE
    shapes[(uppers == 1) & is_first & is_single] = Shape.INITIAL
    shapes[(lowers == 0) & (uppers > 1)] = Shape.UPPER
    shapes[uppers == 0] = Shape.LOWER
    shapes[(uppers == 0) & (lowers == 0)] = Shape.UNCASED
    return shapes


def find_sentence_starts(words: Words, numbers: np.ndarray) -> np.ndarray:
    """Return whether a sentence may start at each of these words, bool."""
    before = np.maximum(numbers - 1, 0)
    codes = words.codes[words.ends[before] - 1]
    marks = np.array([ord(mark) for mark in SENTENCE_ENDS], np.uint32)
    # a line break between the two words: white space of more than one character is looked at by its first
    breaks = words.codes[np.minimum(words.ends[before], len(words.codes) - 1)] == ord("\n")
    return (numbers == 0) | np.isin(codes, marks) | (breaks & words.follows_space[numbers])


def fit_cases(
    labels: np.ndarray, mentions: np.ndarray, is_equal: np.ndarray, at_start: np.ndarray, letters: np.ndarray,
    is_single: np.ndarray, table: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """Return the factor of each pair of a label and a mention with the same folded letters, float32.

    labels, mentions: shapes. is_equal: whether their upper-case letters are the same. at_start: whether a sentence may
    start at the mention. letters, is_single: how many letters the mention has, and whether it is one word.
    """
    factors = table[labels, mentions]
    is_short = letters <= SHORT
    # IT is not "it", Us is not "US"
    factors[is_single & is_short & (mentions == Shape.UPPER) & (labels != Shape.UPPER)] = 0
    factors[is_single & (letters < SHORT) & (labels == Shape.UPPER)] = 0
    is_starting = at_start & ((mentions == Shape.INITIAL) | (mentions == Shape.SENTENCE))
    factors[is_starting & (labels == Shape.LOWER)] = 1.0
    factors[is_equal] = 1.0
    factors[is_starting & (labels == Shape.INITIAL) & (mentions == Shape.INITIAL)] = STARTING_NAME
    return factors
