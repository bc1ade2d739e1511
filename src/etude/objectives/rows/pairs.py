"""Rows of whole pairs: a source and its target belong together, and neither is ever cut.

Every epoch reads all pairs in an order of its own, a keyed permutation. Laid end to end in that order they fill rows: a
row holds the pairs that begin within its share of the tokens. The share is so much smaller than `row_tokens` that the
last pair always fits, so a row has at most that many tokens of both sides together, and no padding; and it is never
smaller than the longest pair, so no row is empty. Which pairs a row holds is a function of (seed, number) alone.

With `bucketed` the pairs of an epoch are sorted by their lengths, those of one length in the epoch's order, so that a
row holds pairs of like lengths; the order of the rows is shuffled all the same. A recurrent decoder takes as many steps
as the longest target of its batch has tokens, so for it rows of like lengths are a half or a third of the work.

A pair with a side of more than `length` tokens, its end among them, is left out; `left_out` says how many there are.

Rows differ a little in how many tokens each side has, and a compiled step needs static shapes. Every row knows how much
the rows of its corpus hold on average and how far they spread (`RowSizes`), so all batches of as many rows are padded
to one shape that nearly none exceeds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from etude.chance import Permutation, fold
from etude.errors import UserError
from etude.objectives.base import Row
from etude.objectives.rows.sizes import corpus_name, part_name
from etude.text.corpus.corpus import Corpus

ROW_LENGTHS = 6  # a row holds at least so many times the longest side: see `row_size`
DEVIATIONS = 4  # standard deviations from the mean size of a batch to that of its static shape
GRAINS = (64, 64, 8)  # source tokens, target tokens and pairs of a static shape are multiples of these


def row_size(requested: int | None, length: int) -> int:
    """`objective.row_tokens`, or room for a few pairs of the greatest length.

    With six lengths a share of a row, four lengths at least, is split evenly into no less than the longest pair of two.
    """
    row_tokens = requested or max(ROW_LENGTHS * length, 1024)
    if row_tokens < ROW_LENGTHS * length:
        raise UserError(
            f"objective.row_tokens={row_tokens} is too small to pack pairs of sides of up to {length} tokens: "
            f"set it to {ROW_LENGTHS * length} or more, or lower objective.length."
        )
    return row_tokens


@dataclass(frozen=True)
class RowSizes:
    """How many source tokens, target tokens and pairs a row holds: means and variances, each (3,)."""

    means: np.ndarray
    variances: np.ndarray

    @classmethod
    def from_rows(cls, sizes: np.ndarray) -> RowSizes:
        """From the sizes of rows, (rows, 3)."""
        return cls(sizes.mean(0), sizes.var(0))

    def bound(self, rows: int) -> tuple[int, int, int]:
        """What so many rows hold together but for one batch in thousands, rounded up to what suits a GPU."""
        largest = rows * self.means + DEVIATIONS * np.sqrt(rows * self.variances)
        source, target, pairs = (math.ceil(size / grain) * grain for size, grain in zip(largest, GRAINS, strict=True))
        return source, target, pairs


@dataclass
class PairRow(Row):
    """A row of pairs, beside what other rows of the corpus hold; None where rows differ by design."""

    sizes: RowSizes | None = None


class PairRows:
    """Rows whose sequences are source, target, source, target ..., each with its end token behind."""

    shuffle = True

    def __init__(
        self, corpus: Corpus, seed: int, row_tokens: int, length: int, end: int, bucketed: bool = False
    ) -> None:
        self.corpus, self.seed, self.end, self.bucketed = corpus, seed, end, bucketed
        self.row_tokens: int | None = row_tokens
        if corpus.manifest.get("settings") is not None and corpus.pairs is None:
            raise UserError(
                f"{corpus_name(corpus)} is a corpus of plain text, and translation needs pairs. Prepare them with "
                "'etude prepare FILE --pairs en,ko'."
            )
        count = len(corpus.sentences) // 2
        bounds = corpus.sentences.slice(0, 2 * count + 1)
        self.starts, sizes = bounds[:-1].reshape(-1, 2), np.diff(bounds).reshape(-1, 2)  # (pairs, 2)
        usable = (sizes + 1 <= length).all(1)
        self.pairs = np.flatnonzero(usable)  # numbers of the pairs that are short enough
        self.left_out = count - len(self.pairs)
        if not len(self.pairs):
            raise UserError(
                f"{part_name(corpus)} has no pair whose sides have at most {length} tokens, their ends among them. "
                "Raise objective.length (and model.context)."
            )
        self._all_sizes = sizes
        self.sizes = sizes[self.pairs]  # (pairs, 2)
        self.costs = self.sizes.sum(1) + 2
        self.total = int(self.costs.sum())
        self.count = math.ceil(self.total / (row_tokens - int(self.costs.max()) + 1))
        self.mean_tokens = self.total / self.count
        self._epochs: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self.row_sizes = None if bucketed else RowSizes.from_rows(self._measure_rows())

    def _measure_rows(self) -> np.ndarray:
        """(rows, 3) source tokens, target tokens and pairs of each row of the first epoch."""
        order, firsts = self._epoch(0)
        sides = np.cumsum(np.concatenate([np.zeros((1, 2)), self._all_sizes[order] + 1]), 0)  # ends included
        return np.concatenate([np.diff(sides[firsts], axis=0), np.diff(firsts)[:, None]], 1)

    def __len__(self) -> int:
        return self.count

    def _epoch(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The pairs of an epoch in order, and where each row starts among them, (rows + 1,)."""
        cached = self._epochs.get(epoch)
        if cached is None:
            order = np.asarray(
                Permutation(len(self.pairs), fold(self.seed, epoch, "pairs"))(np.arange(len(self.pairs)))
            )
            if self.bucketed:  # lexsort keeps the order of equals; the last key, the target's length, comes first
                order = order[np.lexsort((self.sizes[order, 0], self.sizes[order, 1]))]
            costs = self.costs[order]
            begins = np.cumsum(costs) - costs  # of each pair among all tokens
            shares = -(-np.arange(self.count + 1) * self.total // self.count)  # of each row, rounded up
            cached = self.pairs[order], np.searchsorted(begins, shares)
            self._epochs = {number: value for number, value in self._epochs.items() if number == epoch - 1}
            self._epochs[epoch] = cached
        return cached

    def __getitem__(self, index: int) -> PairRow:
        epoch, place = divmod(index, self.count)
        order, firsts = self._epoch(epoch)
        sequences = [
            np.append(self.corpus.tokens(start, stop), np.int32(self.end))
            for pair in order[firsts[place] : firsts[place + 1]].tolist()
            for start, stop in self._sides(pair)
        ]
        bounds = np.concatenate([[0], np.cumsum([len(sequence) for sequence in sequences])]).astype(np.int32)
        return PairRow(index, np.concatenate(sequences), bounds, sizes=self.row_sizes)

    def _sides(self, pair: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """(start, stop) of source and target among the corpus's tokens."""
        source, target = self.starts[pair].tolist()
        stop = self.corpus.total if pair == len(self.starts) - 1 else int(self.starts[pair + 1, 0])
        return (source, target), (target, stop)
