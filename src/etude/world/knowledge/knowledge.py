"""The graph of the world, and what can be asked of who knows it.

    knowledge = Knowledge(World(0, "ko"))
    knowledge.graph()                          # facts of the town and of its district, labels in the world's language
    knowledge.typing("test", 500)              # types that no text tells, of entities that no training example has
    knowledge.paths("train", 2000)             # two-hop questions, with the facts that answer them
    knowledge.anchored(17)                     # a document and the links of its mentions

Some facts that follow from others are held out (valid, test): families from the other side, citizens from where they
live, types from other facts. Everything is a function of the seed and the language.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from etude.chance import fold
from etude.graph.graph import Graph
from etude.world.draw import Draw
from etude.world.facts import Triple
from etude.world.knowledge.district import District, district
from etude.world.knowledge.paths import make_paths
from etude.world.knowledge.sentences import PATTERNS, Link, disturb, draw_cast, write_linked
from etude.world.knowledge.typing import SPLITS as TYPING_SPLITS
from etude.world.knowledge.typing import make_typing
from etude.world.words import Word
from etude.world.world import World, check_size, write_aside

SPLITS = ("train", "valid", "test")
# relations whose facts follow from others: one fact in so many is in valid, and one in test
INFERABLE = {"mother": 8, "father": 8, "daughter": 8, "son": 8, "brother": 8, "sister": 8, "citizen_of": 8}
INFERABLE |= {"instance_of": 24}
_SENTENCES = (3, 6)  # of a document about the district
Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class LinkedDocument:
    """A text and its links, in order."""

    text: str
    links: list[Link]

    @property
    def wiki(self) -> str:
        """The text with wiki links, for `etude prepare --anchors wiki`."""
        pieces, place = [], 0
        for link in self.links:
            pieces += [self.text[place : link.start], f"[[{link.entity}|{self.text[link.start : link.end]}]]"]
            place = link.end
        return "".join([*pieces, self.text[place:]])


class Knowledge:
    """The knowledge of one world."""

    def __init__(self, world: World) -> None:
        self.world, self.language = world, world.language
        self.district: District = district(world.seed)

    @cached_property
    def triples(self) -> dict[str, list[Triple]]:
        """The facts by split."""
        splits: dict[str, list[Triple]] = {split: [] for split in SPLITS}
        for fact in [*self.world.facts(), *self.district.facts()]:
            share = INFERABLE.get(fact.relation)
            draw = 2 if share is None else fold(self.world.seed, "held out", *fact) % share
            splits[SPLITS[1 + draw] if draw < 2 else "train"].append(fact)
        return splits

    @cached_property
    def words(self) -> dict[str, Word]:
        """Every entity by its key: of the town, of the district, then types."""
        town = self.world.town
        words = {word.key: word for word in town.beings}
        for word in town.beings:
            words |= {tail.key: tail for tail in word.links.values() if tail.key in town.keys}
        words |= {word.key: word for word in self.district.entities}
        return words | {word.key: word for word in self.district.types.values()}

    def label(self, key: str) -> str:
        """Return the label of an entity in the world's language."""
        return _names(self.words[key], self.language)[0]

    def aliases(self, key: str) -> list[str]:
        """Return its other names: without the family's, in the plural, in the other language."""
        word = self.words[key]
        other = "ko" if self.language == "en" else "en"
        names = [*_names(word, self.language), *_names(word, other)]
        return list(dict.fromkeys(name for name in names if name != self.label(key)))

    def graph(self) -> Graph:
        """Build the graph in memory: the same arrays that `etude prepare --graph` makes of the files."""
        facts = self.triples
        ends = {end for split in SPLITS for fact in facts[split] for end in (fact.head, fact.tail)}
        entities = sorted(ends)
        relations = sorted({fact.relation for split in SPLITS for fact in facts[split]})
        entity_ids = {key: number for number, key in enumerate(entities)}
        relation_ids = {relation: number for number, relation in enumerate(relations)}
        ids = {}
        for split in SPLITS:
            numbered = [(entity_ids[head], relation_ids[name], entity_ids[tail]) for head, name, tail in facts[split]]
            ids[split] = sorted(numbered, key=lambda triple: (triple[0], triple[2], triple[1]))
        return Graph.from_triples(
            ids["train"], entities, relations, valid=ids["valid"], test=ids["test"],
            labels=[self.label(key) for key in entities], aliases=[self.aliases(key) for key in entities],
        )  # fmt: skip

    def typing(self, split: str, count: int) -> list[dict[str, Any]]:
        """Return examples of entity typing (typing.py)."""
        return list(islice(make_typing(self.world.town, self.district, self.language, split), count))

    def paths(self, split: str, count: int) -> list[dict[str, Any]]:
        """Return two-hop questions (paths.py)."""
        held_out = frozenset(fact for name in ("valid", "test") for fact in self.triples[name])
        return list(islice(make_paths(self.district, held_out, self.language, split), count))

    def anchored(self, number: int, noise: float = 0.0) -> LinkedDocument:
        """Return a document with links: even numbers are of the town, odd ones of the district."""
        if number % 2 == 0:
            document = self.world.document(number // 2)
            links = [
                Link(mention.start, mention.end, mention.entity)
                for mention in document.mentions
                if mention.entity in self.world.town.keys and not mention.pronoun
            ]
            text = document.text
        else:
            text, links = self._district_document(Draw(fold(self.world.seed, "district document", number)))
        links = disturb(links, self.district, noise, fold(self.world.seed, "anchors", number))
        return LinkedDocument(text, links)

    def _district_document(self, draw: Draw) -> tuple[str, list[Link]]:
        text, links = "", []
        for _ in range(_SENTENCES[0] + draw.below(_SENTENCES[1] - _SENTENCES[0] + 1)):
            pattern = draw.pick(PATTERNS)[self.language]
            sentence, sentence_links = write_linked(
                pattern, draw_cast(draw, pattern, self.world.town, self.district, None)
            )
            place = len(text) + bool(text)
            text = f"{text} {sentence}" if text else sentence
            links += [Link(link.start + place, link.end + place, link.entity) for link in sentence_links.values()]
        return text, sorted(links, key=lambda link: link.start)

    def anchored_text(self, megabytes: float, noise: float = 0.0) -> Iterator[str]:
        """Yield documents with wiki links until their text reaches the size (UTF-8, markup not counted)."""
        left, number = check_size(megabytes) * 1_000_000, 0
        while left > 0:
            document = self.anchored(number, noise)
            yield document.wiki
            left -= len(document.text.encode()) + 2
            number += 1

    def write_graph(self, folder: Path) -> None:
        """Write train.tsv, valid.tsv, test.tsv and labels.jsonl for `etude prepare --graph`."""
        for split in SPLITS:
            write_lines(folder / f"{split}.tsv", ("\t".join(fact) for fact in self.triples[split]))
        ends = {end for split in SPLITS for fact in self.triples[split] for end in (fact.head, fact.tail)}
        rows = ({"id": key, "label": self.label(key), "aliases": self.aliases(key)} for key in sorted(ends))
        write_lines(folder / "labels.jsonl", (json.dumps(row, ensure_ascii=False) for row in rows))

    def write_tasks(self, folder: Path, counts: Mapping[str, int], progress: Progress) -> None:
        """Write typing.<split>.jsonl and paths.<split>.jsonl; `counts` are the examples of a split."""
        parts = [("typing", split) for split in TYPING_SPLITS] + [("paths", split) for split in SPLITS]
        for number, (name, split) in enumerate(parts):
            progress(f"{name}, {split}", number / len(parts))
            count = counts["test" if split == "seen" else split]
            examples = self.typing(split, count) if name == "typing" else self.paths(split, count)
            lines = (json.dumps(example, ensure_ascii=False) for example in examples)
            write_lines(folder / f"{name}.{split}.jsonl", lines)

    def write_anchored(self, path: Path, megabytes: float, noise: float, progress: Progress) -> None:
        """Write text with wiki links, a blank line between documents."""

        def documents() -> Iterator[str]:
            written = 0.0
            for number, text in enumerate(self.anchored_text(megabytes, noise)):
                written += len(text.encode())
                if number % 500 == 0:
                    progress("anchored text", min(1.0, written / (megabytes * 1_000_000)))
                yield f"\n{text}" if number else text

        write_lines(path, documents())


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a file that appears whole or not at all."""
    with write_aside(path) as file:
        for line in lines:
            file.write(line + "\n")


def _names(word: Word, language: str) -> list[str]:
    """Return the names of a word in a language, the full one first."""
    forms = word.forms[language]
    names = [forms["~"], forms[""]]
    if language == "en" and word.tag == "NOUN" and not word.ner and word.category != "type":
        names.append(forms["s"])
    return list(dict.fromkeys(names))
