"""The entities of a text for a model that reads them: by the names in a column, or found by a linker.

A model knows entities by the rows of its table. A user's file names them ("Q76"), or says nothing, and then a linker
finds them in the text. `EntityLinks` is what a run keeps to do both: the names of the rows, and a linker where one was
given. It lies in the run's folder (`entities.json`, `linker/`), so that the run needs neither graph nor corpus.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from typing_extensions import TypedDict  # that of Python 3.11 cannot be checked

from etude.errors import UserError
from etude.graph.entity_table import ENTITIES
from etude.graph.linking.base import Linker
from etude.graph.linking.trie import TrieLinker
from etude.settings import read_json

LINKER = "linker"  # the folder of a run's linker
Alignment = Literal["first", "all"]  # which pieces of a mention carry its entity


class NamedMention(NamedTuple):
    """A span of characters, and the name of the entity it mentions."""

    start: int
    end: int
    name: str


class EntitySpan(NamedTuple):
    """A span of characters, and the row of the entity table it mentions."""

    start: int
    end: int
    row: int  # from 1: row 0 of a table is "no entity"


class LinkedNames(TypedDict):
    """What `entities.json` of a run that reads entities holds."""

    graph: str  # its fingerprint
    entities: list[str]


@dataclass(frozen=True)
class EntityLinks:
    graph: str  # the fingerprint of the graph whose ids the rows are
    names: Sequence[str]  # of the entities, by number
    linker: Linker | None = None

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each entity by its name."""
        return {name: number for number, name in enumerate(self.names)}

    def spans_of(self, mentions: Iterable[NamedMention]) -> list[EntitySpan]:
        """The mentions of entities that the table has; others are left out, as text without an entity."""
        return [EntitySpan(start, end, self.numbers[name] + 1) for start, end, name in mentions if name in self.numbers]

    def find(self, text: str) -> list[EntitySpan]:
        """The mentions that the linker finds in a text; none without a linker."""
        if self.linker is None:
            return []
        return [EntitySpan(mention.start, mention.end, mention.entity + 1) for mention in self.linker.link(text)]

    # --- files --------------------------------------------------------------------------------------

    def files(self) -> dict[str, str]:
        """The file of a run that names its entities, by its name; as a run on a graph has it."""
        content = {"graph": self.graph, "entities": list(self.names), "relations": []}
        return {ENTITIES: json.dumps(content, ensure_ascii=False)}

    def save(self, folder: Path) -> None:
        """Write names and linker into the folder of a run."""
        for name, text in self.files().items():
            (folder / name).write_text(text, encoding="utf-8")
        if self.linker is not None:
            if not isinstance(self.linker, TrieLinker):
                raise UserError(f"The linker {type(self.linker).__name__} cannot be stored with a run: give a graph.")
            self.linker.save(folder / LINKER)

    @classmethod
    def load(cls, folder: Path) -> EntityLinks | None:
        """Read what `save` wrote; None where the folder holds nothing of it."""
        path = folder / ENTITIES
        if not path.is_file():
            return None
        content = read_json(path, LinkedNames, "Copy the run again, or train a new one.")
        linker = TrieLinker.load(folder / LINKER) if (folder / LINKER).is_dir() else None
        return cls(content["graph"], content["entities"], linker)


def align_spans(offsets: np.ndarray, spans: Sequence[EntitySpan], alignment: Alignment) -> np.ndarray:
    """(n,) int64: the row of the entity table at each token of a text, 0 for none.

    `offsets` (n, 2) are the characters of the tokens; the first token that a mention touches carries it, or all do.
    """
    rows = np.zeros(len(offsets), np.int64)
    for start, end, row in spans:
        touched = np.flatnonzero((offsets[:, 0] < end) & (offsets[:, 1] > start))
        rows[touched if alignment == "all" else touched[:1]] = row
    return rows
