"""Sequences of segments against BERT's, ALBERT's and ELECTRA's own construction, one token at a time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from etude.objectives.rows.segments import Rules, SegmentRows
from tests.objectives.rows.numbered_corpus import Document, corpus_of, rules, sequences, text


def slow_pass(
    documents: list[Document], rules: Rules, draw: random.Random
) -> Iterator[tuple[list[int], list[int], int]]:
    """All sequences of one pass over the corpus, by the published algorithm."""
    most = rules.length - 3
    for number, document in enumerate(documents):
        target = draw.randint(2, most) if draw.random() < rules.short_rate else most
        place, chunk = 0, []
        while place < len(document):
            chunk.append(document[place])
            if place == len(document) - 1 or sum(map(len, chunk)) >= target:
                cut = draw.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
                first = [token for sentence in chunk[:cut] for token in sentence]
                second = [token for sentence in chunk[cut:] for token in sentence]
                label = 0
                if len(chunk) == 1 or (rules.sentence == "next" and draw.random() < 0.5):
                    label, second = 1, []
                    for _ in range(10):
                        other = draw.randint(0, len(documents) - 1)
                        if other != number:
                            break
                    for sentence in documents[other][draw.randint(0, len(documents[other]) - 1) :]:
                        second += sentence
                        if len(second) >= target - len(first):
                            break
                    place -= len(chunk) - cut
                elif rules.sentence == "order" and draw.random() < 0.5:
                    first, second, label = second, first, 1
                first, second = list(first), list(second)
                while len(first) + len(second) > most:
                    longer = first if len(first) > len(second) else second
                    longer.pop(0 if draw.random() < 0.5 else -1)
                yield first, second, label
                chunk = []
            place += 1


def marked(sizes: list[list[int]]) -> list[Document]:
    """Sentences that show their ends: 6 first, 7 last, 8 between, 9 alone."""
    return [[[9] if size == 1 else [6, *[8] * (size - 2), 7] for size in document] for document in sizes]


def statistics(made: list[tuple[list[int], list[int], int]], full: int) -> dict[str, float]:
    """Means over the sequences of one pass."""
    first = np.array([len(a) for a, _, _ in made])
    second = np.array([len(b) for _, b, _ in made])
    label = np.array([label for _, _, label in made])
    size = first + second
    return {
        "label": label.mean(),
        "label of short ones": label[size < full].mean(),
        "tokens of A": first.mean(),
        "tokens of B": second.mean(),
        "tokens": size.mean(),
        "tokens, squared": (size**2).mean(),
        "A times B": (first * second).mean(),
        "full": (size == full).mean(),
        "below a half": (size < full / 2).mean(),
        "tokens where label is 1": size[label == 1].mean(),
        "A where label is 1": first[label == 1].mean(),
        "A begins a sentence": np.mean([a[0] in (6, 9) for a, _, _ in made]),
        "A ends a sentence": np.mean([a[-1] in (7, 9) for a, _, _ in made]),
        "B begins a sentence": np.mean([b[0] in (6, 9) for _, b, _ in made]),
        "B ends a sentence": np.mean([b[-1] in (7, 9) for _, b, _ in made]),
    }


def compare(sentence: Any, documents: int, passes: int, length: int = 48) -> int:
    """Both ways over the same text, within 3 standard errors from pass to pass. Returns the sequences seen."""
    made = marked(text(seed=4, documents=documents))
    corpus = corpus_of(made)
    # one row a pass: what happens at the ends of a row is lost among its sequences
    wanted = rules(length, times=max(1, corpus.total // length), sentence=sentence)
    rows = SegmentRows(corpus, 5, wanted)
    draw, fast, slow, seen = random.Random(6), [], [], 0
    for number in range(passes):
        row = list(sequences(rows[number * len(rows)]))[:-1]
        seen += len(row)
        fast.append(statistics(row, length - 3))
        slow.append(statistics(list(slow_pass(made, wanted, draw)), length - 3))
    for name in fast[0]:
        a, b = (np.array([counts[name] for counts in side]) for side in (fast, slow))
        error = np.sqrt((a.var(ddof=1) + b.var(ddof=1)) / passes)
        assert abs(a.mean() - b.mean()) <= 3 * error, (name, a.mean(), b.mean(), error)
    return seen


@pytest.mark.parametrize("sentence", ["next", "order"])
def test_sequences_equal_the_slow_algorithm(sentence: str) -> None:
    assert compare(sentence, documents=100, passes=24) > 2500


@pytest.mark.slow
@pytest.mark.parametrize("sentence", ["next", "order"])
def test_sequences_equal_the_slow_algorithm_over_100k_sequences(sentence: str) -> None:
    assert compare(sentence, documents=1500, passes=50) > 100_000
