"""Capped simple paths between concepts, on the undirected collapsed graph (KagNet, section 3.2).

The released code asks for all simple paths of at most 1, 2, 3 and 4 edges in turn, and stops at 100 of a pair; its
training then reads paths of at most 2 edges alone. The same here, with an order: shorter paths first, those of one
length by their concepts. So the cap keeps the same paths wherever and however often they are searched.

A hub (`max_degree`) may begin or end a path but not lie inside one: on ConceptNet nearly everything is two hops apart
through one of a few hundred concepts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from etude.graph.concept_graph import ConceptGraph
from etude.graph.path_kernel import MOST_EDGES, compile_search, search_pairs

PLAIN_STEPS = 2_000_000  # so many are made before numba would have compiled the loops


@dataclass(frozen=True)
class Paths:
    """The paths of some pairs, in the order of the pairs."""

    concepts: np.ndarray  # (K, most edges + 1) int32, -1 behind the last
    pairs: np.ndarray  # (K,) int32: the number of each path's pair

    @property
    def edges(self) -> np.ndarray:
        """(K,) the edges of each path."""
        return (self.concepts >= 0).sum(1) - 1


@dataclass(frozen=True)
class PathSearch:
    """Searches one concept graph under fixed caps."""

    graph: ConceptGraph
    max_edges: int = 2
    max_paths: int = 100
    max_degree: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.max_edges <= MOST_EDGES:
            raise ValueError(f"paths of {self.max_edges} edges: from 1 to {MOST_EDGES} are searched")

    def search(self, sources: np.ndarray, targets: np.ndarray) -> Paths:
        """All simple paths from each source to its target, capped; both are numbers of concepts, (P,)."""
        graph = self.graph
        degrees = np.diff(graph.bounds)
        passable = np.ones(len(degrees), bool) if self.max_degree is None else degrees <= self.max_degree
        steps = degrees[sources].sum() + degrees[targets].sum()
        steps = float(steps) * float(degrees.mean()) ** max(0, self.max_edges - 2)
        kernel = compile_search() if steps > PLAIN_STEPS else search_pairs
        concepts, pairs = kernel(
            graph.bounds,
            graph.neighbours,
            passable,
            np.ascontiguousarray(sources, np.int64),
            np.ascontiguousarray(targets, np.int64),
            self.max_edges,
            self.max_paths,
        )
        return Paths(concepts, pairs)
