"""What the preparation of a corpus asks of whoever links text to a graph: the text package itself knows no graph.

A `Linking` is given to `prepare`. It is saved once into the work folder; each worker process opens it again by the name
of its module, and asks it for the mentions of the documents it encodes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, cast

import numpy as np

from etude.text.corpus.entities import ENTITY, mention_entities
from etude.text.corpus.manifest import EntitiesEntry, SplitEntry
from etude.text.prepare.anchors import Anchor

TOP = 10  # entities that the report names
CHUNK = 1 << 22  # tokens that are counted at a time


class TextMentions(NamedTuple):
    """Mentions in several texts: by text, in order, none overlapping another (M mentions)."""

    texts: np.ndarray  # (M,) int64: number of the text
    starts: np.ndarray  # (M,) int64: characters of that text
    ends: np.ndarray  # (M,) int64
    entities: np.ndarray  # (M,) int32


class TextLinker(Protocol):
    """Finds the mentions of documents, in a worker."""

    def link(self, texts: Sequence[str], anchors: Sequence[Sequence[Anchor]]) -> TextMentions:
        """Return the mentions in NFC texts, whose own anchors are given."""
        ...


class Linking(Protocol):
    """How the documents of a corpus get their entities."""

    graph: str  # fingerprint of the graph
    anchors: str | None  # format of anchors in the text
    module: str  # that defines open_text_linker(folder) -> TextLinker

    @property
    def fingerprint(self) -> str:
        """A hash of everything that decides which mentions there are."""
        ...

    def save(self, folder: Path) -> None:
        """Write what workers need. A folder that an interrupted preparation wrote may be there already."""
        ...

    def name(self, entity: int) -> str:
        """Return what to call an entity in a report."""
        ...


def open_text_linker(module: str, folder: str) -> TextLinker:
    """Open a linking that was saved, in a worker."""
    opener = cast("Callable[[Path], TextLinker]", importlib.import_module(module).open_text_linker)
    return opener(Path(folder))


def describe_entities(
    linking: Linking, corpus: Path, splits: dict[str, SplitEntry], anchor_count: int, unread_links: int
) -> EntitiesEntry:
    """Count the mentions of a corpus that was written; return its entry in the manifest."""
    counts = np.zeros(0, np.int64)
    pieces = tokens = 0
    for split, entry in splits.items():
        tokens += entry["tokens"]
        for shard in entry["shards"]:
            for name in shard["files"]:
                if name.endswith(".entities.i32") and shard["tokens"]:
                    column = np.memmap(corpus / split / name, ENTITY, "r")
                    for start in range(0, len(column), CHUNK):
                        part = np.asarray(column[start : start + CHUNK])
                        pieces += int((mention_entities(part) >= 0).sum())
                        more = np.bincount(part[part >= 0], minlength=len(counts))
                        more[: len(counts)] += counts
                        counts = more
    order = np.argsort(-counts, kind="stable")[:TOP]
    top: list[list[str | int]] = [
        [linking.name(int(entity)), int(counts[entity])] for entity in order if counts[entity]
    ]
    described: EntitiesEntry = {
        "graph": linking.graph, "linker": linking.fingerprint, "anchors": linking.anchors,
        "anchor_count": anchor_count, "mentions": int(counts.sum()), "entities": int((counts > 0).sum()),
        "token_share": round(pieces / max(1, tokens), 6), "top": top,
    }  # fmt: skip
    if unread_links:
        described["unread_links"] = unread_links
    return described
