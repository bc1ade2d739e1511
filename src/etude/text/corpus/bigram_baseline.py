"""Baselines of language models: the unigram distribution and an interpolated Kneser-Ney bigram.

A model must beat both to have learnt anything. Kneser and Ney 1995, interpolated (Chen and Goodman 1999, section 3): a
pair's count is lowered by a discount D, and the mass saved goes to the token's *continuation* probability, in
proportion to the number of different tokens it follows. D is n1 / (n1 + 2 n2) from the numbers of pairs seen once and
twice. The lowest level is discounted the same way into a uniform distribution, so that every token has some
probability.

A model may have to predict where documents or sentences end, too: with `ends`, a marker behind each is one more token,
counted and scored as the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from etude.text.corpus.bounds import Bounds
from etude.text.corpus.corpus import Corpus

BLOCK = 1 << 22  # tokens read at once
Ends = Literal["documents", "sentences"]


def unigram_entropy(counts: np.ndarray) -> float:
    """Return the entropy of the unigram distribution, in nats a token: the loss of the best model without context."""
    share = counts[counts > 0] / max(1, counts.sum())
    return float(-(share * np.log(share)).sum())


def unigram_nats(train: Corpus, valid: Corpus, ends: Ends | None = None) -> float:
    """Return the cross-entropy of held-out text, in nats a token, under (add-one) training frequencies."""
    train_counts, valid_counts = train.token_counts() + 1.0, valid.token_counts()
    if ends is not None:
        train_counts = np.append(train_counts, len(_list_units(train, ends)) + 1.0)
        valid_counts = np.append(valid_counts, len(_list_units(valid, ends)))
    return float(-(valid_counts * np.log(train_counts / train_counts.sum())).sum() / valid_counts.sum())


def bigram_nats(train: Corpus, valid: Corpus, ends: Ends | None = None) -> float:
    """Return the cross-entropy of held-out text, in nats a token, under a Kneser-Ney bigram.

    The first token of a document is predicted from a marker before it. With `ends`, so is the first of each such unit,
    and the marker behind the last one is scored too.
    """
    vocab = train.tokenizer.vocab
    pairs, counts = _count_pairs(train, vocab, ends)
    left, right = pairs // (vocab + 1), pairs % (vocab + 1)
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    discount = once / max(1, once + 2 * twice) if once else 0.5
    total = np.bincount(left, weights=counts, minlength=vocab + 1)  # (V+1,) how often each token is the left one
    followers = np.bincount(left, minlength=vocab + 1)  # (V+1,) how many different tokens follow it
    lower = _continuation_probs(right, vocab, vocab if ends is None else vocab + 1)

    nats, tokens = 0.0, 0
    for first, second in _iterate_pairs(valid, vocab, ends):
        code = first * (vocab + 1) + second
        index = np.minimum(np.searchsorted(pairs, code), len(pairs) - 1)
        count = np.where(pairs[index] == code, counts[index], 0)
        left_total = total[first]
        with np.errstate(divide="ignore", invalid="ignore"):
            prob = (np.maximum(count - discount, 0) + discount * followers[first] * lower[second]) / left_total
        nats -= np.log(np.where(left_total > 0, prob, lower[second])).sum()
        tokens += len(code)
    return float(nats / tokens)


def _list_units(corpus: Corpus, ends: Ends | None) -> Bounds:
    return corpus.sentences if ends == "sentences" else corpus.documents


def _continuation_probs(right: np.ndarray, vocab: int, outcomes: int) -> np.ndarray:
    """Return the continuation probability of each token, (V+1,).

    It is the share of distinct pairs that end in the token, discounted into a uniform distribution.
    """
    histories = np.bincount(right, minlength=vocab + 1).astype(np.float64)
    discount = 0.75  # the usual value where counts of counts are too few to estimate it
    saved_mass = discount * (histories > 0).sum()
    return (np.maximum(histories - discount, 0) + saved_mass / outcomes) / histories.sum()


def _count_pairs(corpus: Corpus, vocab: int, ends: Ends | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the codes of pairs, ascending, and how often each occurs."""
    codes, counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for first, second in _iterate_pairs(corpus, vocab, ends):
        new, seen = np.unique(first * (vocab + 1) + second, return_counts=True)
        codes, index = np.unique(np.concatenate([codes, new]), return_inverse=True)
        counts = np.bincount(index, weights=np.concatenate([counts, seen]), minlength=len(codes)).astype(np.int64)
    return codes, counts


def _iterate_pairs(corpus: Corpus, vocab: int, ends: Ends | None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (previous token, token), int64.

    `vocab` precedes the first token of a unit, and with `ends` follows its last.
    """
    units = _list_units(corpus, ends)
    for start in range(0, corpus.total, BLOCK):
        stop = min(start + BLOCK, corpus.total)
        tokens = corpus.tokens(max(0, start - 1), stop).astype(np.int64)
        before = np.concatenate([[vocab], tokens[:-1]]) if start == 0 else tokens[:-1]
        tokens = tokens if start == 0 else tokens[1:]
        unit_starts = units.slice(units.find(start), units.find(stop - 1) + 1) - start
        firsts = unit_starts[unit_starts >= 0]
        last = before[firsts[firsts + start > 0]]  # tokens of the units that end where these begin
        before = before.copy()
        before[firsts] = vocab
        if ends is not None:
            last = np.append(last, tokens[-1:]) if stop == corpus.total else last
            before = np.concatenate([before, last])
            tokens = np.concatenate([tokens, np.full(len(last), vocab)])
        yield before, tokens
