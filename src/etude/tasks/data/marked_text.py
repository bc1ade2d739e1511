"""Signs around entities in a text, and where the characters of the text went.

White space is collapsed around the signs and everywhere else, so that every tokenizer reads one space between words;
mentions of other entities move along.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from etude.graph.entity_links import NamedMention


class Sign(NamedTuple):
    place: int  # before this character
    text: str


def insert_signs(text: str, signs: Sequence[Sign]) -> str:
    """The text with the signs in it, one space around each and between words."""
    pieces, place = [], 0
    for sign in sorted(signs, key=lambda sign: sign.place):
        pieces += [text[place : sign.place], f" {sign.text} "]
        place = sign.place
    return " ".join("".join([*pieces, text[place:]]).split())


def move_mentions(text: str, signs: Sequence[Sign], mentions: Sequence[NamedMention]) -> list[NamedMention]:
    """The mentions of a text where they stand once the signs are in it (`insert_signs`)."""
    moved = []
    for mention in mentions:
        start, end = mention.start, mention.end
        while start < end and text[start].isspace():
            start += 1
        while end > start and text[end - 1].isspace():
            end -= 1
        if start == end:
            continue
        # up to its first and its last character; a sign at the end of the mention stands behind it
        first = len(insert_signs(text[: start + 1], [sign for sign in signs if sign.place <= start])) - 1
        last = len(insert_signs(text[:end], [sign for sign in signs if sign.place < end]))
        moved.append(NamedMention(first, last, mention.name))
    return moved
