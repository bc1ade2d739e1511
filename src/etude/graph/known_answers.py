"""What is known to be true: for each (entity, relation, wanted side) the entities that complete it to a triple.

Filtered ranking (Bordes et al. 2013, section 4.1) removes the other true answers of a query, those of all splits, from
the candidates. They are kept as one sorted array of keys and one of answers, and found by a binary search.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from etude.graph.graph import Graph


@dataclass(frozen=True)
class KnownAnswers:
    """Answers by query: `answers[starts[k] : starts[k + 1]]` complete the query of key `keys[k]`."""

    keys: np.ndarray  # (K,) int64, ascending: (entity * R + relation) * 2 + wants_head
    starts: np.ndarray  # (K+1,) int64
    answers: np.ndarray  # (2 T,) int32
    relations: int

    @classmethod
    def from_triples(cls, triples: np.ndarray, relations: int) -> KnownAnswers:
        """Index triples (T, 3); one that comes twice counts once."""
        heads, kinds, tails = triples.astype(np.int64).T
        keys = np.concatenate([(heads * relations + kinds) * 2, (tails * relations + kinds) * 2 + 1])
        answers = np.concatenate([tails, heads])
        pairs = np.unique(np.stack([keys, answers], 1), axis=0)
        distinct, starts = np.unique(pairs[:, 0], return_index=True)
        return cls(distinct, np.append(starts, len(pairs)), pairs[:, 1].astype(np.int32), relations)

    @classmethod
    def from_graph(cls, graph: Graph) -> KnownAnswers:
        """Index the triples of all splits."""
        return cls.from_triples(np.concatenate([graph.triples(split) for split in graph.splits]), len(graph.relations))

    def number(self, known: np.ndarray, relations: np.ndarray, wants_head: np.ndarray) -> np.ndarray:
        """Return the numbers of some queries (Q,), their places in `keys`; -1 where nothing completes one."""
        keys = (known.astype(np.int64) * self.relations + relations) * 2 + wants_head
        places = np.searchsorted(self.keys, keys).clip(max=len(self.keys) - 1)
        return np.where(self.keys[places] == keys, places, -1)

    def find(self, known: np.ndarray, relations: np.ndarray, wants_head: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (queries (A,), answers (A,)): all known answers of some queries, each with the number of its query."""
        numbers = self.number(known, relations, wants_head)
        is_known = numbers >= 0
        first = np.where(is_known, self.starts[numbers], 0)
        counts = np.where(is_known, self.starts[numbers + 1] - first, 0)
        queries = np.repeat(np.arange(len(numbers)), counts)
        within = np.arange(len(queries)) - np.repeat(np.cumsum(counts) - counts, counts)
        return queries, self.answers[first[queries] + within]

    def list_pairs(self, entities: int) -> np.ndarray:
        """Return every (query, answer) as one number, query * entities + answer, ascending; (2 T,) int64."""
        queries = np.repeat(np.arange(len(self.keys)), np.diff(self.starts))
        return queries * entities + self.answers
