"""What a model must beat to have learnt anything: token frequencies, and a Kneser-Ney bigram.

Kneser and Ney 1995, interpolated (Chen and Goodman 1999, section 3): a pair's count is lowered by a discount D, and
what is saved goes to the token's *continuation* probability, the number of different tokens it follows. D is
n1 / (n1 + 2 n2) from the numbers of pairs seen once and twice. The lowest level is discounted the same way into a
uniform distribution, so that every token has some probability.

A model may have to predict where documents or sentences end, too: with `ends`, a marker behind each is one more token,
scored and learnt as the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from etude.text.corpus.bounds import Bounds
from etude.text.corpus.corpus import Corpus

BLOCK = 1 << 22  # tokens read at once
Ends = Literal["documents", "sentences"]


def unigram_nats(train: Corpus, valid: Corpus, ends: Ends | None = None) -> float:
    """Nats a token of the held-out text under the (add-one) frequencies of the training text."""
    counts, seen = train.token_counts() + 1.0, valid.token_counts()
    if ends is not None:
        counts, seen = (
            np.append(of, len(_parts(corpus, ends)) + extra)
            for of, corpus, extra in ((counts, train, 1.0), (seen, valid, 0))
        )
    return float(-(seen * np.log(counts / counts.sum())).sum() / seen.sum())


def bigram_nats(train: Corpus, valid: Corpus, ends: Ends | None = None) -> float:
    """Nats a token, each from the one before it; the first of a document from a marker that stands before it.

    With `ends`, the first of each such part is read from a marker, which is scored behind the last.
    """
    vocab = train.tokenizer.vocab
    pairs, counts = _counted(train, vocab, ends)
    left, right = pairs // (vocab + 1), pairs % (vocab + 1)
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    discount = once / max(1, once + 2 * twice) if once else 0.5
    total = np.bincount(left, weights=counts, minlength=vocab + 1)  # (V+1,) how often each stands on the left
    followers = np.bincount(left, minlength=vocab + 1)  # how many different ones follow it
    lower = _continuation(right, vocab, vocab if ends is None else vocab + 1)

    nats, tokens = 0.0, 0
    for first, second in _pairs(valid, vocab, ends):
        code = first * (vocab + 1) + second
        place = np.minimum(np.searchsorted(pairs, code), len(pairs) - 1)
        count = np.where(pairs[place] == code, counts[place], 0)
        whole = total[first]
        with np.errstate(divide="ignore", invalid="ignore"):
            share = (np.maximum(count - discount, 0) + discount * followers[first] * lower[second]) / whole
        nats -= np.log(np.where(whole > 0, share, lower[second])).sum()
        tokens += len(code)
    return float(nats / tokens)


def _parts(corpus: Corpus, ends: Ends | None) -> Bounds:
    return corpus.sentences if ends == "sentences" else corpus.documents


def _continuation(right: np.ndarray, vocab: int, answers: int) -> np.ndarray:
    """(V+1,) the share of different pairs that end in each token, discounted into a uniform distribution."""
    kinds = np.bincount(right, minlength=vocab + 1).astype(np.float64)
    discount = 0.75  # the usual value where counts of counts are too few to estimate it
    saved = discount * (kinds > 0).sum()
    return (np.maximum(kinds - discount, 0) + saved / answers) / kinds.sum()


def _counted(corpus: Corpus, vocab: int, ends: Ends | None) -> tuple[np.ndarray, np.ndarray]:
    """Pairs as ascending numbers, and how often each occurs."""
    codes, counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for first, second in _pairs(corpus, vocab, ends):
        new, seen = np.unique(first * (vocab + 1) + second, return_counts=True)
        codes, place = np.unique(np.concatenate([codes, new]), return_inverse=True)
        counts = np.bincount(place, weights=np.concatenate([counts, seen]), minlength=len(codes)).astype(np.int64)
    return codes, counts


def _pairs(corpus: Corpus, vocab: int, ends: Ends | None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(before, token) of every token, int64; `vocab` stands before the first of a part, and with `ends` behind it."""
    parts = _parts(corpus, ends)
    for start in range(0, corpus.total, BLOCK):
        stop = min(start + BLOCK, corpus.total)
        tokens = corpus.tokens(max(0, start - 1), stop).astype(np.int64)
        before = np.concatenate([[vocab], tokens[:-1]]) if start == 0 else tokens[:-1]
        tokens = tokens if start == 0 else tokens[1:]
        begun = parts.slice(parts.find(start), parts.find(stop - 1) + 1) - start
        heads = begun[begun >= 0]
        last = before[heads[heads + start > 0]]  # of the parts that end where these begin
        before = before.copy()
        before[heads] = vocab
        if ends is not None:
            last = np.append(last, tokens[-1:]) if stop == corpus.total else last
            before = np.concatenate([before, last])
            tokens = np.concatenate([tokens, np.full(len(last), vocab)])
        yield before, tokens
