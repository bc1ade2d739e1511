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
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from etude.errors import UserError, suggest_name
from etude.world.document import Document, make_document
from etude.world.facts import Entity, Triple, town
from etude.world.tasks import SPLITS, TASKS, make_task
from etude.world.tasks.sampling import belongs

LANGUAGES = ("en", "ko")
COUNTS = {"train": 2000, "valid": 500, "test": 500}  # examples of each task that `write` leaves
_EXHAUSTED = 500  # documents in a row without a new sentence
_EVERY = 500  # documents between two reports of progress: a fraction of a second
# task -> lines of its prompt file (transfer/prompt_file.py), by language
PROMPTS: dict[str, dict[str, tuple[str, ...]]] = {
    "en": {
        "sentiment": ('template: "{text} In the end everybody was"', "answers: {positive: happy, negative: sad}"),
        "topic": ('template: "{text} Topic:"',),
    },
    "ko": {
        "sentiment": ('template: "{text} 결국 모두의 기분은"', "answers: {positive: 좋았다, negative: 나빴다}"),
        "topic": (
            'template: "{text} 주제:"',
            "answers: {food: 음식, work: 일, animals: 동물, family: 가족, market: 시장, travel: 여행, music: 음악, "
            "garden: 정원}",
        ),
    },
}
Progress = Callable[[str, float], None]  # what is being written, and the share of all work that is done


class World:
    def __init__(self, seed: int = 0, language: str = "en") -> None:
        if language not in LANGUAGES:
            raise UserError(f"The world speaks en and ko, not '{language}'.{suggest_name(language, LANGUAGES)}")
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
        left = check_size(megabytes) * 1_000_000
        for document in self.documents(start):
            yield document.text
            left -= len(document.text.encode()) + 2
            if left <= 0:
                return

    def pairs(self, count: int, start: int = 0, split: str | None = None) -> Iterator[tuple[str, str]]:
        """The first `count` different sentences from a document on, in English and in Korean: the same content.

        With `split`, of those alone that the task of translation may have in this split.
        """
        seen: set[tuple[str, str]] = set()
        number = last_new = start
        while len(seen) < count:
            if number > last_new + _EXHAUSTED:
                raise UserError(f"This town has no {count:,} different sentences; it ends at about {len(seen):,}.")
            sides = (make_document(self.town, language, number).sentences for language in LANGUAGES)
            for pair in zip(*sides, strict=True):
                if pair not in seen and len(seen) < count and (split is None or belongs(pair[0], split)):
                    seen.add(pair)
                    last_new = number
                    yield pair
            number += 1

    def write_pairs(self, path: str | Path, count: int, split: str | None = None) -> Path:
        """Tab-separated columns en and ko, for `etude prepare --pairs en,ko`."""
        _write_table(Path(path), [LANGUAGES, *self.pairs(count, split=split)])
        return Path(path)

    def task(self, name: str, split: str, count: int) -> list[dict[str, Any]]:
        """Labelled examples. The first n of a larger count are the n of a smaller one."""
        return make_task(self.town, self.language, name, split, count)

    def facts(self) -> list[Triple]:
        return self.town.facts()

    def entities(self) -> list[Entity]:
        """Everything the facts speak of, with its name in this world's language."""
        return self.town.entities(self.language)

    def write(
        self, folder: str | Path, megabytes: float, tasks: bool = True, progress: Progress = lambda part, share: None
    ) -> Path:
        """text.txt with a blank line between documents; tasks/<task>.<split>.jsonl, and some of them in words as
        prompts/<task>.yaml; the facts as tab-separated knowledge/facts.tsv (head, relation, tail) and
        knowledge/entities.tsv (key, label, kind)."""
        folder, megabytes = Path(folder), check_size(megabytes)
        parts = [(name, split) for name in TASKS for split in SPLITS] if tasks else []
        for needed in (folder, folder / "knowledge", *([folder / "tasks"] if tasks else [])):
            needed.mkdir(parents=True, exist_ok=True)
        with write_aside(folder / "text.txt") as out:
            written = 0
            for number, text in enumerate(self.text(megabytes)):
                written += len(text.encode()) + 2
                out.write(f"\n{text}\n" if number else f"{text}\n")
                if number % _EVERY == 0:
                    progress("text", written / (megabytes * 1_000_000))
        for number, (name, split) in enumerate(parts):
            progress(f"{name}, {split}", number / len(parts))
            with write_aside(folder / "tasks" / f"{name}.{split}.jsonl") as out:
                for example in self.task(name, split, COUNTS[split]):
                    out.write(json.dumps(example, ensure_ascii=False) + "\n")
        if tasks:
            self.write_prompts(folder / "prompts")
        _write_table(folder / "knowledge" / "facts.tsv", self.facts())
        _write_table(folder / "knowledge" / "entities.tsv", self.entities())
        return folder

    def write_prompts(self, folder: Path) -> None:
        """Tasks in words for `etude prompt`, over the files of labelled examples."""
        folder.mkdir(exist_ok=True)
        for name, lines in PROMPTS[self.language].items():
            files = [f"{split}: ../tasks/{name}.{split}.jsonl" for split in ("train", "test")]
            with write_aside(folder / f"{name}.yaml") as out:
                out.write("\n".join(["kind: classify", *files, *lines]) + "\n")


def check_size(megabytes: float) -> float:
    """Return an amount of text; UserError where it has no end."""
    if not math.isfinite(megabytes):
        raise UserError(f"{megabytes:g} megabytes of text would never end: give a number, such as 5.")
    return megabytes


@contextmanager
def write_aside(path: Path) -> Iterator[IO[str]]:
    """A file that appears whole or not at all."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("w", encoding="utf-8", newline="\n") as out:
            yield out
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _write_table(path: Path, rows: Iterable[tuple[str, ...]]) -> None:
    with write_aside(path) as out:
        for row in rows:
            out.write("\t".join(row) + "\n")
