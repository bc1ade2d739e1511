"""Which tokens a masked language model predicts, and what stands in their place.

    BERT, section 3.1 and its code    round(15 %) of a sequence, markers counted but never chosen, at least one
    whole words                       words in random order; one that no longer fits the number is passed over
    ALBERT, section 4.1 and its code  runs of n words, p(n) in proportion to 1/n; a run that no longer fits is
                                      shortened, and passed over if it still does not fit or touches a chosen word

Every choice is a hash of (seed, step, row, place in the row), so it does not matter which rows share a batch.
Whole batches at once: no Python a token. Letters: N tokens, S sequences, U units (words, or single tokens).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from etude import chance
from etude.chance import Chance
from etude.objectives.base import IGNORE


@dataclass(frozen=True)
class Rules:
    rate: float = 0.15
    most: int | None = None  # predictions a sequence, at most
    whole_word: bool = False
    ngram: int = 1  # units of the longest run

    def budget(self, lengths: np.ndarray) -> np.ndarray:
        """Predictions of sequences of these lengths."""
        count = np.maximum(1, np.rint(self.rate * lengths).astype(np.int64))
        return count if self.most is None else np.minimum(count, self.most)

    def slots(self, row_tokens: int, length: int) -> int:
        """Predictions a row has room for: its share, and what rounding adds to sequences of uneven lengths.

        Rounding adds nothing on average and at most one half a sequence; one a full-length sequence, and eight,
        is never reached by natural text. Where all sequences are short and round up, `within` drops the surplus:
        the rate of a row is never less than `rate`.
        """
        slots = math.ceil(self.rate * row_tokens) + row_tokens // length + 8
        return min(row_tokens, -(-slots // 8) * 8)  # matrix units work in eights


class Places:
    """Hash draws at (row, place in the row) for the flat tokens of a batch."""

    def __init__(self, chance_: Chance, rows: np.ndarray, sizes: Sequence[int]) -> None:
        self.chance, self.rows, self.sizes = chance_, rows, np.asarray(sizes)
        starts = np.cumsum(self.sizes) - self.sizes
        self.row = np.repeat(np.arange(len(rows)), self.sizes)  # (N,) the row of each token, counted in the batch
        self.place = np.arange(len(self.row)) - np.repeat(starts, self.sizes)  # (N,)

    def _keys(self, purpose: str, at: np.ndarray) -> np.ndarray:
        return self.chance.keys(purpose, self.rows)[self.row[at]]

    def bits(self, purpose: str, at: np.ndarray) -> np.ndarray:
        return chance.random_bits(self._keys(purpose, at), self.place[at])

    def uniform(self, purpose: str, at: np.ndarray) -> np.ndarray:
        return chance.uniform(self._keys(purpose, at), self.place[at])

    def below(self, purpose: str, at: np.ndarray, limit: int) -> np.ndarray:
        return chance.integers(self._keys(purpose, at), self.place[at], limit)


def choose(
    allowed: np.ndarray, bounds: np.ndarray, word_starts: np.ndarray | None, rules: Rules, places: Places
) -> np.ndarray:
    """(M,) ascending: the tokens to predict. `allowed` (N,) bool, `bounds` (S+1,), `word_starts` (N,) bool."""
    lengths = np.diff(bounds)
    budget = rules.budget(lengths)
    tokens = np.flatnonzero(allowed)
    sequence = np.repeat(np.arange(len(lengths)), lengths)[tokens]
    if word_starts is None and rules.ngram == 1:
        return tokens[_lowest(sequence, budget, places.bits("mask", tokens))]
    if word_starts is None:
        first = np.arange(len(tokens))
    else:  # a word ends at the next one's start, at a marker and at the end of its sequence
        starts_word = word_starts[tokens] | (np.diff(tokens, prepend=-2) != 1) | (np.diff(sequence, prepend=-1) != 0)
        first = np.flatnonzero(starts_word)
    owner = sequence[first]  # (U,) the sequence of each unit
    starts = np.searchsorted(owner, np.arange(len(budget) + 1))  # (S+1,) units of each sequence
    order = np.argsort(_ranks(owner, places.bits("mask", tokens[first])), kind="stable")
    runs = _run_lengths(rules.ngram, places.uniform("run", tokens[first]), starts[owner + 1] - np.arange(len(owner)))
    sizes = np.diff(first, append=len(tokens))
    chosen = _fill(order, starts, sizes, runs, budget)
    return tokens[np.repeat(chosen, sizes)]


def _ranks(owner: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """(U,) uint64 whose order is that of the sequences, and random within each."""
    # the sequence in the top 24 bits, the random bits below: one sort of numbers in place of two keys, and stable,
    # so that even equal bits fall the same way in every batch
    ranks = owner.astype(np.uint64)
    ranks <<= np.uint64(40)
    ranks |= bits >> np.uint64(24)
    return ranks


def _lowest(owner: np.ndarray, budget: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """(U,) bool: in each sequence the `budget` units of the lowest rank; `owner` ascends."""
    if not len(owner):
        return np.zeros(0, bool)
    ranks, units = _ranks(owner, bits), np.bincount(owner, minlength=len(budget))
    limits = np.minimum(budget, units)
    # numbers are sorted several times as fast as places: the last rank taken in a sequence says which are
    last = (np.cumsum(units) - units + limits - 1).clip(min=0)
    chosen = ranks <= np.sort(ranks)[last][owner]
    if np.count_nonzero(chosen) != limits.sum():  # equal ranks at the border: the units that come first
        rank = np.empty(len(owner), np.int64)
        rank[np.argsort(ranks, kind="stable")] = np.arange(len(owner)) - (np.cumsum(units) - units)[owner]
        chosen = rank < budget[owner]
    return chosen


def _run_lengths(most: int, draws: np.ndarray, room: np.ndarray) -> np.ndarray:
    """(U,) units of the run that would begin at each: p(n) ~ 1/n among those its sequence has room for."""
    odds = np.cumsum(1 / np.arange(1, most + 1))
    room = np.minimum(room, most)
    return 1 + np.searchsorted(odds, draws * odds[room - 1], side="right").clip(max=room - 1)


def _fill(
    order: np.ndarray, starts: np.ndarray, sizes: np.ndarray, lengths: np.ndarray, budget: np.ndarray
) -> np.ndarray:
    """(U,) bool: units chosen one run at a time, the k-th of all sequences at once."""
    longest = int(lengths.max(initial=1))
    ahead = np.arange(longest)
    chosen = np.zeros(len(order) + longest, bool)  # a run that would leave the text is looked at too, and never taken
    upto = np.concatenate([[0], np.cumsum(sizes)])  # tokens before each unit
    upto = np.concatenate([upto, np.full(longest, upto[-1])])
    room = budget.copy()
    going = np.flatnonzero(starts[:-1] < starts[1:])  # sequences with places room and units not yet tried
    turn = 0
    while len(going):
        unit = order[starts[going] + turn]
        places = unit[:, None] + ahead  # (G, longest) the units of each run
        held = upto[places + 1] - upto[unit][:, None]  # (G, longest) tokens of a run that ends there
        run = ahead < lengths[unit][:, None]
        run &= held <= room[going][:, None]  # a run that is too long is shortened
        if longest > 1:  # single units are met once: none can be taken yet
            run &= ~(run & chosen[places]).any(1)[:, None]
        chosen[places[run]] = True
        room[going] -= (held * run).max(1)
        turn += 1
        going = going[(room[going] > 0) & (starts[going] + turn < starts[going + 1])]
    return chosen[: len(order)]


def replace(
    tokens: np.ndarray,
    chosen: np.ndarray,
    places: Places,
    *,
    mask: int,
    vocab: int,
    mask_share: float,
    random_share: float,
) -> np.ndarray:
    """A copy in which each chosen token became [MASK], any token of the whole vocabulary, or stayed."""
    draws = places.uniform("replace", chosen)
    masked = draws < mask_share
    random = ~masked & (draws < mask_share + random_share)
    tokens = tokens.copy()
    tokens[chosen[masked]] = mask
    tokens[chosen[random]] = places.below("random", chosen[random], vocab)
    return tokens


def within(chosen: np.ndarray, places: Places, slots: int) -> np.ndarray:
    """The chosen tokens without those beyond the slots of their row."""
    return chosen[_place_in_row(chosen, places) < slots]


def into_slots(tokens: np.ndarray, chosen: np.ndarray, places: Places, slots: int) -> tuple[np.ndarray, np.ndarray]:
    """A fixed number of slots a row: where to look, and the true token there. Unused: place 0, target IGNORE."""
    index = np.zeros(len(places.rows) * slots, np.int64)
    targets = np.full(len(index), IGNORE, np.int64)
    slot = places.row[chosen] * slots + _place_in_row(chosen, places)
    index[slot], targets[slot] = chosen, tokens[chosen]
    return index, targets


def _place_in_row(chosen: np.ndarray, places: Places) -> np.ndarray:
    """(M,) 0, 1, 2 ... among the chosen of each row."""
    row = places.row[chosen]
    count = np.bincount(row, minlength=len(places.rows))
    return np.arange(len(chosen)) - (np.cumsum(count) - count)[row]


def table_of(ids: Sequence[int | None], vocab: int) -> np.ndarray:
    """(V,) bool: True at these ids; None among them is passed over."""
    table = np.zeros(vocab, bool)
    table[[i for i in ids if i is not None]] = True
    return table
