"""The town: who lives where, works as what, owns which animal, keeps what where, is whose mother.

Forty families of four, drawn from the seed. A fact is one triple (head, relation, tail) and one link
`head.links[relation] = tail`; every document and every question is read off these links, so a fact is the
same wherever it is told. People, streets and firms come in a rank drawn from the seed, and the first are
spoken of most (Zipf), as in a real town.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from etude.chance import Permutation, fold, integers
from etude.world.lexicon import names
from etude.world.lexicon.nouns import ANIMALS, NOUNS
from etude.world.lexicon.trades import TRADES
from etude.world.words import Word, table


class Entity(NamedTuple):
    """Somebody or something facts speak of: its key there, its name in the world's language, what it is."""

    key: str
    label: str
    kind: str


class Missing(Exception):
    """Nobody in this town fits: somebody else has to be drawn."""


class Triple(NamedTuple):
    head: str
    relation: str
    tail: str


def _shuffled(words: list[Word], seed: int, purpose: str) -> list[Word]:
    order = Permutation(len(words), fold(seed, "town", purpose))
    return [words[int(place)] for place in order(np.arange(len(words)))]


def _spread(heads: list[Word], relation: str, tails: list[Word], seed: int) -> None:
    """Give every head one tail, each tail about equally often, in an order drawn from the seed."""
    ordered = _shuffled(tails, seed, relation)
    order = Permutation(len(heads), fold(seed, "spread", relation))(np.arange(len(heads)))
    for place, head in zip(order, heads, strict=True):
        head.links[relation] = ordered[int(place) % len(ordered)]


def _named(text: str, category: str, ner: str) -> list[Word]:
    words = table(text, category, "PROPN")
    for word in words:
        word.ner = ner
        word.key = f"{category.removesuffix(' name')}:{word.english}"  # person:Anna, pet:Biscuit
    return words


class Town:
    """All named beings of one seed, and the facts among them."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._inverse: dict[str, dict[str, list[Word]]] = {}
        self.streets = _shuffled(_named(names.STREETS, "street", "LOC"), seed, "street")
        self.villages = _shuffled(_named(names.VILLAGES, "village", "LOC"), seed, "village")
        self.firms = _shuffled(_named(names.FIRMS, "firm", "ORG"), seed, "firm")
        self.pets = _shuffled(_named(names.PETS, "pet name", "MISC"), seed, "pet")
        self.trades = _shuffled(TRADES, seed, "trade")
        self.people = self._families()
        self._places()
        self._lives()

    def _families(self) -> list[Word]:
        """Mother, father and two grown children; the family name is the father's."""
        women = _shuffled(_named(names.WOMEN, "person", "PER"), self.seed, "women")
        men = _shuffled(_named(names.MEN, "person", "PER"), self.seed, "men")
        families = _shuffled(_named(names.FAMILIES, "family", "PER"), self.seed, "family")
        for people, sex in ((women, "f"), (men, "m")):
            for person in people:
                person.sex = sex
        for number, family in enumerate(families):
            mother, daughter = women[2 * number : 2 * number + 2]
            father, son = men[2 * number : 2 * number + 2]
            mother.links["spouse"], father.links["spouse"] = father, mother
            daughter.links["brother"], son.links["sister"] = son, daughter
            for child in (daughter, son):
                child.links["mother"], child.links["father"] = mother, father
            mother.links["daughter"] = father.links["daughter"] = daughter
            mother.links["son"] = father.links["son"] = son
            for person in (mother, father, daughter, son):
                person.full = (f"{person.english} {family.english}", f"{person.korean} {family.korean}")
        people = _shuffled(women + men, self.seed, "people")
        self.women = [person for person in people if person.sex == "f"]
        self.men = [person for person in people if person.sex == "m"]
        paired = _shuffled(people, self.seed, "friends")
        for first, second in zip(paired[::2], paired[1::2], strict=True):
            first.links["friend"], second.links["friend"] = second, first
        return people

    def _places(self) -> None:
        landmarks = NOUNS["landmark"]
        _spread(self.streets, "near", landmarks, self.seed)
        _spread(self.villages, "famous", NOUNS["sight"], self.seed)
        for firm, trade in zip(self.firms, self.trades, strict=True):
            firm.links["trade"] = trade
        _spread(self.firms, "street", self.streets, self.seed)

    def _lives(self) -> None:
        people = self.people
        _spread(people, "home", self.streets, self.seed)
        for wife in self.women:
            if "spouse" in wife.links:  # couples live together; their grown children live elsewhere
                wife.links["home"] = wife.links["spouse"].links["home"]
        _spread(people, "firm", self.firms, self.seed)
        _spread(people, "village", self.villages, self.seed)
        _spread(people, "treasure", NOUNS["treasure"], self.seed)
        _spread(people, "spot", NOUNS["spot"], self.seed)
        _spread(people, "food", NOUNS["dish"], self.seed)
        _spread(people, "instrument", NOUNS["instrument"], self.seed)
        _spread(people, "flower", NOUNS["flower"], self.seed)
        for person in people:
            person.links["trade"] = person.links["firm"].links["trade"]
        for firm in self.firms:
            workers = [person for person in people if person.links["firm"] is firm]
            firm.links["owner"] = workers[
                int(integers(fold(self.seed, "owner", firm.key), np.zeros(1, np.int64), len(workers))[0])
            ]
        _spread(self.pets, "kind", NOUNS["pet"], self.seed)
        owners = _shuffled(people, self.seed, "owners")[: len(self.pets)]
        for pet, owner in zip(self.pets, owners, strict=True):
            owner.links["pet"], pet.links["owner"] = pet, owner

    def whose(self, path: str, word: Word) -> list[Word]:
        """Everybody for whom the path of facts ends at this word, in rank."""
        if path not in self._inverse:
            owners: dict[str, list[Word]] = {}
            for person in self.people:
                end: Word | None = person
                for relation in path.split("."):
                    end = end.links.get(relation) if end is not None else None
                if end is not None:
                    owners.setdefault(end.key, []).append(person)
            self._inverse[path] = owners
        if word.key not in self._inverse[path]:
            raise Missing(f"nobody has {word.key} as {path}")
        return self._inverse[path][word.key]

    @property
    def beings(self) -> list[Word]:
        """Everything facts are told of, named or common."""
        animals = [word for category in ANIMALS for word in NOUNS[category]]
        return self.people + self.pets + self.firms + self.streets + self.villages + self.trades + animals

    @cached_property
    def _links(self) -> list[tuple[Word, str, Word]]:
        return [
            (head, relation, tail)
            for head in self.beings
            for relation, tail in sorted(head.links.items())
            if tail.tag != "VERB"  # what a trade does is how it is told, not a thing one can link to
        ]

    @cached_property
    def _entities(self) -> dict[str, Word]:
        """Heads first, then what is only a tail."""
        return {word.key: word for word in self.beings} | {tail.key: tail for _, _, tail in self._links}

    @property
    def keys(self) -> frozenset[str]:
        """Every entity some fact speaks of, at either end."""
        return frozenset(self._entities)

    def facts(self) -> list[Triple]:
        return [Triple(head.key, relation, tail.key) for head, relation, tail in self._links]

    def entities(self, language: str) -> list[Entity]:
        return [Entity(word.key, word.forms[language]["~"], word.category) for word in self._entities.values()]


@lru_cache(maxsize=4)
def town(seed: int) -> Town:
    return Town(seed)
