"""Mentions of entities in a text, and what a linker is.

A linker finds mentions of a graph's entities in plain text. The one here is `trie`; any other module may take its
place, by its full name, if it defines

    build(graph: Graph, settings: Mapping[str, object]) -> Linker

which is called once in each process that links text. Linkers that find different mentions have different fingerprints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from etude.graph.graph import Graph


class Mention(NamedTuple):
    """A span of characters that names an entity."""

    start: int
    end: int
    entity: int
    score: float = 1.0


class Linker(Protocol):
    """Finds mentions of the entities of one graph."""

    @property
    def fingerprint(self) -> str:
        """A hash of everything that decides which mentions are found."""
        ...

    def link(self, text: str) -> list[Mention]:
        """Return the mentions in an NFC text: in order, none overlapping another."""
        ...


class LinkerKind(Protocol):
    """The module of a kind of linker."""

    def build(self, graph: Graph, settings: Mapping[str, object]) -> Linker: ...


def check_mentions(mentions: Sequence[Mention], length: int, entities: int, linker: str) -> np.ndarray:
    """Return mentions as (mentions, 3) int64: start, end, entity; ValueError where a linker breaks its contract."""
    spans = np.array([mention[:3] for mention in mentions], np.int64).reshape(-1, 3)
    starts, ends, ids = spans.T
    if len(spans) and (starts[0] < 0 or ends[-1] > length or (ends <= starts).any() or (starts[1:] < ends[:-1]).any()):
        raise ValueError(f"the linker {linker} found mentions out of order, overlapping, empty or outside of the text")
    if len(spans) and (ids.min() < 0 or ids.max() >= entities):
        raise ValueError(f"the linker {linker} found entities from {ids.min()} to {ids.max()} in a graph of {entities}")
    return spans
