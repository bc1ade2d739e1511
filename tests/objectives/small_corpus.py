"""A corpus in memory with the interface of `etude.text.corpus.Corpus`, written in the slowest way."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

SPECIAL = SimpleNamespace(pad=0, unknown=1, start=2, separator=3, mask=4, end=5)


class SmallBounds:
    def __init__(self, lengths: list[int]) -> None:
        self.starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, part: int) -> int:
        return int(self.starts[part])

    def slice(self, first: int, last: int) -> np.ndarray:
        return self.starts[first:last].copy()

    def find(self, offset: int, extra: int = 0) -> int:
        return max(part for part in range(len(self)) if self.starts[part] + extra * part <= offset)


class SmallCorpus:
    def __init__(self, documents: list[list[list[int]]], vocab: int = 40) -> None:
        self.flat = np.array([token for document in documents for part in document for token in part], dtype=np.int32)
        self.total, self.vocab = len(self.flat), vocab
        self.documents = SmallBounds([sum(map(len, document)) for document in documents])
        self.sentences = SmallBounds([len(part) for document in documents for part in document])

    def tokens(self, start: int, stop: int) -> np.ndarray:
        return self.flat[start:stop].copy()

    def token_counts(self) -> np.ndarray:
        return np.bincount(self.flat, minlength=self.vocab).astype(np.int64)
