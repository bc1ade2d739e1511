"""Rows of pairs: every pair once an epoch, whole, within the size of a row; a function of the number alone."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from etude.errors import UserError
from etude.objectives.rows.pairs import PairRows, row_size
from etude.text.corpus.corpus import Corpus
from tests.objectives.small_corpus import tokenizer

END = 5


def corpus_of(count: int, longest: int = 12, seed: int = 0) -> Corpus:
    """Pairs of random lengths, each with a number of its own in it."""
    draw = np.random.default_rng(seed)
    pairs = []
    for number in range(count):
        source, target = (draw.integers(10, 100, draw.integers(1, longest)).tolist() for _ in range(2))
        pairs.append([[100 + number, *source[1:]], target])
    return Corpus.from_documents(pairs, tokenizer(400))


def contents(rows: PairRows, epoch: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    pairs = []
    for number in range(len(rows)):
        row = rows[epoch * len(rows) + number]
        sides = [tuple(row.tokens[a:b].tolist()) for a, b in zip(row.bounds[:-1], row.bounds[1:], strict=True)]
        assert len(sides) % 2 == 0 and sides and len(row.tokens) <= (rows.row_tokens or 0)
        assert all(side[-1] == END for side in sides)
        pairs += [(source[:-1], target[:-1]) for source, target in zip(sides[::2], sides[1::2], strict=True)]
    return pairs


@pytest.mark.parametrize("bucketed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 7, 50, 200])
def test_every_epoch_holds_every_pair_once_in_another_order(count: int, bucketed: bool) -> None:
    corpus = corpus_of(count)
    rows = PairRows(corpus, seed=3, row_tokens=80, length=13, end=END, bucketed=bucketed)
    bounds = list(corpus.sentences)
    expected = Counter(
        (
            tuple(corpus.tokens(bounds[2 * i], bounds[2 * i + 1])),
            tuple(corpus.tokens(bounds[2 * i + 1], bounds[2 * i + 2])),
        )
        for i in range(count)
    )
    first, second = contents(rows, 0), contents(rows, 1)
    assert Counter(first) == Counter(second) == expected
    assert count < 7 or first != second


def test_rows_of_like_lengths_waste_few_steps() -> None:
    corpus = corpus_of(290)
    steps = []
    for bucketed in (False, True):
        rows = PairRows(corpus, 3, 120, 13, END, bucketed)
        targets = [np.diff(rows[number].bounds)[1::2] for number in range(len(rows))]
        steps.append(sum(int(lengths.max()) for lengths in targets))
        assert not bucketed or np.mean([np.ptp(lengths) for lengths in targets]) < 1
    assert steps[1] < 0.75 * steps[0]


def test_rows_are_functions_of_their_number() -> None:
    corpus = corpus_of(60)
    rows, again = (PairRows(corpus, 3, 80, 13, END) for _ in range(2))
    late = again[2 * len(again) + 1]
    for number in (0, len(rows), 2 * len(rows) + 1, 1):
        row = rows[number]
    row = rows[2 * len(rows) + 1]
    assert np.array_equal(row.tokens, late.tokens) and np.array_equal(row.bounds, late.bounds)
    assert not np.array_equal(PairRows(corpus, 4, 80, 13, END)[0].tokens, rows[0].tokens)


def test_rows_are_well_filled() -> None:
    rows = PairRows(corpus_of(200), 0, 400, 13, END)
    used = sum(len(rows[number].tokens) for number in range(len(rows)))
    assert used / (len(rows) * 400) > 0.85


def test_long_pairs_are_left_out_and_counted() -> None:
    corpus = corpus_of(100)
    rows = PairRows(corpus, 0, 80, 6, END)
    sizes = np.diff(list(corpus.sentences)).reshape(-1, 2)
    assert rows.left_out == int((sizes.max(1) > 5).sum()) > 0
    assert len(contents(rows, 0)) == 100 - rows.left_out
    with pytest.raises(UserError, match="has no pair whose sides have at most 1 tokens"):
        PairRows(corpus, 0, 80, 1, END)


def test_plain_text_is_refused() -> None:
    corpus = corpus_of(5)
    corpus.manifest["settings"] = {"reading": {"pairs": None}}
    with pytest.raises(UserError, match="translation needs pairs"):
        PairRows(corpus, 0, 80, 13, END)


def test_sizes_of_rows() -> None:
    assert row_size(None, 10) == 1024 and row_size(None, 512) == 3072 and row_size(60, 10) == 60
    with pytest.raises(UserError, match="set it to 60 or more"):
        row_size(59, 10)
