"""The district around the town: 1,200 people, places, organizations and animals that no story tells of.

What each of them is stands in the graph alone: their names are invented, and no text says it (knowledge/sentences.py).
The facts have the shapes that models of graphs are tested by: types (many heads, few tails), a composition (whoever
lives in a village of a region is a citizen of it), a symmetric relation (friends), chains of two facts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache

import numpy as np

from etude.chance import Permutation, fold
from etude.world.facts import Triple
from etude.world.knowledge.district_names import make_names
from etude.world.words import Word

# coarse type | fine types of it
_TYPES = """person 인물 | musician 음악가, teacher 교사, farmer 농부, doctor 의사
place 장소 | river 강, mountain 산, island 섬, village 마을
organization 기관 | orchestra 악단, school 학교, farm 농장, hospital 병원
animal 동물 | horse 말, dog 개, owl 부엉이, goat 염소"""
EACH = 75  # entities of a fine type
REGIONS = 12
WORKPLACES = {"musician": "orchestra", "teacher": "school", "farmer": "farm", "doctor": "hospital"}


def _type(text: str) -> Word:
    english, korean = text.split()
    return Word(english, korean, "type", key=f"type:{english}")


class District:
    """The entities of one seed, with what they are and the facts among them."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.types: dict[str, Word] = {}  # by English name, coarse and fine
        self.coarse: dict[str, str] = {}  # fine type -> coarse type
        self.members: dict[str, list[Word]] = {}  # by type, coarse and fine
        for line in _TYPES.split("\n"):
            head, _, rest = line.partition("|")
            coarse = _type(head.strip())
            fine_types = [_type(entry.strip()) for entry in rest.split(",")]
            self.types |= {word.english: word for word in (coarse, *fine_types)}
            self.coarse |= {word.english: coarse.english for word in fine_types}
        names = make_names(seed, EACH * len(self.coarse) + REGIONS, "district")
        self.regions = [names.pop() for _ in range(REGIONS)]
        for number, fine in enumerate(self.coarse):
            members = names[number * EACH : (number + 1) * EACH]
            for word in members:
                word.links["instance_of"] = self.types[fine]
            self.members[fine] = members
            self.members.setdefault(self.coarse[fine], []).extend(members)
        self._link()

    def _link(self) -> None:
        people, places, villages = self.members["person"], self.members["place"], self.members["village"]
        self._spread(places, "in_region", self.regions)
        for region in self.regions:
            inside = [place for place in places if place.links["in_region"] is region]
            for place, neighbour in zip(inside, [*inside[1:], inside[0]], strict=True):
                place.links["near"] = neighbour
        self._spread(self.members["organization"], "based_in", villages)
        for profession, workplace in WORKPLACES.items():
            self._spread(self.members[profession], "works_for", self.members[workplace])
            self._spread(self.members[workplace], "led_by", self.members[profession])
        self._spread(people, "lives_in", villages)
        for person in people:
            person.links["citizen_of"] = person.links["lives_in"].links["in_region"]
        paired = self._shuffle(people, "friends")
        for left, right in zip(paired[::2], paired[1::2], strict=True):
            left.links["friend_of"], right.links["friend_of"] = right, left
        self._spread(self.members["animal"], "owner", people)
        self._spread(self.members["animal"], "born_in", villages)

    def _shuffle(self, words: Sequence[Word], purpose: str) -> list[Word]:
        order = Permutation(len(words), fold(self.seed, "district", purpose))(np.arange(len(words)))
        return [words[place] for place in order.tolist()]

    def _spread(self, heads: Sequence[Word], relation: str, tails: Sequence[Word]) -> None:
        """Give every head one tail, each tail about equally often."""
        ordered = self._shuffle(tails, f"{relation} tails {tails[0].key}")
        for number, head in enumerate(self._shuffle(heads, f"{relation} heads {heads[0].key}")):
            head.links[relation] = ordered[number % len(ordered)]

    @cached_property
    def entities(self) -> list[Word]:
        """Everything with an invented name: those with a type, then the regions."""
        return [word for fine in self.coarse for word in self.members[fine]] + self.regions

    def types_of(self, word: Word) -> list[str]:
        """Return the coarse and the fine type of an entity."""
        fine = word.links["instance_of"].english
        return [self.coarse[fine], fine]

    def facts(self) -> list[Triple]:
        """All facts, those on types first."""
        triples = [
            Triple(self.types[fine].key, "subclass_of", self.types[coarse].key) for fine, coarse in self.coarse.items()
        ]
        for word in self.entities:
            triples += [Triple(word.key, relation, tail.key) for relation, tail in sorted(word.links.items())]
        return triples


@lru_cache(maxsize=4)
def district(seed: int) -> District:
    """Return the district of a seed, made once."""
    return District(seed)
