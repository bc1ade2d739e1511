"""What a model must beat to have learnt anything: token frequencies, and a Kneser-Ney bigram.

Kneser and Ney 1995, interpolated (Chen and Goodman 1999, section 3): a pair's count is lowered by a discount D, and
what is saved goes to the token's *continuation* probability, the number of different tokens it follows. D is
n1 / (n1 + 2 n2) from the numbers of pairs seen once and twice. The lowest level is discounted the same way into a
uniform distribution, so that every token has some probability.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from etude.text.corpus import Corpus

BLOCK = 1 << 22  # tokens read at once


def unigram_nats(train: Corpus, valid: Corpus) -> float:
    """Nats a token of the held-out text under the (add-one) frequencies of the training text."""
    counts = train.token_counts() + 1.0
    seen = valid.token_counts()
    return float(-(seen * np.log(counts / counts.sum())).sum() / seen.sum())


def bigram_nats(train: Corpus, valid: Corpus) -> float:
    """Nats a token, each from the one before it; the first of a document from a marker that stands before it."""
    vocab = train.tokenizer.vocab
    pairs, counts = _counted(train, vocab)
    left, right = pairs // (vocab + 1), pairs % (vocab + 1)
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    discount = once / max(1, once + 2 * twice) if once else 0.5
    total = np.bincount(left, weights=counts, minlength=vocab + 1)  # (V+1,) how often each stands on the left
    followers = np.bincount(left, minlength=vocab + 1)  # how many different ones follow it
    lower = _continuation(right, vocab)

    nats, tokens = 0.0, 0
    for first, second in _pairs(valid, vocab):
        code = first * (vocab + 1) + second
        place = np.minimum(np.searchsorted(pairs, code), len(pairs) - 1)
        count = np.where(pairs[place] == code, counts[place], 0)
        whole = total[first]
        with np.errstate(divide="ignore", invalid="ignore"):
            share = (np.maximum(count - discount, 0) + discount * followers[first] * lower[second]) / whole
        nats -= np.log(np.where(whole > 0, share, lower[second])).sum()
        tokens += len(code)
    return float(nats / tokens)


def _continuation(right: np.ndarray, vocab: int) -> np.ndarray:
    """(V+1,) the share of different pairs that end in each token, discounted into a uniform distribution."""
    kinds = np.bincount(right, minlength=vocab + 1).astype(np.float64)
    discount = 0.75  # the usual value where counts of counts are too few to estimate it
    saved = discount * (kinds > 0).sum()
    return (np.maximum(kinds - discount, 0) + saved / vocab) / kinds.sum()


def _counted(corpus: Corpus, vocab: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs as ascending numbers, and how often each occurs."""
    codes, counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for first, second in _pairs(corpus, vocab):
        new, seen = np.unique(first * (vocab + 1) + second, return_counts=True)
        codes, place = np.unique(np.concatenate([codes, new]), return_inverse=True)
        counts = np.bincount(place, weights=np.concatenate([counts, seen]), minlength=len(codes)).astype(np.int64)
    return codes, counts


def _pairs(corpus: Corpus, vocab: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(before, token) of every token, int64; `vocab` stands before the first of a document."""
    for start in range(0, corpus.total, BLOCK):
        stop = min(start + BLOCK, corpus.total)
        tokens = corpus.tokens(max(0, start - 1), stop).astype(np.int64)
        before = np.concatenate([[vocab], tokens[:-1]]) if start == 0 else tokens[:-1]
        tokens = tokens if start == 0 else tokens[1:]
        first = corpus.documents.find(start)
        last = corpus.documents.find(stop - 1)
        heads = corpus.documents.slice(first, last + 1) - start
        before = before.copy()
        before[heads[heads >= 0]] = vocab
        yield before, tokens
