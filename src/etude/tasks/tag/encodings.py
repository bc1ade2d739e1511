"""Chunks written as tags: IOB1, IOB2 (BIO) and IOBES; from tags to spans and back, and what may follow what.

    IOB1    I-x for every word of a chunk; B-x only where a chunk directly follows one of its own type (the files of
            CoNLL-2003; Ramshaw & Marcus 1995)
    IOB2    B-x for the first word of a chunk, I-x for the others
    IOBES   S-x for a chunk of one word; else B-x first, E-x last, I-x between

Real tags break these rules, so there are two ways to read spans from them. The lenient one is that of the shared
tasks' script conlleval (and of seqeval by default): whatever looks like a new chunk opens one, an I-x after O too. The
strict one takes only what a scheme allows (seqeval's strict mode; KLUE scores with it).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np

from etude.nn.crf import AllowedTransitions

Scheme = Literal["iob1", "iob2", "iobes"]
PREFIXES: dict[Scheme, str] = {"iob1": "OIB", "iob2": "OBI", "iobes": "OBIES"}


class Span(NamedTuple):
    kind: str
    start: int
    stop: int  # one behind the last word


class Tag(NamedTuple):
    prefix: str  # O B I E S
    kind: str  # "" of O, "_" where chunks have no types


OUTSIDE = Tag("O", "")


@lru_cache(maxsize=65_536)
def parse_tag(tag: str) -> Tag:
    """The two parts of a tag; ValueError where it has another shape."""
    if tag == "O":
        return OUTSIDE
    if tag in ("B", "I", "E", "S"):
        return Tag(tag, "_")
    if len(tag) > 2 and tag[0] in "BIES" and tag[1] == "-":
        return Tag(tag[0], tag[2:])
    raise ValueError(f"'{tag}' is no tag of a chunk: those are O, or B, I, E or S with a type, as B-PER")


def write(prefix: str, kind: str) -> str:
    return prefix if prefix == "O" or kind == "_" else f"{prefix}-{kind}"


# --- tags to spans ----------------------------------------------------------------------------------


def spans(tags: Sequence[str], strict: Scheme | None = None) -> list[Span]:
    """The chunks of a sentence, leniently unless a scheme is named whose rules must hold."""
    parsed = [parse_tag(tag) for tag in tags]
    return _lenient(parsed) if strict is None else _strict(parsed, strict)


def _lenient(tags: list[Tag]) -> list[Span]:
    chunks: list[Span] = []
    start, before = 0, OUTSIDE
    for place, tag in enumerate([*tags, OUTSIDE]):
        differs = tag.kind != before.kind
        if before.prefix != "O" and (before.prefix in "ES" or tag.prefix in "BSO" or differs):
            chunks.append(Span(before.kind, start, place))
        if tag.prefix != "O" and (tag.prefix in "BS" or before.prefix in "OES" or differs):
            start = place
        before = tag
    return chunks


def _strict(tags: list[Tag], scheme: Scheme) -> list[Span]:
    for tag in tags:
        if tag.prefix not in PREFIXES[scheme]:
            raise ValueError(f"'{write(*tag)}' has no place in {scheme}, whose prefixes are {PREFIXES[scheme]}")
    padded = [OUTSIDE, *tags, OUTSIDE]
    chunks, place = [], 1
    while place <= len(tags):
        if not _opens(padded[place - 1], padded[place], scheme):
            place += 1
            continue
        stop = place + 1
        while _goes_on(padded[stop - 1], padded[stop]):
            stop += 1
        if _closes(padded[stop - 1], padded[stop], scheme):
            chunks.append(Span(padded[place].kind, place - 1, stop - 1))
        place = stop
    return chunks


def _opens(before: Tag, tag: Tag, scheme: Scheme) -> bool:
    if scheme != "iob1":
        return tag.prefix in "BS"
    same = before.kind == tag.kind
    if tag.prefix == "B":
        return before.prefix != "O" and same  # anywhere else it should have been an I
    return tag.prefix == "I" and (before.prefix != "I" or not same)


def _goes_on(before: Tag, tag: Tag) -> bool:
    return before.prefix in "BI" and tag.prefix in "IE" and before.kind == tag.kind


def _closes(last: Tag, after: Tag, scheme: Scheme) -> bool:
    if scheme == "iobes":
        return last.prefix in "ES"
    if scheme == "iob1" and last.prefix == "B" and after.prefix == "B":
        return last.kind == after.kind  # the second B follows another type, where IOB1 has no B
    return True


# --- spans to tags ----------------------------------------------------------------------------------


def encode(chunks: Iterable[Span], length: int, scheme: Scheme) -> list[str]:
    """The tags of a sentence of `length` words; chunks are in order and do not overlap."""
    tags = ["O"] * length
    before: Span | None = None
    for chunk in chunks:
        kind, start, stop = chunk
        if not (before.stop if before else 0) <= start < stop <= length:
            raise ValueError(f"{chunk} is empty, out of order or outside a sentence of {length} words")
        tags[start:stop] = [write("I", kind)] * (stop - start)
        touches = before is not None and before.stop == start and before.kind == kind
        if scheme == "iobes":
            tags[start] = write("B", kind)
            tags[stop - 1] = write("S" if stop - start == 1 else "E", kind)
        elif scheme == "iob2" or touches:
            tags[start] = write("B", kind)
        before = chunk
    return tags


def convert(tags: Sequence[str], scheme: Scheme) -> list[str]:
    """The same chunks, leniently read, in another scheme: illegal tags become legal ones."""
    return encode(spans(tags), len(tags), scheme)


# --- rules ------------------------------------------------------------------------------------------


def may_follow(before: Tag, tag: Tag, scheme: Scheme) -> bool:
    """Whether the scheme has this pair; the start and the end of a sentence count as O."""
    same = before.kind == tag.kind
    if scheme == "iobes":
        opened = before.prefix in "BI"
        return opened == (tag.prefix in "IE") and (same or not opened)
    needs = "I" if scheme == "iob2" else "B"  # the prefix that only goes on from a chunk of its type
    return tag.prefix != needs or (before.prefix in "BI" and same)


def allowed(tags: Sequence[str], scheme: Scheme) -> AllowedTransitions:
    """The rules of a scheme over a list of tags, for a CRF."""
    parsed = [parse_tag(tag) for tag in tags]
    return AllowedTransitions(
        np.array([may_follow(OUTSIDE, tag, scheme) for tag in parsed]),
        np.array([[may_follow(before, tag, scheme) for tag in parsed] for before in parsed]),
        np.array([may_follow(tag, OUTSIDE, scheme) for tag in parsed]),
    )


def first_breach(tags: Sequence[str], scheme: Scheme) -> int | None:
    """The place of the first tag that breaks the scheme; the number of words if it is the end that does."""
    before = OUTSIDE
    for place, tag in enumerate(map(parse_tag, tags)):
        if tag.prefix not in PREFIXES[scheme] or not may_follow(before, tag, scheme):
            return place
        before = tag
    return None if may_follow(before, OUTSIDE, scheme) else len(tags)


def all_tags(kinds: Iterable[str], scheme: Scheme) -> list[str]:
    """Every tag of a scheme for some types, O first."""
    rest = PREFIXES[scheme].replace("O", "")
    return ["O", *(write(prefix, kind) for kind in sorted(set(kinds)) for prefix in sorted(rest))]


def detect(sentences: Iterable[Sequence[str]]) -> Scheme | None:
    """The scheme that sentences are written in; None where the tags are no chunks (parts of speech).

    A B at a place where IOB1 has none makes it IOB2, even if an I or two break its rules: real files do.
    """
    prefixes: set[str] = set()
    has_iob2_start = False  # as only IOB2 has it
    for tags in sentences:
        before = OUTSIDE
        for name in tags:
            try:
                tag = parse_tag(name)
            except ValueError:
                return None
            has_iob2_start = has_iob2_start or (tag.prefix == "B" and not may_follow(before, tag, "iob1"))
            prefixes.add(tag.prefix)
            before = tag
    if prefixes <= {"O"}:
        return None
    if prefixes & {"E", "S"}:
        return "iobes"
    return "iob2" if has_iob2_start else "iob1"
