"""Anchors: mentions that a text brings along. Their markup is removed, and their places stay.

    wiki       links of wiki markup in the text, [[Title]], [[Title|text]], [[bus]]es; files and categories are dropped
    ernie      records of ERNIE's files: {"sentences": [{"wordpieces": [...], "qid": [...]}]}
    entities   records with a field `entities` beside the text: a list of [start, end, name or number]

Names are resolved by whoever knows the graph (text/prepare/linking.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from etude.errors import UserError
from etude.text.tokenizer.normalization import normalize_nfc

FORMATS = ("wiki", "ernie", "entities")
FIELDS = {"ernie": "sentences", "entities": "entities"}  # of a record, that anchors are read from
BRACKETS = re.compile(r"(\[\[|\]\])")
TRAIL = re.compile(r"[a-zß-öø-ÿ]+")  # letters behind a link that belong to it; Korean particles do not
WIKI_LINK = re.compile(r"\[\[(?!\s)[^\[\]\n]+\]\]")
DROPPED = re.compile(r"\s*(?:file|image|category|media|파일|그림|분류|미디어)\s*:", re.IGNORECASE)


class Anchor(NamedTuple):
    """A span of characters and what it names: the name of an entity, or its number."""

    start: int
    end: int
    name: str | int


@dataclass
class AnchoredText:
    """A text and the anchors in it, in order, none overlapping another."""

    text: str
    anchors: list[Anchor] = field(default_factory=list)

    def normalise(self) -> AnchoredText:
        """Return it in NFC, with the anchors at the same characters."""
        text = normalize_nfc(self.text)
        if text == self.text:
            return self
        moved: dict[int, int] = {}
        start = length = 0  # of the text before a space, with which no character before it is composed
        for place in sorted({place for anchor in self.anchors for place in anchor[:2]}):
            space = self.text.rfind(" ", start, place)
            if space > start:
                length += len(normalize_nfc(self.text[start:space]))
                start = space
            # a place inside a character that is composed of several moves to its end
            moved[place] = length + len(normalize_nfc(self.text[start:place]))
        return AnchoredText(text, [Anchor(moved[start], moved[end], name) for start, end, name in self.anchors])

    def slice(self, start: int, end: int) -> AnchoredText:
        """Return a part of it, with the anchors that are inside."""
        inside = [Anchor(a - start, b - start, name) for a, b, name in self.anchors if start <= a and b <= end]
        return AnchoredText(self.text[start:end], inside)

    def strip(self) -> AnchoredText:
        """Return it without white space at its ends."""
        start = len(self.text) - len(self.text.lstrip())
        return self.slice(start, max(start, len(self.text.rstrip())))


class _Builder:
    """A text that grows piece by piece: pieces are joined once, so that time does not grow with their square."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.length = 0
        self.anchors: list[Anchor] = []

    def add(self, piece: str) -> None:
        self.pieces.append(piece)
        self.length += len(piece)

    def extend(self, rest: _Builder) -> None:
        self.anchors += [Anchor(self.length + start, self.length + end, name) for start, end, name in rest.anchors]
        self.pieces += rest.pieces
        self.length += rest.length

    def build(self) -> AnchoredText:
        return AnchoredText("".join(self.pieces), self.anchors)


def count_wiki_links(texts: Sequence[str]) -> int:
    """Count the wiki links that texts still hold, innermost ones of nested links alone."""
    return sum(len(WIKI_LINK.findall(text)) for text in texts if "[[" in text)


def remove_wiki_links(text: str) -> AnchoredText:
    """Return a text without its wiki links, and the links as anchors. Brackets without a partner stay."""
    if "[[" not in text:
        return AnchoredText(text)
    frames = [_Builder()]  # the text itself, and the links that are open
    after_link = False
    for piece in BRACKETS.split(text):
        if piece == "[[":
            frames.append(_Builder())
        elif piece == "]]" and len(frames) > 1:
            link = frames.pop()
            _add_link(frames[-1], "".join(link.pieces))
        else:
            frame = frames[-1]
            trail = (
                TRAIL.match(piece) if after_link and frame.anchors and frame.anchors[-1].end == frame.length else None
            )
            if trail is not None:
                last = frame.anchors[-1]
                frame.anchors[-1] = Anchor(last.start, last.end + trail.end(), last.name)
            frame.add(piece)
        after_link = piece == "]]" or (after_link and not piece)
    for link in frames[1:]:  # never closed
        frames[0].add("[[")
        frames[0].extend(link)
    return frames[0].build()


