"""The bigram is a proper distribution and equals its definition, computed pair by pair."""

from __future__ import annotations

import json
import math
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from etude.text.corpus import bigram_baseline
from etude.text.corpus.corpus import Corpus
from etude.text.tokenizer.tokenizer import Tokenizer


def corpus_of(documents: list[list[list[int]]], vocab: int = 9) -> Corpus:
    words = {f"w{i}": i for i in range(vocab)}
    content = {
        "version": "1.0",
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "w0"},
    }
    return Corpus.from_documents(documents, Tokenizer(json.dumps(content)))


def random_documents(seed: int, count: int) -> list[list[list[int]]]:
    draw = np.random.default_rng(seed)
    return [
        [draw.integers(0, 8, draw.integers(1, 6)).tolist() for _ in range(draw.integers(1, 4))] for _ in range(count)
    ]


def plain_bigram(train: list[list[list[int]]], valid: list[list[list[int]]], vocab: int, ends: str | None) -> float:
    def pairs(documents: list[list[list[int]]]) -> list[tuple[int, int]]:
        parts = [[token for part in document for token in part] for document in documents]
        if ends == "sentences":
            parts = [part for document in documents for part in document]
        flat = [[vocab, *part, *([vocab] if ends else [])] for part in parts]
        return [pair for tokens in flat for pair in pairwise(tokens)]

    answers = vocab + (ends is not None)

    counts = Counter(pairs(train))
    once, twice = (sum(count == n for count in counts.values()) for n in (1, 2))
    discount = once / (once + 2 * twice)
    kinds = Counter(b for _, b in counts)

    def lower(b: int) -> float:
        return (max(kinds[b] - 0.75, 0) + 0.75 * len(kinds) / answers) / sum(kinds.values())

    nats = 0.0
    for a, b in pairs(valid):
        total = sum(count for (x, _), count in counts.items() if x == a)
        followers = sum(x == a for x, _ in counts)
        if total:
            share = (max(counts[a, b] - discount, 0) + discount * followers * lower(b)) / total
        else:
            share = lower(b)
        nats -= math.log(share)
    return nats / len(pairs(valid))


@pytest.mark.parametrize("ends", [None, "documents", "sentences"])
@pytest.mark.parametrize("block", [7, 1 << 22])
def test_the_bigram_equals_its_definition(monkeypatch: pytest.MonkeyPatch, block: int, ends: Any) -> None:
    monkeypatch.setattr(bigram_baseline, "BLOCK", block)
    train, valid = random_documents(0, 60), random_documents(1, 20)
    nats = bigram_baseline.bigram_nats(corpus_of(train), corpus_of(valid), ends)
    assert nats == pytest.approx(plain_bigram(train, valid, 9, ends), rel=1e-9)


def test_a_pattern_is_found_and_noise_is_not() -> None:
    pattern = [[[1, 2, 3, 4] * 10] for _ in range(20)]
    assert bigram_baseline.bigram_nats(corpus_of(pattern), corpus_of(pattern)) < 0.1
    noise = random_documents(2, 400)
    assert bigram_baseline.bigram_nats(corpus_of(noise), corpus_of(random_documents(3, 50))) == pytest.approx(
        math.log(8), abs=0.1
    )


def test_the_unigram_is_the_entropy_on_its_own_text() -> None:
    corpus = corpus_of(random_documents(4, 3000))
    share = corpus.token_counts() / corpus.total
    entropy = -(share[share > 0] * np.log(share[share > 0])).sum()
    assert bigram_baseline.unigram_nats(corpus, corpus) == pytest.approx(entropy, abs=1e-3)
    for ends, parts in (("documents", len(corpus.documents)), ("sentences", len(corpus.sentences))):
        share = np.append(corpus.token_counts(), parts) / (corpus.total + parts)
        entropy = -(share[share > 0] * np.log(share[share > 0])).sum()
        assert bigram_baseline.unigram_nats(corpus, corpus, ends) == pytest.approx(entropy, abs=1e-3)  # type: ignore[arg-type]
