"""The cloze baseline against its formulas written out, and what it is worth on text with a rule."""

from __future__ import annotations

import json
import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from etude.text.corpus import cloze_baseline
from etude.text.corpus.bigram_baseline import bigram_nats, unigram_nats
from etude.text.corpus.cloze_baseline import ClozeModel, cloze_nats
from etude.text.corpus.corpus import Corpus
from etude.text.tokenizer.tokenizer import Tokenizer

VOCAB = 7


def tokenizer(vocab: int = VOCAB) -> Tokenizer:
    words = {"[UNK]": 0} | {f"w{number}": number for number in range(1, vocab)}
    return Tokenizer(json.dumps({"model": {"type": "WordLevel", "vocab": words, "unk_token": "[UNK]"}}))


def corpus(documents: list[list[int]], vocab: int = VOCAB) -> Corpus:
    return Corpus.from_documents([[document] for document in documents], tokenizer(vocab))


def drawn(count: int, seed: int) -> list[list[int]]:
    draw = np.random.default_rng(seed)
    return [
        draw.choice(VOCAB - 1, draw.integers(1, 9), p=[0.4, 0.3, 0.15, 0.1, 0.04, 0.01]).tolist() for _ in range(count)
    ]


def by_hand(documents: list[list[int]], left: int, right: int) -> list[float]:
    """P(x | left, right) of every x, from dictionaries of counts."""
    marker, symbols = VOCAB, range(VOCAB + 1)
    texts = [[marker, *document, marker] for document in documents]
    pairs = Counter((a, b) for text in texts for a, b in pairwise(text))
    triples = Counter(
        (text[place - 1], text[place], text[place + 1]) for text in texts for place in range(1, len(text) - 1)
    )

    def discount(counts: Counter) -> float:
        once, twice = (sum(count == wanted for count in counts.values()) for wanted in (1, 2))
        return once / (once + 2 * twice)

    kinds = {b: len({a for a, follower in pairs if follower == b}) for b in symbols}
    saved = sum(min(0.75, kinds[b]) for b in symbols)
    lower = {b: (max(kinds[b] - 0.75, 0) + saved / len(symbols)) / len(pairs) for b in symbols}

    def bigram(a: int, b: int) -> float:
        whole = sum(count for (first, _), count in pairs.items() if first == a)
        if not whole:
            return lower[b]
        followers = sum(first == a for first, _ in pairs)
        return (max(pairs[a, b] - discount(pairs), 0) + discount(pairs) * followers * lower[b]) / whole

    posterior = [bigram(left, x) * bigram(x, right) for x in range(VOCAB)]
    posterior = [prob / sum(posterior) for prob in posterior]
    whole = sum(triples[left, x, right] for x in range(VOCAB))
    if not whole:
        return posterior
    between = sum(triples[left, x, right] > 0 for x in range(VOCAB))
    cut = discount(triples)
    return [(max(triples[left, x, right] - cut, 0) + cut * between * posterior[x]) / whole for x in range(VOCAB)]


@pytest.mark.parametrize("pairs", [1, 5, 1 << 22])
def test_every_probability_is_that_of_the_formulas_and_they_sum_to_one(
    pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloze_baseline, "PAIRS_PER_BLOCK", pairs)
    monkeypatch.setattr(cloze_baseline, "DOCUMENTS_PER_BLOCK", 7)
    documents = drawn(40, 0)
    model = ClozeModel(corpus(documents))
    for left in range(VOCAB + 1):
        for right in range(VOCAB + 1):
            given = [np.full(VOCAB, left), np.arange(VOCAB), np.full(VOCAB, right)]
            probs = model.prob(*given)
            np.testing.assert_allclose(probs, by_hand(documents, left, right), rtol=1e-10)
            assert math.isclose(probs.sum(), 1.0, rel_tol=1e-10)
            assert (probs > 0).all()  # also of the token that was never seen


def test_nats_are_the_mean_over_the_text() -> None:
    documents, held = drawn(60, 1), drawn(10, 2)
    expected = [
        -math.log(by_hand(documents, *(([VOCAB, *text, VOCAB])[place : place + 3 : 2]))[token])
        for text in held
        for place, token in enumerate(text)
    ]
    nats = cloze_nats(corpus(documents), corpus(held))
    assert nats == pytest.approx(sum(expected) / len(expected), rel=1e-10)
    assert cloze_nats(corpus(documents), corpus(held), tokens=5) == pytest.approx(sum(expected[:5]) / 5, rel=1e-10)


def test_two_neighbours_say_what_one_does_not() -> None:
    """The middle of three is the sum of its neighbours, which are random."""
    draw = np.random.default_rng(0)

    def texts(count: int) -> list[list[int]]:
        pairs = draw.integers(1, 6, (count, 2))
        return [[int(a), int((a + b) % 5 + 6), int(b)] for a, b in pairs]

    train, valid = corpus(texts(2000), 12), corpus(texts(200), 12)
    assert cloze_nats(train, valid) < 0.75 * bigram_nats(train, valid) < unigram_nats(train, valid)
