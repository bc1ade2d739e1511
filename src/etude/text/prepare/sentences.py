"""Sentence splitting by rules for English and Korean.

Next-sentence and sentence-order objectives need the bounds. The sentences of `split_sentences` joined give the text
back. A sentence ends at a line break (unless the text is wrapped to a fixed width), at the full stops of Chinese and
Japanese, and at . ! ? … followed by white space, where the rules below find neither an abbreviation, an initial, a
number nor a clause that goes on. Korean also ends sentences without any mark: a polite ending (…습니다, …어요) before a
space is enough.
"""

from __future__ import annotations

import re
from itertools import pairwise

CLOSERS = "\"'”’»›」』】）)\\]}"
CLOSING = CLOSERS.replace("\\", "")
STOPS = ".!?…‼⁇⁈⁉"
WIDE = "。！？｡"
SYLLABLES = "다까요죠"  # the last ones of endings that need no mark
# One character with a look ahead: a lone set is what `re` scans for fastest. Of a run of marks only the last is met.
CANDIDATE = re.compile(rf"[{STOPS}{SYLLABLES}](?=[\s{CLOSERS}])")
CANDIDATE_WIDE = re.compile(rf"[{STOPS}{SYLLABLES}](?=[\s{CLOSERS}])|[{WIDE}](?![{WIDE}])")
CLOSE = re.compile(rf"[{CLOSERS}]*")


def _with_final(consonant: int) -> str:
    """Return all syllables of Hangul with this final consonant, by its number among the 28."""
    return "".join(map(chr, range(ord("가") + consonant, ord("힣") + 1, 28)))


# Endings that close a sentence whatever follows; each is matched up to its last syllable. Some are one only behind a
# final consonant: 합니다 and 합니까, but neither 다니다, 아니다 nor 하니까 ("since"); 인가요, but not 가요 ("songs").
ENDINGS = (
    f"[{_with_final(17)}]니[다까]", "세요", "셔요", "[어아여워와해져에예네군지나]요", f"[{_with_final(4)}]가요",
    f"[{_with_final(8)}]까요", "거든요", "는데요", "죠",
)  # fmt: skip
POLITE = re.compile(rf"(?:{'|'.join(ENDINGS)})\Z")
# Words after a quotation or a polite ending that carry the sentence on: "…다." 라고 말했다
CONTINUATION = re.compile(r"(?:이?라[고는며면]|하[고며는면였]|[고며는]\s|만\s)")
# the break itself first: `re` looks for a leading literal fastest
SINGLE_BREAK = re.compile(r"\n(?<!\n\n)(?!\n)")
BREAK_INSIDE = re.compile(rf"\n(?<![\s.!?…:;{CLOSERS}]\n)(?=[a-zà-öø-ÿа-я])")
DATE = re.compile(r"\d{1,4}\. \d{1,2}\. \d{1,2}\.\Z")  # as Korean writes it: 1935. 5. 15.
LONGEST_WORD = 64  # characters before a point that are looked at: more than any abbreviation or number of a list has
LIST_NUMBER = re.compile(r"[(\[]?(?:\d{1,3}|[ivxIVX]{1,4}|[a-zA-Z]|[가나다라마바사아자차카타파하])\Z")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# a name or a clause follows: never the end
TITLES = _words(
    """mr mrs ms messrs mme mlle mm dr prof rev hon st ste gen col maj capt lt sgt cpl pvt cmdr adm gov sen rep pres
    supt fr mt ft e.g i.e viz cf vs v"""
)
BEFORE_NUMBER = _words(
    "no nos nr p pp vol vols fig figs eq eqs ch chap sec art pt ed bk ca c b d r fl approx ver op cap"
)
# may stand at the end: the next word decides
MAYBE_FINAL = _words(
    """inc ltd co corp bros jr sr etc al esq dept univ assn est ave blvd rd jan feb mar apr jun jul aug sep sept oct nov
    dec mon tue wed thu fri sat sun ph.d m.d b.a m.a a.m p.m b.c a.d d.c"""
)
STARTERS = _words(
    """the a an this that these those he she it they we i you in on at by for from with as but and or so if when while
    after before there here his her its their our my your who what where why how however although though because
    since during under over between among both all some many most one two several each every no not then now also
    another according despite following until upon such"""
)
INNER_POINTS = re.compile(r"(?:[A-Za-z]\.)+[A-Za-z]\Z")
NEXT_WORD = re.compile(r"[\"'“‘«‹「『(\[{]*([^\W\d_]+)")


