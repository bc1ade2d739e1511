"""Many places in a corpus that move on by whole sentences, and the draws that say how: a row has some of the former.

The rows of a step are built together, the k-th sequence of all of them at once (`segments.py`). So everything here is
an array, over walks or over rows, and `walks` or `rows` are always those that are asked about. What one of them meets
or draws does not depend on the others: it is the same alone. Letters: R walks, W places of a window.
"""

from __future__ import annotations

import numpy as np

from etude import chance
from etude.text.corpus.bounds import Bounds
from etude.text.corpus.corpus import Corpus

ALL = np.uint64((1 << 64) - 1)
LOW = np.uint64((1 << 32) - 1)


class Draws:
    """The endless draws of each row, in its own order (SplitMix64), made ahead in blocks."""

    block = 64

    def __init__(self, keys: np.ndarray) -> None:
        self.keys, self.used = keys[:, None], np.zeros(len(keys), np.int64)
        self.buffer, self.requested = (
            np.zeros((len(keys), 0), np.uint64),
            0,
        )  # no row has taken more than were asked for

    def bits(self, rows: np.ndarray) -> np.ndarray:
        if self.requested == (size := self.buffer.shape[1]):
            more = chance.random_bits(self.keys, np.arange(size, size + max(size, self.block)))
            self.buffer = np.concatenate([self.buffer, more], 1)
        used = self.used[rows]
        self.requested += 1
        self.used[rows] = used + 1
        return self.buffer[rows, used]

    def coin(self, rows: np.ndarray, share: float) -> np.ndarray:
        return (self.bits(rows) >> np.uint64(11)) < share * 2.0**53

    def below(self, rows: np.ndarray, limit: np.ndarray | int) -> np.ndarray:
        """int64 in [0, limit), limit < 2^32."""
        return high_product(self.bits(rows), np.asarray(limit).astype(np.uint64))

    def heads(self, rows: np.ndarray, coins: np.ndarray) -> np.ndarray:
        """How many of so many fair coins show heads."""
        heads, remaining = np.zeros(len(rows), np.int64), coins
        while len(active := np.flatnonzero(remaining > 0)):
            unused = (64 - np.minimum(remaining[active], 64)).astype(np.uint64)
            heads[active] += ones(self.bits(rows[active]) & (ALL >> unused))
            remaining = remaining - 64
        return heads


def high_product(bits: np.ndarray, limit: np.ndarray | np.uint64) -> np.ndarray:
    """(bits * limit) >> 64 without numbers of 128 bits; limit < 2^32."""
    low = ((bits & LOW) * limit) >> np.uint64(32)
    return (((bits >> np.uint64(32)) * limit + low) >> np.uint64(32)).astype(np.int64)


def ones(bits: np.ndarray) -> np.ndarray:
    """The ones among 64 bits."""
    return np.unpackbits(bits[:, None].view(np.uint8), axis=1).sum(1, dtype=np.int64)


class Walks:
    """Places in the corpus, each at the start of a sentence.

    Offsets go on behind the end of the corpus, where it begins anew: offset `total` is its first token again. A walk
    passes at most `reach` sentences, so that a window holds all it can meet.
    """

    def __init__(self, corpus: Corpus, offsets: np.ndarray, reach: int) -> None:
        self.total, count = corpus.total, len(corpus.documents)
        first = corpus.sentences.find_all(offsets)
        self.starts = _windows(corpus.sentences, first, reach + 2, self.total)  # (R, W) of sentences
        around, last = np.divmod(self.starts[:, -1], self.total)
        low = corpus.documents.find_all(self.starts[:, 0])
        wide = int((corpus.documents.find_all(last) + around * count - low).max()) + 2
        starts = _windows(corpus.documents, low, wide, self.total)  # of documents
        self.names = (low[:, None] + np.arange(wide)) % count  # (R, W) the number of each document
        # all windows as one ascending list, each moved on by more than any of them holds: one search for all rows
        self.stride = int(max(self.starts.max(), starts.max())) + reach + 2
        shifts = np.arange(len(offsets))[:, None] * self.stride
        self.sentences, self.documents = (self.starts + shifts).ravel(), (starts + shifts).ravel()
        self.ends = np.append(starts.ravel()[1:], 0)
        self.starts = self.starts.ravel()
        self.sentence = np.arange(len(offsets)) * (reach + 2)  # (R,) the sentence of each, in the flat windows
        self.read = np.zeros(len(offsets), np.int64)  # (R,) tokens behind each

    def document(self, walks: np.ndarray) -> np.ndarray:
        """The document each stands in: its place in the flat windows, for `ends` and `names`."""
        places = self.starts[self.sentence[walks]] + walks * self.stride
        return np.searchsorted(self.documents, places, side="right") - 1

    def find(self, walks: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """The first sentence of each that begins at an offset or behind it."""
        return np.searchsorted(self.sentences, offsets + walks * self.stride)

    def move(self, walks: np.ndarray, sentences: np.ndarray) -> None:
        self.read[walks] += self.starts[sentences] - self.starts[self.sentence[walks]]
        self.sentence[walks] = sentences

    def plain(self, walks: np.ndarray, size: np.ndarray) -> np.ndarray:
        """Offsets of so many tokens from here on, across sentences and documents; the walks move on behind them."""
        offsets = self.starts[self.sentence[walks]]
        self.read[walks] += size
        self.sentence[walks] = self.find(walks, offsets + size)
        return offsets


def _windows(bounds: Bounds, first: np.ndarray, wide: int, total: int) -> np.ndarray:
    """(R, wide) starts of parts from each first one on, and around the end of the corpus."""
    windows, parts = np.empty((len(first), wide), np.int64), len(bounds)
    for row, part in zip(windows, first.tolist(), strict=True):
        filled = 0
        while filled < wide:
            around, start = divmod(part + filled, parts)
            starts = bounds.slice(start, min(parts, start + wide - filled))
            row[filled : filled + len(starts)] = starts + around * total if around else starts
            filled += len(starts)
    return windows
