"""Schema graphs: what joins the concepts of a question with those of an answer (KagNet, section 3.2).

For each pair of concepts the capped simple paths, without those that TransE finds implausible: the score of a path is
the product of its hops' (1 + cos(r, t - h)) / 2, and those below `threshold` (0.15) go. Nodes are the concepts on the
paths that stay; to their edges come those of the graph between two concepts of the question, or two of the answer.
A pair without a path is no pair of the schema graph.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from etude.graph.concept_graph import ConceptGraph
from etude.graph.grounding import LONGEST, SHORTEST_KEPT, Grounder, Grounding
from etude.graph.paths import PathSearch

VERSION = 3  # of what is built here: a cache of another version is built anew
NONE = -1  # behind the last concept or relation of a path


@dataclass(frozen=True)
class SchemaGraph:
    """One question with one answer. Nodes are numbered within the schema graph."""

    concepts: np.ndarray  # (V,) int32 numbers of the concept graph, ascending
    roles: np.ndarray  # (V,) int8: 1 of the question, 2 of the answer, 0 between them
    edges: np.ndarray  # (E, 2) int32 nodes; both directions of every edge
    pairs: np.ndarray  # (P, 2) int32 nodes: of the question, of the answer
    path_pairs: np.ndarray  # (K,) int32 the pair of a path, ascending
    path_nodes: np.ndarray  # (K, most edges + 1) int32 nodes, NONE behind the last
    path_relations: np.ndarray  # (K, most edges) int16 relation classes, NONE behind the last
    path_scores: np.ndarray  # (K,) float32 by TransE; 1 without

    @cached_property
    def path_edges(self) -> np.ndarray:
        """(K,) the edges of each path."""
        return (self.path_relations >= 0).sum(1)

    def equals(self, graph: SchemaGraph) -> bool:
        """Whether all arrays are the same."""
        return all(np.array_equal(getattr(self, field.name), getattr(graph, field.name)) for field in fields(self))


@dataclass(frozen=True)
class SchemaBuilder:
    """Grounds a question and an answer and searches what joins them."""

    graph: ConceptGraph
    search: PathSearch
    hop_scores: np.ndarray | None = None  # (M,) float32 of TransE; None: no path is pruned
    threshold: float = 0.15

    @cached_property
    def grounder(self) -> Grounder:
        return Grounder(self.graph)

    @cached_property
    def fingerprint(self) -> str:
        """One hash of everything that a schema graph follows from beside its texts."""
        search = self.search
        settings = (VERSION, search.max_edges, search.max_paths, search.max_degree, LONGEST, SHORTEST_KEPT)
        digest = hashlib.blake2b(f"{self.graph.fingerprint} {settings}".encode(), digest_size=16)
        if self.hop_scores is not None:
            digest.update(f" {self.threshold} ".encode() + np.ascontiguousarray(self.hop_scores).tobytes())
        return digest.hexdigest()

    def build(self, texts: Sequence[tuple[str, str]]) -> list[SchemaGraph]:
        """The schema graphs of (question, answer) texts; each is what it is alone."""
        groundings = [self.grounder.ground(question, answer) for question, answer in texts]
        sources, targets, bounds = _list_pairs(groundings)
        paths = self.search.search(sources, targets)
        concepts, pairs = paths.concepts, paths.pairs
        hops = self._find_hops(concepts)  # (K, most edges), -1 behind the last
        scores = np.ones(len(pairs), np.float32)
        if self.hop_scores is not None:
            factors = np.where(hops >= 0, self.hop_scores[np.maximum(hops, 0)], np.float32(1))
            scores = factors.prod(1, dtype=np.float32)
            plausible = scores >= self.threshold
            concepts, pairs, hops, scores = (part[plausible] for part in (concepts, pairs, hops, scores))
        relations = np.where(hops >= 0, self.graph.hop_relations[np.maximum(hops, 0)], NONE).astype(np.int16)
        places = np.searchsorted(pairs, bounds)  # the paths of each text
        return [
            self._assemble(grounding, *(part[start:stop] for part in (concepts, pairs, relations, scores)))
            for grounding, start, stop in zip(groundings, places[:-1], places[1:], strict=True)
        ]

    def _find_hops(self, concepts: np.ndarray) -> np.ndarray:
        if not len(concepts):
            return np.zeros((0, self.search.max_edges), np.int64)
        inside = concepts[:, 1:] >= 0
        hops = self.graph.find_hops(np.maximum(concepts[:, :-1], 0), np.maximum(concepts[:, 1:], 0))
        return np.where(inside, hops, NONE)

    def _assemble(
        self, grounding: Grounding, paths: np.ndarray, pairs: np.ndarray, relations: np.ndarray, scores: np.ndarray
    ) -> SchemaGraph:
        """Number the nodes of one schema graph and collect its edges."""
        inner = self._edges_within(grounding.question) + self._edges_within(grounding.answer)
        steps = np.stack([paths[:, :-1], paths[:, 1:]], -1)[relations >= 0].reshape(-1, 2)  # (hops, 2)
        ends = np.concatenate([steps, np.array(inner, np.int32).reshape(-1, 2)])
        concepts = np.unique(ends).astype(np.int32)
        roles = np.zeros(len(concepts), np.int8)
        roles[np.isin(concepts, grounding.question)] = 1
        roles[np.isin(concepts, grounding.answer)] = 2
        edges = np.searchsorted(concepts, ends).reshape(-1, 2)
        edges = np.unique(np.concatenate([edges, edges[:, ::-1]]), axis=0).astype(np.int32)
        nodes = np.where(paths >= 0, np.searchsorted(concepts, paths), NONE).astype(np.int32)
        _, first, path_pairs = np.unique(pairs, return_index=True, return_inverse=True)
        last = np.take_along_axis(nodes, (relations >= 0).sum(1)[:, None], 1)[:, 0] if len(nodes) else nodes[:, 0]
        return SchemaGraph(
            concepts=concepts,
            roles=roles,
            edges=edges,
            pairs=np.stack([nodes[first, 0], last[first]], -1).astype(np.int32),
            path_pairs=path_pairs.astype(np.int32),
            path_nodes=nodes,
            path_relations=relations,
            path_scores=scores,
        )

    def _edges_within(self, concepts: Sequence[int]) -> list[tuple[int, int]]:
        """The edges of the graph between some concepts, each once."""
        numbers = np.array(concepts, np.int64)
        lower, upper = np.triu_indices(len(numbers), 1)
        joined = self.graph.find_hops(numbers[lower], numbers[upper]) >= 0
        return list(zip(numbers[lower[joined]].tolist(), numbers[upper[joined]].tolist(), strict=True))


def _list_pairs(groundings: Sequence[Grounding]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All (question, answer) pairs, those of one answer concept side by side, and where the pairs of a text start."""
    sources: list[int] = []
    targets: list[int] = []
    bounds = [0]
    for grounding in groundings:
        for target in grounding.answer:
            sources += grounding.question
            targets += [target] * len(grounding.question)
        bounds.append(len(sources))
    return np.array(sources, np.int64), np.array(targets, np.int64), np.array(bounds, np.int64)
