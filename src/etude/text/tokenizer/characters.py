"""Character classes: space, control, symbol, digit, mark, or a letter of some script.

One table over all code points, so that the classes of a whole text are one numpy look-up. They decide where words
start (whole-word masking under any tokenizer), what looks like text at all, and the mix of scripts.
"""

from __future__ import annotations

import unicodedata
from functools import cache
from itertools import pairwise

import numpy as np

SPACE, CONTROL, SYMBOL, DIGIT, MARK = range(5)
SCRIPTS = (
    ("Latin", ((0x0041, 0x02AF), (0x1E00, 0x1EFF), (0x2C60, 0x2C7F), (0xA720, 0xA7FF), (0xFF21, 0xFF5A))),
    ("Hangul", ((0x1100, 0x11FF), (0x3130, 0x318F), (0xA960, 0xA97F), (0xAC00, 0xD7FF), (0xFFA0, 0xFFDC))),
    ("Han", ((0x3005, 0x3007), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))),
    ("Kana", ((0x3040, 0x30FF), (0x31F0, 0x31FF), (0xFF66, 0xFF9F))),
    ("Cyrillic", ((0x0400, 0x052F), (0x1C80, 0x1C8F), (0x2DE0, 0x2DFF), (0xA640, 0xA69F))),
    ("Greek", ((0x0370, 0x03FF), (0x1F00, 0x1FFF))),
    ("Arabic", ((0x0600, 0x06FF), (0x0750, 0x077F), (0x08A0, 0x08FF), (0xFB50, 0xFDFF), (0xFE70, 0xFEFF))),
    ("Hebrew", ((0x0590, 0x05FF), (0xFB1D, 0xFB4F))),
    ("Indic", ((0x0900, 0x0DFF),)),
    ("Thai", ((0x0E00, 0x0E7F),)),
)
FIRST_SCRIPT = MARK + 1
OTHER = FIRST_SCRIPT + len(SCRIPTS)  # letters of every other script
CLASSES = OTHER + 1
HAN = FIRST_SCRIPT + [name for name, _ in SCRIPTS].index("Han")
CLASS_NAMES = ("space", "control", "symbol", "digit", "mark", *(name for name, _ in SCRIPTS), "other")

# the characters with Unicode's White_Space property: str.isspace adds the four separators U+001C..U+001F to
# them, which the tokenizers library does not count as space
WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))

_CATEGORY_CLASSES = {"L": OTHER, "M": MARK, "N": DIGIT, "P": SYMBOL, "S": SYMBOL, "Z": SPACE, "C": CONTROL}
# the ranges of code points that are looked up one by one; between those of the first line are letters alone, in every
# version of Unicode (Han and Hangul), and behind them what is unassigned or private
_MIXED = (
    (0, 0x33FF), (0x4DB6, 0x4DFF), (0x9FA6, 0xABFF), (0xD7A4, 0x1FFFF), (0x2A6D7, 0x323FF),
    (0xE0000, 0xE01FF),
)  # fmt: skip


@cache
def ascii_classes() -> bytes:
    """Return the classes of the 128 characters of ASCII: all that most text needs, without the whole table."""
    latin = FIRST_SCRIPT + [name for name, _ in SCRIPTS].index("Latin")
    classes = [_CATEGORY_CLASSES[unicodedata.category(chr(code))[0]] for code in range(128)]
    spaces = [SPACE if chr(code) in WHITE_SPACE else kind for code, kind in enumerate(classes)]
    return bytes(latin if kind == OTHER else kind for kind in spaces)


@cache
def class_table() -> np.ndarray:
    """Return the class of each code point, (0x110000,) uint8."""
    category = unicodedata.category
    classes = np.full(0x110000, CONTROL, np.uint8)
    for first, last in _MIXED:
        codes = range(first, last + 1)
        classes[first : last + 1] = [_CATEGORY_CLASSES[category(chr(code))[0]] for code in codes]
    for (_, last), (first, _) in pairwise(_MIXED[:-1]):  # what is between them are letters
        classes[last + 1 : first] = OTHER
    letters = classes == OTHER
    for number, (_, ranges) in enumerate(SCRIPTS):
        for first, last in ranges:
            part = slice(first, last + 1)
            classes[part][letters[part]] = FIRST_SCRIPT + number
    classes[[ord(space) for space in WHITE_SPACE]] = SPACE
    return classes


def classify(text: str) -> np.ndarray:
    """Return the class of each character, (characters,) uint8; lone surrogates are control characters."""
    if text.isascii():
        return np.frombuffer(text.encode().translate(ascii_classes() + bytes(128)), np.uint8)
    return class_table()[np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)]


def find_word_starts(classes: np.ndarray) -> np.ndarray:
    """Mark the characters at which a word starts, (characters,) bool.

    A word is a run of letters, marks and digits; every symbol and every Han character is a word of its own
    (Chinese has no spaces; a longer unit would need a dictionary).
    """
    inside = classes >= DIGIT
    continues = np.zeros_like(inside)
    continues[1:] = inside[1:] & inside[:-1] & ((classes[:-1] != HAN) | (classes[1:] == MARK)) & (classes[1:] != HAN)
    return (classes != SPACE) & ~continues
