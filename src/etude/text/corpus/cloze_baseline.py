"""A baseline of cloze models: a token from its two neighbours alone, p(x | left, right).

Two estimates, interpolated. A Kneser-Ney bigram (bigram_baseline.py) gives the lower one by Bayes' rule,

    q(x | l, r) = p(x | l) p(r | x) / sum over y of p(y | l) p(r | y)

which is exact for text that is a Markov chain. The higher one has the counts of the triples themselves, with an
absolute discount D whose mass goes to q (Chen and Goodman 1999, section 3):

    P(x | l, r) = max(c(l, x, r) - D, 0) / c(l, r) + D * kinds(l, r) / c(l, r) * q(x | l, r)

c(l, r) counts the tokens seen between l and r, kinds(l, r) the different ones. A marker stands before and behind
every document; it is a neighbour and never the answer. The sum over y is taken over pairs that were seen: the rest of
a Kneser-Ney estimate is a product of vectors.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from etude.text.corpus.corpus import Corpus

DOCUMENTS_PER_BLOCK = 4096  # read at once
PAIRS_PER_BLOCK = 1 << 22  # pairs looked up at once


class ClozeModel:
    """Counts of a training text, and the probability of a token between two others."""

    def __init__(self, train: Corpus) -> None:
        self.marker = train.tokenizer.vocab  # one more than the tokens
        self.size = self.marker + 1
        pairs = _NgramCounts()
        triples = _NgramCounts()
        for text in _iterate_documents(train, self.marker):
            pairs.add(text[:-1] * self.size + text[1:])
            left, token, right = _split_contexts(text, self.marker)
            triples.add((left * self.size + token) * self.size + right)
        self.pairs, self.probs, self.backoff, self.lower = self._build_bigram(pairs)
        order = np.argsort(self.pairs % self.size, kind="stable")  # the same pairs by their right token
        self.by_right = order
        self.right_starts = np.searchsorted(self.pairs[order] % self.size, np.arange(self.size + 1))
        self.left_starts = np.searchsorted(self.pairs // self.size, np.arange(self.size + 1))
        self._count_triples(triples)
        self._build_vectors()

    def _build_bigram(self, ngrams: _NgramCounts) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return codes of pairs, their discounted probs, the mass each left token saves, and where it goes."""
        codes, counts = ngrams.codes, ngrams.counts
        left, right = codes // self.size, codes % self.size
        discount = ngrams.discount()
        total = np.bincount(left, weights=counts, minlength=self.size)
        followers = np.bincount(left, minlength=self.size)
        kinds = np.bincount(right, minlength=self.size).astype(np.float64)
        discounted = np.maximum(kinds - 0.75, 0)  # the usual value where counts of counts are too few to estimate it
        lower = (discounted + (kinds.sum() - discounted.sum()) / self.size) / kinds.sum()
        saved = np.divide(discount * followers, total, out=np.ones(self.size), where=total > 0)
        return codes, (counts - discount) / total[left], saved, lower

    def _count_triples(self, ngrams: _NgramCounts) -> None:
        self.triples, self.counts, self.discount = ngrams.codes, ngrams.counts, ngrams.discount()
        contexts = self.triples // self.size**2 * self.size + self.triples % self.size
        self.contexts, place = np.unique(contexts, return_inverse=True)
        self.context_counts = np.bincount(place, weights=self.counts)  # (contexts,) c(l, r)
        self.context_types = np.bincount(place)

    def _build_vectors(self) -> None:
        """Build the terms of the sum over y that are no sum over pairs; the marker is no y."""
        left, right = self.pairs // self.size, self.pairs % self.size
        answer = np.arange(self.size) != self.marker
        weights = self.probs * answer[right]
        self.right_backoff = np.bincount(left, weights=weights * self.backoff[right], minlength=self.size)
        self.left_backoff = np.bincount(right, weights=self.probs * (answer * self.lower)[left], minlength=self.size)
        self.both_backoff = float((answer * self.lower * self.backoff).sum())

    # --- probabilities ------------------------------------------------------------------------------

    def prob(self, left: np.ndarray, token: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Return P(token | left, right) of each, float64."""
        contexts = left * self.size + right
        unique, place = np.unique(contexts, return_inverse=True)
        whole = self._sum_over_middle(unique // self.size, unique % self.size)[place]
        lower = self._bigram_prob(left, token) * self._bigram_prob(token, right) / whole
        count = _look_up(self.triples, self.counts, (left * self.size + token) * self.size + right)
        seen = _look_up(self.contexts, self.context_counts, contexts)
        kinds = _look_up(self.contexts, self.context_types, contexts)
        with np.errstate(divide="ignore", invalid="ignore"):
            higher = (np.maximum(count - self.discount, 0) + self.discount * kinds * lower) / seen
        return np.where(seen > 0, higher, lower)

    def _bigram_prob(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        return _look_up(self.pairs, self.probs, left * self.size + right) + self.backoff[left] * self.lower[right]

    def _sum_over_middle(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Return the sum over y of p(y | left) p(right | y)."""
        smoothed = self.right_backoff[left] * self.lower[right] + self.backoff[left] * (
            self.left_backoff[right] + self.lower[right] * self.both_backoff
        )
        return smoothed + self._sum_over_seen(left, right)

    def _sum_over_seen(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Return the same sum over the y seen behind `left` and before `right`.

        Of the two lists the shorter is read.
        """
        behind = self.left_starts[left + 1] - self.left_starts[left]
        before = self.right_starts[right + 1] - self.right_starts[right]
        total = np.zeros(len(left))
        for forward in (True, False):
            chosen = np.flatnonzero((behind <= before) == forward)
            sizes = (behind if forward else before)[chosen]
            ends = np.cumsum(sizes)
            start = 0
            while start < len(chosen):
                done = ends[start - 1] if start else 0
                stop = max(start + 1, int(np.searchsorted(ends, done + PAIRS_PER_BLOCK, side="right")))
                block = chosen[start:stop]
                total[block] = self._sum_products(left[block], right[block], sizes[start:stop], forward)
                start = stop
        return total

    def _sum_products(self, left: np.ndarray, right: np.ndarray, sizes: np.ndarray, forward: bool) -> np.ndarray:
        owner = np.repeat(np.arange(len(left)), sizes)
        rank = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        if forward:
            own = self.left_starts[left][owner] + rank
            middle = self.pairs[own] % self.size
            second_prob = _look_up(self.pairs, self.probs, middle * self.size + right[owner])
        else:
            own = self.by_right[self.right_starts[right][owner] + rank]
            middle = self.pairs[own] // self.size
            second_prob = _look_up(self.pairs, self.probs, left[owner] * self.size + middle)
        product = self.probs[own] * second_prob * (middle != self.marker)
        return np.bincount(owner, weights=product, minlength=len(left))


def cloze_nats(train: Corpus, valid: Corpus, tokens: int | None = None) -> float:
    """Return the cross-entropy of held-out text, or of its first `tokens`, in nats a token."""
    model, nats, count = ClozeModel(train), 0.0, 0
    for text in _iterate_documents(valid, model.marker):
        left, token, right = _split_contexts(text, model.marker)
        room = len(token) if tokens is None else min(len(token), tokens - count)
        nats -= float(np.log(model.prob(left[:room], token[:room], right[:room])).sum())
        count += room
        if tokens is not None and count >= tokens:
            break
    return nats / count


class _NgramCounts:
    """Codes of n-grams, ascending, and how often each occurs."""

    def __init__(self) -> None:
        self.codes, self.counts = np.zeros(0, np.int64), np.zeros(0, np.int64)

    def add(self, new_codes: np.ndarray) -> None:
        new, seen = np.unique(new_codes, return_counts=True)
        self.codes, place = np.unique(np.concatenate([self.codes, new]), return_inverse=True)
        joined = np.concatenate([self.counts, seen])
        self.counts = np.bincount(place, weights=joined, minlength=len(self.codes)).astype(np.int64)

    def discount(self) -> float:
        """Return n1 / (n1 + 2 n2), from the numbers of n-grams seen once and twice."""
        once, twice = int((self.counts == 1).sum()), int((self.counts == 2).sum())
        return once / (once + 2 * twice) if once else 0.5


def _look_up(codes: np.ndarray, values: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Return the value of each query, 0 where it is not among the codes."""
    place = np.minimum(np.searchsorted(codes, queries), len(codes) - 1)
    return np.where(codes[place] == queries, values[place], 0)


def _iterate_documents(corpus: Corpus, marker: int) -> Iterator[np.ndarray]:
    """Yield blocks of documents, int64, with a marker before the first and behind each."""
    for first in range(0, len(corpus.documents), DOCUMENTS_PER_BLOCK):
        bounds = corpus.documents.slice(first, min(first + DOCUMENTS_PER_BLOCK, len(corpus.documents)) + 1)
        text = corpus.tokens(int(bounds[0]), int(bounds[-1])).astype(np.int64)
        yield np.insert(text, bounds - bounds[0], marker)


def _split_contexts(text: np.ndarray, marker: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (left, token, right) of every token that is no marker."""
    place = np.flatnonzero(text != marker)
    return text[place - 1], text[place], text[place + 1]
