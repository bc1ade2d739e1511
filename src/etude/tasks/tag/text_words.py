"""The words of plain text with their offsets, as taggers' files have them: punctuation and clitics stand apart.

    "Conrad's mill isn't in Germany."  ->  Conrad 's mill is n't in Germany .

Punctuation at the edges of what spaces separate is cut off, in any script; abbreviations (Mr., U.S.), numbers (3.14),
addresses, @names and #tags stay whole. English contractions are split as in the Penn Treebank. A Korean word keeps its
particles, as in the files of Korean taggers. Offsets are of the text as it was given.

Nothing of this package is imported here: an exported baseline holds a copy of this file.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Any, NamedTuple

ABBREVIATIONS = re.compile(
    r"(?i)(?:mr|mrs|ms|dr|prof|st|jr|sr|vs|etc|no|inc|ltd|co|corp|gen|gov|sen|rep|lt|col|sgt|capt|rev|hon|fig|al|dept|"
    r"jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec|a\.m|p\.m|e\.g|i\.e|cf)"
)
CLITIC = re.compile(r"(?i)(?<=[^\W\d_])(n['’]t|['’](?:s|re|ve|ll|d|m))$")
WHOLE = re.compile(
    r"(?i)(?:https?://|www\.)\S*[\w/]|[\w.+-]+@[\w-]+\.[\w.-]*\w|[@#]\w+|(?:[^\W\d_]\.){2,}|[:;=]-?[()DPp]"
)


class TextWord(NamedTuple):
    """A word and where it stands in its text."""

    word: str
    start: int
    stop: int


def split_text(text: str) -> list[TextWord]:
    """Return the words of a text in order."""
    return [TextWord(text[start:stop], start, stop) for start, stop in _word_spans(text)]


def add_offsets(answer: dict[str, Any], text: str) -> None:
    """Say where words and entities stand in the text they were read from; an entity's text is as it stands there."""
    words = split_text(text)
    answer["offsets"] = [[word.start, word.stop] for word in words]
    for entity in answer.get("entities", ()):
        first, last = words[entity["start"]], words[entity["end"] - 1]
        entity |= {"char_start": first.start, "char_end": last.stop, "text": text[first.start : last.stop]}


def _word_spans(text: str) -> Iterator[tuple[int, int]]:
    for chunk in re.finditer(r"\S+", text):
        start, stop = chunk.span()
        behind: list[tuple[int, int]] = []
        while start < stop and not WHOLE.match(text, start, stop) and _is_punctuation(text[start]):
            width = _run(text, start, stop)
            yield start, start + width
            start += width
        while start < stop and _ends_with_punctuation(text, start, stop):
            width = 3 if text[start:stop].endswith("...") else 1
            behind.insert(0, (stop - width, stop))
            stop -= width
        if start < stop:
            clitic = None if WHOLE.fullmatch(text, start, stop) else CLITIC.search(text[start:stop])
            if clitic is not None and clitic.start() > 0:
                behind.insert(0, (start + clitic.start(), stop))
                stop = start + clitic.start()
            if text[start:stop].lower() == "cannot":
                behind.insert(0, (stop - 3, stop))
                stop -= 3
            yield start, stop
        yield from behind


def _run(text: str, start: int, stop: int) -> int:
    """Return the width of the punctuation at `start`: an ellipsis is one word."""
    return 3 if text.startswith("...", start, stop) else 1


def _is_punctuation(letter: str) -> bool:
    return unicodedata.category(letter)[0] == "P" or unicodedata.category(letter) == "Sc" or letter in "<>=|~^`"


def _ends_with_punctuation(text: str, start: int, stop: int) -> bool:
    if not (_is_punctuation(text[stop - 1]) or text[stop - 1] == "%"):
        return False
    word = text[start:stop]
    if WHOLE.fullmatch(text, start, stop):
        return False
    if word.endswith(".") and not word.endswith(".."):
        stem = word[:-1]
        # the rest of a long text is looked at where that decides alone
        is_initial = len(stem) == 1 and stem.isupper() and bool(text[stop:].strip())
        return not (ABBREVIATIONS.fullmatch(stem) or is_initial)
    return True
