"""Scores of triples (head, relation, tail), each as a query and a candidate entity.

    transe     -||h + r - t||, L1 or L2                                         (Bordes et al. 2013, section 2)
    rotate     -sum of |h o r - t|, complex, with r = e^(i phase) of modulus 1  (Sun et al. 2019, section 3)
    distmult   sum of h r t                                                     (Yang et al. 2015, section 3.1)
    complex    Re(sum of h r conj(t))                                           (Trouillon et al. 2016, section 3)

In all four, what is known (an entity, a relation, and on which side the unknown one stands) becomes one vector, the
query, and the score compares it with the vector of a candidate by a distance or a dot product:

    a tail is wanted    h + r     h o r          h r    h r
    a head is wanted    t - r     t o conj(r)    t r    t conj(r)

So one query is compared with the true answer, with many negatives, or with every entity, by one product or one kernel.
Complex vectors hold their real parts in the first half and the imaginary ones in the second.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from etude.nn.pair_distances import Distance, pair_distances, row_distances

ScoreName = Literal["transe", "rotate", "distmult", "complex"]


class TripleScore:
    """One of the four; `norm` is TransE's, `phase_unit` the number that stands for a phase of pi in RotatE."""

    def __init__(self, name: ScoreName, norm: int = 1, phase_unit: float = math.pi) -> None:
        self.name, self.phase_unit = name, phase_unit
        distances: dict[ScoreName, Distance | None] = {
            "transe": "l1" if norm == 1 else "l2",
            "rotate": "modulus",
            "distmult": None,
            "complex": None,
        }
        self.distance = distances[name]  # None: a dot product

    def queries(self, known: Tensor, relations: Tensor, wants_head: Tensor) -> Tensor:
        """Return the queries (B, D) of known entities (B, D), relations (B, D_r), and which side is wanted (B,)."""
        if self.name == "distmult":
            return known * relations
        sign = torch.where(wants_head, -1.0, 1.0)[:, None]  # (B, 1)
        if self.name == "transe":
            return known + sign * relations
        if self.name == "rotate":
            phases = relations * (math.pi / self.phase_unit)  # (B, D / 2)
            real, imaginary = phases.cos(), sign * phases.sin()
        else:
            real, imaginary = relations.chunk(2, -1)
            imaginary = sign * imaginary
        known_real, known_imaginary = known.chunk(2, -1)
        return torch.cat(
            [known_real * real - known_imaginary * imaginary, known_real * imaginary + known_imaginary * real], -1
        )

    def score_rows(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """Return the score of each query (B, D) with the candidate (B, D) of its row, (B,)."""
        if self.distance is None:
            return (queries * candidates).sum(-1)
        return -row_distances(queries, candidates, self.distance)

    def score_pairs(self, queries: Tensor, candidates: Tensor, exact: bool = False) -> Tensor:
        """Return the scores of queries (G, C, D) with all candidates (G, M, D) of their group, (G, C, M).

        `exact` gives equal candidates equal scores, for ranks: a float32 product adds up in an order that depends on
        the place of a candidate, so it is made in float64 and rounded once. Distances have one order anyway.
        """
        if self.distance is None and exact:
            return (queries.double() @ candidates.double().transpose(1, 2)).float()
        if self.distance is None:
            return queries @ candidates.transpose(1, 2)
        return -pair_distances(queries, candidates, self.distance)

    def flops(self, width: int, queries: int, pairs: int) -> int:
        """Count operations of a forward pass: so many queries made, so many pairs of query and candidate scored.

        There is no matrix product in most of these formulas, so the convention of products (2 a multiply-add) is kept
        for every score: 2 operations a number of the vectors that are compared. A query costs 2 a number as well, and 3
        where complex numbers are multiplied (4 products and 2 sums for every 2 numbers).
        """
        per_query = 2 * width if self.name in ("transe", "distmult") else 3 * width
        return queries * per_query + 2 * width * pairs
