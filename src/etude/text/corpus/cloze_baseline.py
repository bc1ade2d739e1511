"""What a model that fills blanks must beat: a token from its two neighbours alone, p(x | left, right).

Two estimates, one behind the other. A Kneser-Ney bigram (text/corpus/bigram_baseline.py) says of a blank, by Bayes' rule,

    q(x | l, r) = p(x | l) p(r | x) / sum over y of p(y | l) p(r | y)

which is exact for text that is a Markov chain. Over it stand the counts of the triples themselves, with an absolute
discount D whose mass goes to q (Chen and Goodman 1999, section 3):

    P(x | l, r) = max(c(l, x, r) - D, 0) / c(l, r) + D * kinds(l, r) / c(l, r) * q(x | l, r)

c(l, r) counts the tokens seen between l and r, kinds(l, r) the different ones. A marker stands before and behind
every document; it is a neighbour and never the answer. The sum over y is taken over pairs that were seen: the rest of
a Kneser-Ney estimate is a product of vectors.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from etude.text.corpus.corpus import Corpus

DOCUMENTS = 4096  # read at once
EXPANDED = 1 << 22  # pairs looked up at once


class ClozeModel:
    """Counts of a training text."""

    def __init__(self, train: Corpus) -> None:
        self.marker = train.tokenizer.vocab  # one more than the tokens
        self.size = self.marker + 1
        pairs = _Counts()
        triples = _Counts()
        for text in _marked(train, self.marker):
            pairs.add(text[:-1] * self.size + text[1:])
            left, token, right = _inside(text, self.marker)
            triples.add((left * self.size + token) * self.size + right)
        self.pairs, self.shares, self.saved, self.lower = self._kneser_ney(pairs)
        order = np.argsort(self.pairs % self.size, kind="stable")  # the same pairs by their right token
        self.by_right, self.right_starts = (
            order,
            np.searchsorted(self.pairs[order] % self.size, np.arange(self.size + 1)),
        )
        self.left_starts = np.searchsorted(self.pairs // self.size, np.arange(self.size + 1))
        self._triples(triples)
        self._vectors()

    def _kneser_ney(self, counted: _Counts) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Codes of pairs; the discounted share of each; what each left token saves; and where that goes."""
        codes, counts = counted.codes, counted.counts
        left, right = codes // self.size, codes % self.size
        discount = counted.discount()
        total = np.bincount(left, weights=counts, minlength=self.size)
        followers = np.bincount(left, minlength=self.size)
        kinds = np.bincount(right, minlength=self.size).astype(np.float64)
        kept = np.maximum(kinds - 0.75, 0)  # the usual value where counts of counts are too few to estimate it
        lower = (kept + (kinds.sum() - kept.sum()) / self.size) / kinds.sum()
        saved = np.divide(discount * followers, total, out=np.ones(self.size), where=total > 0)
        return codes, (counts - discount) / total[left], saved, lower

    def _triples(self, counted: _Counts) -> None:
        self.triples, self.counts, self.discount = counted.codes, counted.counts, counted.discount()
        around = self.triples // self.size**2 * self.size + self.triples % self.size
        self.around, place = np.unique(around, return_inverse=True)
        self.seen = np.bincount(place, weights=self.counts)  # (pairs around,) c(l, r)
        self.kinds = np.bincount(place)

    def _vectors(self) -> None:
        """The parts of the sum over y that are no sum over pairs; the marker is no y."""
        left, right = self.pairs // self.size, self.pairs % self.size
        answer = np.arange(self.size) != self.marker
        weights = self.shares * answer[right]
        self.ahead = np.bincount(left, weights=weights * self.saved[right], minlength=self.size)
        self.back = np.bincount(right, weights=self.shares * (answer * self.lower)[left], minlength=self.size)
        self.rest = float((answer * self.lower * self.saved).sum())

    # --- probabilities ------------------------------------------------------------------------------

    def probability(self, left: np.ndarray, token: np.ndarray, right: np.ndarray) -> np.ndarray:
        """P(token | left, right) of each, float64."""
        around = left * self.size + right
        unique, place = np.unique(around, return_inverse=True)
        whole = self._sums(unique // self.size, unique % self.size)[place]
        lower = self._bigram(left, token) * self._bigram(token, right) / whole
        count = _found(self.triples, self.counts, (left * self.size + token) * self.size + right)
        seen = _found(self.around, self.seen, around)
        kinds = _found(self.around, self.kinds, around)
        with np.errstate(divide="ignore", invalid="ignore"):
            higher = (np.maximum(count - self.discount, 0) + self.discount * kinds * lower) / seen
        return np.where(seen > 0, higher, lower)

    def _bigram(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        return _found(self.pairs, self.shares, left * self.size + right) + self.saved[left] * self.lower[right]

    def _sums(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """sum over y of p(y | left) p(right | y)."""
        known = self.ahead[left] * self.lower[right] + self.saved[left] * (
            self.back[right] + self.lower[right] * self.rest
        )
        return known + self._through(left, right)

    def _through(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """The same over the y that were seen behind `left` and before `right`: the shorter list is looked up."""
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
                stop = max(start + 1, int(np.searchsorted(ends, done + EXPANDED, side="right")))
                some = chosen[start:stop]
                total[some] = self._looked_up(left[some], right[some], sizes[start:stop], forward)
                start = stop
        return total

    def _looked_up(self, left: np.ndarray, right: np.ndarray, sizes: np.ndarray, forward: bool) -> np.ndarray:
        owner = np.repeat(np.arange(len(left)), sizes)
        nth = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        if forward:
            own = self.left_starts[left][owner] + nth
            middle = self.pairs[own] % self.size
            other = _found(self.pairs, self.shares, middle * self.size + right[owner])
        else:
            own = self.by_right[self.right_starts[right][owner] + nth]
            middle = self.pairs[own] // self.size
            other = _found(self.pairs, self.shares, left[owner] * self.size + middle)
        product = self.shares[own] * other * (middle != self.marker)
        return np.bincount(owner, weights=product, minlength=len(left))


def cloze_nats(train: Corpus, valid: Corpus, tokens: int | None = None) -> float:
    """Nats a token of the held-out text, or of its first so many tokens, each from its two neighbours."""
    known, nats, count = ClozeModel(train), 0.0, 0
    for text in _marked(valid, known.marker):
        left, token, right = _inside(text, known.marker)
        room = len(token) if tokens is None else min(len(token), tokens - count)
        nats -= float(np.log(known.probability(left[:room], token[:room], right[:room])).sum())
        count += room
        if tokens is not None and count >= tokens:
            break
    return nats / count


class _Counts:
    """Codes in ascending order, and how often each was met."""

    def __init__(self) -> None:
        self.codes, self.counts = np.zeros(0, np.int64), np.zeros(0, np.int64)

    def add(self, met: np.ndarray) -> None:
        new, seen = np.unique(met, return_counts=True)
        self.codes, place = np.unique(np.concatenate([self.codes, new]), return_inverse=True)
        joined = np.concatenate([self.counts, seen])
        self.counts = np.bincount(place, weights=joined, minlength=len(self.codes)).astype(np.int64)

    def discount(self) -> float:
        """n1 / (n1 + 2 n2), of what was met once and twice."""
        once, twice = int((self.counts == 1).sum()), int((self.counts == 2).sum())
        return once / (once + 2 * twice) if once else 0.5


def _found(codes: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The value of each wanted code, 0 where it is not among the codes."""
    place = np.minimum(np.searchsorted(codes, wanted), len(codes) - 1)
    return np.where(codes[place] == wanted, values[place], 0)


def _marked(corpus: Corpus, marker: int) -> Iterator[np.ndarray]:
    """Some documents at a time, int64, a marker before the first and behind each."""
    for first in range(0, len(corpus.documents), DOCUMENTS):
        bounds = corpus.documents.slice(first, min(first + DOCUMENTS, len(corpus.documents)) + 1)
        text = corpus.tokens(int(bounds[0]), int(bounds[-1])).astype(np.int64)
        yield np.insert(text, bounds - bounds[0], marker)


def _inside(text: np.ndarray, marker: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(left, token, right) of every token that is no marker."""
    place = np.flatnonzero(text != marker)
    return text[place - 1], text[place], text[place + 1]
