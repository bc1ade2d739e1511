"""The world: a small invented town that writes as much text about itself as one asks for.

    world = World(seed=0, language="ko")
    world.document(17).text          # a pure function of (seed, language, 17)
    for document in world.documents(start=1000): ...
    world.write("data/town", megabytes=5)
    world.task("topic", "train", 200)
    world.facts()

The same number is the same content in both languages.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from etude.errors import UserError, nearest
from etude.world.document import Document, make_document
from etude.world.facts import Entity, Triple, town
from etude.world.tasks import SPLITS, TASKS, make_task

LANGUAGES = ("en", "ko")
COUNTS = {"train": 2000, "valid": 500, "test": 500}  # examples of each task that `write` leaves


class World:
    def __init__(self, seed: int = 0, language: str = "en") -> None:
        if language not in LANGUAGES:
            raise UserError(f"The world speaks en and ko, not '{language}'.{nearest(language, LANGUAGES)}")
        self.seed, self.language = seed, language
        self.town = town(seed)

    def document(self, number: int) -> Document:
        return make_document(self.town, self.language, number)

    def documents(self, start: int = 0) -> Iterator[Document]:
        """All documents from `start` on; there is no last one."""
        number = start
        while True:
            yield self.document(number)
            number += 1

    def text(self, megabytes: float, start: int = 0) -> Iterator[str]:
        """The texts of the first documents that together reach the size (UTF-8, blank lines counted)."""
        left = megabytes * 1_000_000
        for document in self.documents(start):
            yield document.text
            left -= len(document.text.encode()) + 2
            if left <= 0:
                return

    def task(self, name: str, split: str, count: int) -> list[dict[str, Any]]:
        """Labelled examples. The first n of a larger count are the n of a smaller one."""
        return make_task(self.town, self.language, name, split, count)

    def facts(self) -> list[Triple]:
        return self.town.facts()

    def entities(self) -> list[Entity]:
        """Everything the facts speak of, with its name in this world's language."""
        return self.town.entities(self.language)

    def write(self, folder: str | Path, megabytes: float, tasks: bool = True) -> Path:
        """text.txt with a blank line between documents; tasks/<task>.<split>.jsonl; the facts as tab-separated
        knowledge/facts.tsv (head, relation, tail) and knowledge/entities.tsv (key, label, kind)."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "text.txt", "w", encoding="utf-8", newline="\n") as out:
            for number, text in enumerate(self.text(megabytes)):
                out.write(f"\n{text}\n" if number else f"{text}\n")
        if tasks:
            (folder / "tasks").mkdir(exist_ok=True)
        for name in TASKS if tasks else ():
            for split in SPLITS:
                write_lines(folder / "tasks" / f"{name}.{split}.jsonl", self.task(name, split, COUNTS[split]))
        knowledge = folder / "knowledge"
        knowledge.mkdir(exist_ok=True)
        write_table(knowledge / "facts.tsv", self.facts())
        write_table(knowledge / "entities.tsv", self.entities())
        return folder


def write_table(path: Path, rows: Iterable[tuple[str, ...]]) -> None:
    with open(path, "w", encoding="utf-8", newline="\n") as out:
        for row in rows:
            out.write("\t".join(row) + "\n")


def write_lines(path: Path, examples: list[dict[str, Any]]) -> None:
    with open(path, "w", encoding="utf-8", newline="\n") as out:
        for example in examples:
            out.write(json.dumps(example, ensure_ascii=False) + "\n")
