"""One split of a graph: what an objective that learns from triples reads, as others read a part of a corpus."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from etude.errors import UserError
from etude.graph.graph import Graph


@dataclass(frozen=True)
class GraphSplit:
    """The triples of a split, with their graph."""

    graph: Graph
    split: str = "train"

    @classmethod
    def open(cls, folder: str | Path) -> GraphSplit:
        """Open the train triples of a graph folder; raise UserError where there are none."""
        return cls.of(Graph.open(folder))

    @classmethod
    def of(cls, graph: Graph) -> GraphSplit:
        """Return the train triples of a graph; raise UserError where there are none."""
        if "train" not in graph.splits or not len(graph.triples("train")):
            raise UserError(f"{graph!r} has no train triples to learn from. Prepare it with a file of triples.")
        return cls(graph)

    @cached_property
    def triples(self) -> np.ndarray:
        """Head, relation, tail, (T, 3) int32."""
        return self.graph.triples(self.split)

    @property
    def held_out(self) -> GraphSplit | None:
        """The valid triples, where the graph has any."""
        has_valid = "valid" in self.graph.splits and len(self.graph.triples("valid")) > 0
        return GraphSplit(self.graph, "valid") if has_valid else None

    @property
    def folder(self) -> Path:
        return self.graph.folder

    @property
    def fingerprint(self) -> str:
        return self.graph.fingerprint

    @property
    def tokenizer(self) -> None:
        """A graph has names in the place of a tokenizer."""
        return None