def _add_link(frame: _Builder, link: str) -> None:
    target, bar, label = link.partition("|")
    if DROPPED.match(target):
        return
    label = label.rpartition("|")[2].strip() if bar else ""
    label = label or target.strip().lstrip(":")
    name = target.partition("#")[0].strip().lstrip(":").strip()
    start = frame.length
    frame.add(label)
    if name and label:
        frame.anchors.append(Anchor(start, frame.length, name))


def read_ernie_record(record: Mapping[str, object], place: str) -> AnchoredText:
    """Return the text of a record of ERNIE's files: a line a sentence, words parted by spaces.

    Its word pieces are joined to words; a word has the entity of its first piece that has one, and words in a row with
    the same entity are one mention.
    """
    result = AnchoredText("")
    sentences = record.get("sentences")
    if not isinstance(sentences, list):
        raise UserError(f"{place}: no list of 'sentences' as in ERNIE's files (--anchors ernie).")
    for sentence in sentences:
        pieces, ids = _get_lists(sentence, place)
        if result.text and pieces:
            result.text += "\n"
        words: list[tuple[str, str | None]] = []
        for piece, entity in zip(pieces, ids, strict=True):
            if piece.startswith("##") and words:
                words[-1] = (words[-1][0] + piece[2:], words[-1][1] or entity)
            else:
                words.append((piece, entity))
        before: str | None = None
        for number, (word, entity) in enumerate(words):
            if number:
                result.text += " "
            start = len(result.text)
            result.text += word
            if entity is not None and entity == before:
                result.anchors[-1] = result.anchors[-1]._replace(end=len(result.text))
            elif entity is not None:
                result.anchors.append(Anchor(start, len(result.text), entity))
            before = entity
    return result


def _get_lists(sentence: object, place: str) -> tuple[list[str], list[str | None]]:
    if isinstance(sentence, dict):
        pieces, ids = sentence.get("wordpieces"), sentence.get("qid")
        if isinstance(pieces, list) and isinstance(ids, list) and len(pieces) == len(ids):
            texts = all(isinstance(piece, str) for piece in pieces)
            if texts and all(entity is None or isinstance(entity, str) for entity in ids):
                return pieces, ids
    raise UserError(f"{place}: a sentence needs 'wordpieces' and 'qid', lists of the same length (--anchors ernie).")


def read_entities(record: Mapping[str, object], text: str, place: str, column: str = "entities") -> AnchoredText:
    """Return a text with the anchors of a record's column: a list of [start, end, name or number].

    Places are characters of the text as it stands in the record, before any normalization.
    """
    anchors: list[Anchor] = []
    rows = record.get(column)
    if not isinstance(rows, Sequence) or isinstance(rows, str):
        raise UserError(f"{place}: '{column}' is not a list of [start, end, entity].")
    for row in rows:
        values = list(row) if isinstance(row, Sequence) and not isinstance(row, str) else []
        if len(values) != 3 or not all(type(value) is int for value in values[:2]) or type(values[2]) not in (str, int):
            raise UserError(f"{place}: '{column}' has {row!r:.60}, not [start, end, entity].")
        anchor = Anchor(*values)
        if not 0 <= anchor.start < anchor.end <= len(text):
            raise UserError(f"{place}: '{column}' has {row!r:.60}, outside of a text of {len(text)} characters.")
        anchors.append(anchor)
    anchors.sort(key=lambda anchor: (anchor.start, -anchor.end))
    for left, right in pairwise(anchors):
        if right.start < left.end:
            raise UserError(f"{place}: '{column}' has mentions that overlap: {list(left)} and {list(right)}.")
    return AnchoredText(text, anchors)
