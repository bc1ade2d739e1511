"""The neighbours of each entity as compressed sparse rows (CSR), in one direction."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Adjacency:
    """Neighbours and relations of entity e: entries bounds[e] to bounds[e + 1], sorted by (neighbour, relation)."""

    bounds: np.ndarray  # (E + 1,) int64
    neighbours: np.ndarray  # (T,) int32
    relations: np.ndarray  # (T,) int32

    def of(self, entity: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the neighbours of an entity and the relations to them."""
        if not 0 <= entity < len(self.bounds) - 1:
            raise IndexError(f"entity {entity} of {len(self.bounds) - 1}")
        start, stop = int(self.bounds[entity]), int(self.bounds[entity + 1])
        return self.neighbours[start:stop], self.relations[start:stop]

    def degrees(self) -> np.ndarray:
        """Return the number of entries of every entity, (E,) int64."""
        return np.diff(self.bounds)

    def is_valid(self, entities: int, triples: int) -> bool:
        """Whether these can be the rows of so many entities and triples: bounds ascend, neighbours exist and ascend."""
        if len(self.bounds) != entities + 1 or not len(self.neighbours) == len(self.relations) == triples:
            return False
        if self.bounds[0] != 0 or self.bounds[-1] != triples or (self.degrees() < 0).any():
            return False
        if not triples:
            return True
        owners = np.repeat(np.arange(entities), self.degrees())
        pairs = owners * entities + self.neighbours
        in_range = int(self.neighbours.min()) >= 0 and int(self.neighbours.max()) < entities
        return in_range and bool((np.diff(pairs) >= 0).all())

    @classmethod
    def build(cls, triples: np.ndarray, entities: int, incoming: bool = False) -> Adjacency:
        """Sort triples (T, 3) into rows: of heads, or with `incoming` of tails."""
        own, neighbours = (triples[:, 2], triples[:, 0]) if incoming else (triples[:, 0], triples[:, 2])
        order = np.lexsort((triples[:, 1], neighbours, own))
        bounds = np.zeros(entities + 1, np.int64)
        np.cumsum(np.bincount(own, minlength=entities), out=bounds[1:])
        return cls(bounds, neighbours[order].astype(np.int32), triples[order, 1].astype(np.int32))
