"""A sentence pattern: plain text with slots.

    "{@a} gave {b} {f:a}."       ->  "She gave Tom an apple."
    "{@a:는} {b:에게} {f:를} 주었다."   ->  "그녀는 톰에게 사과를 주었다."

`{slot}` is the word itself, `{slot:form}` one of its forms (words.py), `{a.home}` a fact of the word in slot a,
and `{@a}` a person as the story needs it: whole name, given name or pronoun. `light/ADJ` gives a word of the
pattern its part of speech where the tag table would give another; the tag is not written.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from etude.world.words import Word

NAME, FULL, PRONOUN = 0, 1, 2  # how a person is spoken of

_SLOT = re.compile(r"\{(@?)([a-z0-9_.]+)(?::([^}]*))?\}")
_TAGGED = re.compile(r"([^\s/{}.,?!\"]+)/([A-Z]+)")


class Part(NamedTuple):
    literal: str  # what stands before the slot
    slot: str
    forms: tuple[str, str, str]  # by NAME, FULL, PRONOUN; three times the same where the slot is fixed


class Pattern:
    """One language's side of a frame."""

    __slots__ = ("language", "marked", "parts", "source", "tail")

    def __init__(self, source: str, language: str) -> None:
        self.source, self.language = source, language
        self.marked = dict(_TAGGED.findall(source))  # words whose tag the pattern itself gives
        plain = _TAGGED.sub(r"\1", source)
        parts, place = [], 0
        for match in _SLOT.finditer(plain):
            free, slot, form = match.group(1) == "@", match.group(2), match.group(3) or ""
            literal = plain[place : match.start()]
            if not free:
                forms = (form, form, form)
            elif language == "en":
                forms = ("", "~", "he")
            else:
                forms = (form, "~" + form, "그" + form)
            parts.append(Part(literal, slot, forms))
            place = match.end()
        self.parts = tuple(parts)
        self.tail = plain[place:]

    def write(self, cast: dict[str, Word], modes: dict[str, int]) -> str:
        pieces = []
        language = self.language
        for literal, slot, forms in self.parts:
            pieces.append(literal)
            pieces.append(cast[slot].forms[language][forms[modes.get(slot, 0)]])
        pieces.append(self.tail)
        text = "".join(pieces)
        return text[0].upper() + text[1:] if language == "en" else text

    @property
    def slots(self) -> list[str]:
        return [part.slot for part in self.parts]
