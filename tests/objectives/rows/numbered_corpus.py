"""A corpus whose tokens tell where they stood, and the sequences of a row: what the tests of segments share."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

from etude.objectives.rows.segments import Rules, SegmentRow
from etude.text.corpus.corpus import Corpus
from tests.objectives.small_corpus import tokenizer

CLS, SEP = 2, 3
VOCAB = 20_000
Document = list[list[int]]


def rules(length: int = 32, times: int = 8, **changes: Any) -> Rules:
    return replace(Rules(length=length, row_tokens=times * length, markers=(CLS, SEP)), **changes)


def corpus_of(documents: list[Document], words: list[list[list[bool]]] | None = None) -> Corpus:
    return Corpus.from_documents(documents, tokenizer(VOCAB), words)


class Numbered:
    """A corpus whose tokens are all different, so that each tells where it stood."""

    def __init__(self, sizes: list[list[int]]) -> None:
        ids = iter(range(6, VOCAB))
        self.documents = [[[next(ids) for _ in range(size)] for size in sentences] for sentences in sizes]
        self.corpus = corpus_of(self.documents)
        self.document, self.sentence, self.first, self.last = {}, {}, set(), set()
        number = 0
        for place, document in enumerate(self.documents):
            for sentence in document:
                self.first.add(sentence[0])
                self.last.add(sentence[-1])
                for token in sentence:
                    self.document[token], self.sentence[token] = place, number
                number += 1


def sequences(row: SegmentRow) -> Iterator[tuple[list[int], list[int], int]]:
    """A, B and label of each sequence, markers checked and taken off."""
    assert row.bounds[0] == 0 and row.bounds[-1] == len(row.tokens)
    assert len(row.labels) == len(row.bounds) - 1 <= row.most
    for (start, stop), label in zip(pairwise(row.bounds.tolist()), row.labels.tolist(), strict=True):
        tokens = row.tokens[start:stop].tolist()
        kinds = [0] * len(tokens) if row.segments is None else row.segments[start:stop].tolist()
        assert tokens[0] == CLS
        if len(tokens) == 1:  # no room for more
            yield [], [], label
            continue
        assert tokens[-1] == SEP
        middle = tokens.index(SEP)
        assert kinds == [0] * (middle + 1) + [1] * (len(tokens) - middle - 1)
        assert not {CLS, SEP} & set(tokens[1:middle] + tokens[middle + 1 : -1])
        yield tokens[1:middle], tokens[middle + 1 : -1], label


def text(seed: int = 0, documents: int = 40, sentences: int = 12, tokens: int = 14) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randint(1, tokens) for _ in range(draw.randint(1, sentences))] for _ in range(documents)]