def find_sentence_ends(text: str) -> list[int]:
    """Return the end of each sentence, before the white space that follows it; the last is len(text)."""
    sentence_ends: list[int] = []
    candidate = CANDIDATE_WIDE if any(mark in text for mark in WIDE) else CANDIDATE
    start, length = 0, len(text)
    wrapped = "\n" in text and _is_wrapped(text)
    while start < length:
        stop = _find_line_end(text, start, wrapped)
        last = start
        for match in candidate.finditer(text, start, stop):
            place = match.end()
            mark = text[place - 1]
            if mark in SYLLABLES:
                if not _is_polite_end(text, place, last):
                    continue
            else:
                end = place
                if place < stop and text[place] in CLOSING and (close := CLOSE.match(text, place, stop)):
                    end = close.end()
                if mark not in WIDE and not _is_sentence_end(text, place, end, last, stop):
                    continue
                place = end
            if place < stop:
                sentence_ends.append(place)
                last = place
        place = stop
        while place > last and text[place - 1].isspace():
            place -= 1
        if place > last:
            sentence_ends.append(place)
        start = stop + 1
    if not sentence_ends:
        return [length] if text else []
    sentence_ends[-1] = length
    return sentence_ends


def ends_sentence(text: str, end: int, last: int, stop: int) -> bool:
    """Whether the sentence that began at `last` ends at `end`, before white space inside a line that ends at `stop`.

    For texts whose lines are not wrapped and without WIDE marks: `find_sentence_ends` decides alike (used by
    sentence_starts.py for single places).
    """
    place = end
    while place > last and text[place - 1] in CLOSING:
        place -= 1
    if place == last:
        return False
    if text[place - 1] in SYLLABLES:
        return place == end and _is_polite_end(text, place, last)
    return text[place - 1] in STOPS and _is_sentence_end(text, place, end, last, stop)


def split_sentences(text: str) -> list[str]:
    """Split a text into sentences, each with the white space after it."""
    starts = [0, *(_skip_space(text, place) for place in find_sentence_ends(text)[:-1]), len(text)]
    return [text[start:stop] for start, stop in pairwise(starts) if stop > start]


def _is_polite_end(text: str, place: int, last: int) -> bool:
    """Whether a polite ending, its last syllable before `place`, ends the sentence that began at `last`."""
    if not POLITE.search(text, max(last, place - 4), place) or text[place] in CLOSING:
        return False
    return CONTINUATION.match(text, _skip_space(text, place)) is None


def _is_sentence_end(text: str, place: int, end: int, last: int, stop: int) -> bool:
    """Whether the mark before `place` ends the sentence that began at `last`.

    Closing quotes behind the mark reach up to `end`.
    """
    after = _skip_space(text, end)
    if after >= stop:
        return False  # the line's own end
    next_char = text[after]
    if after == end or next_char.islower() or next_char in ",;:)]}":
        return False
    if end > place and CONTINUATION.match(text, after):
        return False
    point = place - 1
    if text[point] != "." or text[max(last, point - 1)] in STOPS:
        return True
    before = text[max(last, point - 7) : point]
    if len(before) == 7 and before.isalpha() and before.islower():
        return True  # a common word, longer than any abbreviation below
    first = max(last, point - LONGEST_WORD)  # a search back to `last` would take as long as the line so far
    start = max(first, text.rfind(" ", first, point) + 1, text.rfind("\n", first, point) + 1)
    word = text[start:point].lstrip("\"'“‘«‹「『【（([{")
    if not word:
        return True
    if (
        word.isdigit()
        and len(word) <= 4
        and (next_char.isdigit() or DATE.search(text, max(last, point - 14), point + 1))
    ):
        return False
    if LIST_NUMBER.match(word) and _skip_space(text, last) >= start:
        return False  # "1. ", "a. " or "가. " before an item
    lower = word.lower()
    if lower in TITLES or (lower in BEFORE_NUMBER and (next_char.isdigit() or next_char in "IVXLC")):
        return False
    initial = len(word) == 1 and word.isupper()
    if initial or lower in MAYBE_FINAL or INNER_POINTS.match(word):
        next_word = NEXT_WORD.match(text, after)
        return next_word is not None and next_word[1].lower() in STARTERS
    return True


def _is_wrapped(text: str) -> bool:
    """Whether lines are wrapped at a fixed width.

    Then most breaks are inside a sentence, before a lower-case letter.
    """
    inside = len(BREAK_INSIDE.findall(text))
    return inside >= 2 and 2 * inside >= len(SINGLE_BREAK.findall(text))


def _find_line_end(text: str, start: int, wrapped: bool) -> int:
    """Return the next line break that ends a sentence: any, or in wrapped text one before an empty line."""
    while True:
        stop = text.find("\n", start)
        if stop < 0:
            return len(text)
        following = text.find("\n", stop + 1)
        if not wrapped or (following >= 0 and not text[stop + 1 : following].strip()):
            return stop
        start = stop + 1


def _skip_space(text: str, place: int) -> int:
    while place < len(text) and text[place].isspace():
        place += 1
    return place
