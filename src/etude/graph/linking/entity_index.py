"""An index from what a text calls an entity (its name, label or alias, exactly) to its number, as sorted hashes.

Anchors name their entities: by title, by an id such as Q90, or by number. A name comes before a label, a label before
an alias, and of several entities the one of the largest degree is meant. Underscores are spaces, and the first letter
may be lower case, as in wiki links.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Self

import numpy as np

from etude.graph.graph import Graph
from etude.text.tokenizer.normalization import normalize_nfc

HASHES, ENTITIES = "names.hashes.npy", "names.entities.npy"
CACHED = 1 << 16  # names that are remembered


class EntityIndex:
    """Finds entities by name."""

    def __init__(self, hashes: np.ndarray, entities: np.ndarray, count: int) -> None:
        self.hashes = hashes  # (names,) uint64, ascending
        self.entities = entities  # (names,) int32
        self.count = count  # entities of the graph
        self._find_text = lru_cache(CACHED)(self._search)

    @classmethod
    def from_graph(cls, graph: Graph) -> Self:
        """Index the names, labels and aliases of a graph."""
        degrees = graph.outgoing.degrees() + graph.incoming.degrees()
        columns = array("Q"), array("i"), array("b")  # ten million names are 130 MB
        for text, entity, rank in _list_names(graph):
            for column, value in zip(columns, (_hash(text), entity, rank), strict=True):
                column.append(value)
        hashes, entities, ranks = (np.array(column) for column in columns)
        order = np.lexsort((entities, -degrees[entities], ranks, hashes))
        chosen = order[np.unique(hashes[order], return_index=True)[1]]
        return cls(hashes[chosen], entities[chosen], len(graph.entities))

    def find(self, name: str | int) -> int | None:
        """Return the number of an entity by its name or number; None where the graph has none of it."""
        if isinstance(name, int):
            return name if 0 <= name < self.count else None
        return self._find_text(name)

    def _search(self, name: str) -> int | None:
        text = _clean(name)
        for form in (text, text[:1].upper() + text[1:]):
            key = np.uint64(_hash(form))
            place = int(np.searchsorted(self.hashes, key))
            if place < len(self.hashes) and self.hashes[place] == key:
                return int(self.entities[place])
        return None

    def save(self, folder: Path) -> None:
        """Write the index as two arrays."""
        np.save(folder / HASHES, self.hashes, allow_pickle=False)
        np.save(folder / ENTITIES, self.entities, allow_pickle=False)

    @classmethod
    def load(cls, folder: Path, count: int) -> Self:
        """Map an index that was saved into memory."""
        hashes, entities = (
            np.asarray(np.load(folder / name, mmap_mode="r", allow_pickle=False)) for name in (HASHES, ENTITIES)
        )
        return cls(hashes, entities, count)


def _list_names(graph: Graph) -> Iterator[tuple[str, int, int]]:
    """Yield each name with its entity and its rank: 0 of a name, 1 of a label, 2 of an alias."""
    for entity in range(len(graph.entities)):
        name = _clean(graph.entities[entity])
        yield name, entity, 0
        if (label := _clean(graph.label(entity))) != name:
            yield label, entity, 1
        for alias in graph.aliases(entity):
            yield _clean(alias), entity, 2


def _clean(name: str) -> str:
    return " ".join(normalize_nfc(name).replace("_", " ").split())


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
