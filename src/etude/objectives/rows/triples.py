"""Triples of a graph as rows: blocks of a new permutation of all triples in every epoch.

A triple counts as one token: `train.batch_tokens` is the triples of a step, a budget in tokens one of triples. A row is
a block of them, because a row a triple would cost more than learning from it does. Epoch e reads the triples in the
order of a keyed permutation; what does not fill a block at its end is left out and may come in the next epoch, so
all batches have one shape. Held-out triples stand in their own order, the last block being shorter.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np

from etude.chance import Permutation, fold, random_bits
from etude.graph.graph_split import GraphSplit
from etude.objectives.base import Row

KEPT_EPOCHS = 2  # permutations in memory: workers build some steps of the next epoch ahead
SUBSAMPLING_START = 3  # RotatE's code: the first triple of a key makes its count 4
KEPT_TRIPLES = 2**24  # whose permutation is kept whole; of more, each block's part is computed


@dataclass
class TripleRow(Row):
    """A block of triples; `tokens` are their numbers in the split."""

    triples: np.ndarray = field(default_factory=lambda: np.zeros((0, 3), np.int32))  # (n, 3) head, relation, tail
    head_shares: np.ndarray | None = None  # (n,) float32: the probability to replace the head; None: a half
    weights: np.ndarray | None = None  # (n,) float32 of the loss; None: 1


class TripleRows:
    """The rows of one split."""

    shuffle = True

    def __init__(
        self,
        source: GraphSplit,
        row_tokens: int,
        seed: int,
        head_shares: np.ndarray | None,
        weights: np.ndarray | None,
    ) -> None:
        """`head_shares`: (R,) by relation; `weights`: (T,) by triple."""
        self.triples, self.seed = source.triples, seed
        self.is_training = source.split == "train"
        self.block = min(row_tokens, max(1, len(self.triples)))
        self.row_tokens: int | None = self.block
        self.head_shares, self.weights = head_shares, weights
        self._orders: OrderedDict[int, np.ndarray] = OrderedDict()

    def __len__(self) -> int:
        whole, rest = divmod(len(self.triples), self.block)
        return whole if self.is_training else whole + bool(rest)

    def __getitem__(self, index: int) -> TripleRow:
        return self.many(np.array([index]))[0]

    def many(self, numbers: np.ndarray) -> list[TripleRow]:
        """Return the rows of these numbers."""
        return [self._build(number) for number in numbers.tolist()]

    def _build(self, number: int) -> TripleRow:
        epoch, place = divmod(number, len(self))
        places = np.arange(place * self.block, min((place + 1) * self.block, len(self.triples)))
        if self.is_training:
            places = self._permute(epoch, places)
        triples = self.triples[places]
        return TripleRow(
            index=number,
            tokens=places.astype(np.int32),
            bounds=np.array([0, len(places)], np.int32),
            triples=triples,
            head_shares=None if self.head_shares is None else self.head_shares[triples[:, 1]],
            weights=None if self.weights is None else self.weights[places],
        )

    def _permute(self, epoch: int, places: np.ndarray) -> np.ndarray:
        """Return the triples at some places of an epoch's order."""
        count = len(self.triples)
        order = self._orders.get(epoch)
        if order is None:
            key = fold(self.seed, epoch, "triples")
            if count > KEPT_TRIPLES:
                return Permutation(count, key)(places)
            # by the order of hashes: a third of the time of the keyed permutation of all places
            order = self._orders[epoch] = np.argsort(random_bits(key, np.arange(count)), kind="stable")
            while len(self._orders) > KEPT_EPOCHS:
                self._orders.popitem(last=False)
        permuted: np.ndarray = order[places]
        return permuted


def head_shares(triples: np.ndarray, relations: int) -> np.ndarray:
    """Return for each relation the share of negatives that replace the head, (R,) float32: "bern" of Wang et al. 2014.

    tph / (tph + hpt), tails a head over heads a tail as means over the heads and tails of the relation's triples: a
    relation with many tails for a head replaces the head, since a random tail would often be true. A relation without
    a triple has a half.
    """
    distinct = np.unique(triples.astype(np.int64), axis=0)
    counts = np.bincount(distinct[:, 1], minlength=relations).astype(np.float64)
    heads = np.bincount(np.unique(distinct[:, [1, 0]], axis=0)[:, 0], minlength=relations)
    tails = np.bincount(np.unique(distinct[:, [1, 2]], axis=0)[:, 0], minlength=relations)
    tails_per_head, heads_per_tail = counts / np.maximum(heads, 1), counts / np.maximum(tails, 1)
    shares = np.where(counts > 0, tails_per_head / np.maximum(tails_per_head + heads_per_tail, 1e-9), 0.5)
    return shares.astype(np.float32)


def subsampling_weights(triples: np.ndarray, relations: int) -> np.ndarray:
    """Return a weight for each triple, (T,) float32, of mean 1: frequent (h, r) and (r, t) count less.

    1 / sqrt(count(h, r) + count(r, t)), both counts starting at 3, as in RotatE's code (word2vec's subsampling, applied
    to triples). There a step divides by the sum of its weights; here by its triples, the weights having a mean of 1
    over the graph.
    """
    heads, kinds, tails = triples.astype(np.int64).T
    total = np.full(len(triples), 0.0)
    for known in (heads, tails):
        _, inverse, counts = np.unique(known * relations + kinds, return_inverse=True, return_counts=True)
        total += counts[inverse] + SUBSAMPLING_START
    weights = 1.0 / np.sqrt(total)
    return (weights / weights.mean()).astype(np.float32)
