"""A document: one performance of one script, written in one language."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from etude.chance import fold
from etude.world.draw import Draw
from etude.world.facts import Town
from etude.world.script import Performance, perform
from etude.world.stories import INTROS, SCRIPTS

_WEIGHTS = list(accumulate(script.weight for script in SCRIPTS))


@dataclass
class Document:
    number: int
    language: str
    show: Performance

    @property
    def topic(self) -> str:
        """The topic of a story; empty for portraits and opinions."""
        return self.show.script.topic

    @cached_property
    def sentences(self) -> list[str]:
        return [sentence.write(self.language) for sentence in self.show.sentences]

    @cached_property
    def text(self) -> str:
        return " ".join(self.sentences)


def make_document(town: Town, language: str, number: int) -> Document:
    """Document `number` of a town: a pure function, the same whoever asks and whatever came before."""
    draw = Draw(fold(town.seed, "document", number))
    script = SCRIPTS[bisect_right(_WEIGHTS, draw.below(1 << 20) / (1 << 20) * _WEIGHTS[-1])]
    return Document(number, language, perform(script, town, draw, INTROS))
