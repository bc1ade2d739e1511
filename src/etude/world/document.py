"""A document: one performance of one script, written in one language."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from etude.chance import fold
from etude.world.analysis import Analysis, Mention, analyse
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

    @property
    def mood(self) -> int:
        """+1 or -1 where somebody praises or blames something, else 0."""
        return self.show.mood if "*" in self.show.script.cast else 0

    @cached_property
    def sentences(self) -> list[str]:
        return [sentence.write(self.language) for sentence in self.show.sentences]

    @cached_property
    def text(self) -> str:
        return " ".join(self.sentences)

    @cached_property
    def analyses(self) -> list[Analysis]:
        """Words, tags and mentions, sentence by sentence."""
        return [analyse(sentence, self.language) for sentence in self.show.sentences]

    @cached_property
    def mentions(self) -> list[Mention]:
        """Everybody and everything named in the text, at its place in the whole text."""
        mentions, place = [], 0
        for analysis in self.analyses:
            mentions += [mention.shift(place) for mention in analysis.mentions]
            place += len(analysis.text) + 1
        return mentions


def perform_document(town: Town, draw: Draw) -> Performance:
    """Any script, by weight."""
    script = SCRIPTS[bisect_right(_WEIGHTS, draw.below(1 << 20) / (1 << 20) * _WEIGHTS[-1])]
    return perform(script, town, draw, INTROS)


def make_document(town: Town, language: str, number: int) -> Document:
    """Document `number` of a town: a pure function, the same whoever asks and whatever came before."""
    return Document(number, language, perform_document(town, Draw(fold(town.seed, "document", number))))
