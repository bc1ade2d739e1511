"""The pieces of a unigram language model (Kudo 2018, "Subword Regularization", section 3.2), learnt with numpy.

Start from all frequent substrings of words; re-estimate their probabilities by expectation-maximisation over all
ways to cut each word (with the digamma step that SentencePiece uses, which starves rare pieces); drop the quarter
whose loss hurts the likelihood least; repeat until the asked size. The `tokenizers` library has a trainer of its
own, but no two of its runs agree, and a corpus must not depend on the run.

All words are worked on at once. They are sorted by length, longest first, and laid out by character place: place k
of every word that has one is a contiguous slice, so each step of the forward and backward passes is one array
operation over words. Probabilities stay linear: a word of at most LONGEST_WORD characters cannot underflow.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from scipy.special import digamma

LONGEST_PIECE = 16  # characters, as SentencePiece has it
LONGEST_WORD = 32  # longer runs (addresses, base64) are cut for training: 1e-9^32 is still a normal float64
MOST_PLACES = 2_000_000  # characters of distinct words, commonest first: the rest is a tail of words seen once
SEEDS_A_PIECE = 10  # how many candidates for each piece wanted
SHRINK = 0.75
SUB_ITERATIONS = 2


def learn(counts: Counter[str], alphabet: list[str], size: int) -> list[tuple[str, float]]:
    """At most `size` pieces with their log-probabilities, best first; every letter of `alphabet` is among them."""
    fragments = _fragments(counts, set(alphabet))
    if not fragments:
        return [(letter, 0.0) for letter in alphabet]
    words = _Words(fragments)
    pieces, weights = words.seeds(alphabet, SEEDS_A_PIECE * size)
    words.match(pieces)
    expected = weights
    probabilities = expected / expected.sum()
    letters = np.array([len(piece) == 1 for piece in pieces])
    while True:
        for _ in range(SUB_ITERATIONS):
            expected = words.expected_counts(probabilities)
            probabilities = _maximise(expected)
        if len(pieces) <= size:
            break
        target = max(size, int(SHRINK * len(pieces)))
        hurt = expected * (np.log(probabilities + 1e-300) - _best_without(pieces, probabilities))
        hurt[letters] = np.inf  # every letter stays: any word can be written
        order = np.lexsort((np.arange(len(pieces)), -hurt))[:target]
        kept = np.sort(order)
        words.keep(kept, len(pieces))
        pieces = [pieces[number] for number in kept]
        expected, probabilities, letters = expected[kept], probabilities[kept], letters[kept]
        probabilities = probabilities / probabilities.sum()
    floor = probabilities[probabilities > 0].min(initial=1e-12)
    scores = np.log(np.maximum(probabilities, floor))
    ranked = sorted(zip(-scores, pieces, strict=True))
    return [(piece, float(-score)) for score, piece in ranked]


def _fragments(counts: Counter[str], alphabet: set[str]) -> list[tuple[str, int]]:
    """Words as runs of known letters of bounded length, commonest first, up to MOST_PLACES characters."""
    fragments: Counter[str] = Counter()
    for word, count in counts.items():
        runs = [word]
        if not alphabet.issuperset(word):
            runs = "".join(letter if letter in alphabet else "\0" for letter in word).split("\0")
        for run in runs:
            for start in range(0, len(run), LONGEST_WORD):
                fragments[run[start : start + LONGEST_WORD]] += count
    ranked = sorted(fragments.items(), key=lambda item: (-item[1], item[0]))
    places = np.cumsum([len(word) for word, _ in ranked])
    return ranked[: int(np.searchsorted(places, MOST_PLACES)) + 1]


def _maximise(expected: np.ndarray) -> np.ndarray:
    """New probabilities from expected counts; a piece expected less than half a time is as good as gone."""
    alive = expected >= 0.5
    probabilities = np.zeros(len(expected))
    probabilities[alive] = np.exp(digamma(expected[alive]) - digamma(expected[alive].sum()))
    return probabilities


def _best_without(pieces: list[str], probabilities: np.ndarray) -> np.ndarray:
    """For each piece, the log-probability of the best way to write it with other pieces (letters: minus infinity)."""
    words = _Words([(piece, 1) for piece in pieces])
    words.match(pieces)
    best = np.empty(len(pieces))
    with np.errstate(divide="ignore"):
        best[words.order] = np.log(words.best_cut(probabilities))
    return np.maximum(best, -700.0)  # about the log of the smallest float64: no cut at all


class _Words:
    """Distinct words with counts, laid out by place: place k of the words of more than k characters."""

    def __init__(self, counted: list[tuple[str, int]]) -> None:
        lengths = np.array([len(word) for word, _ in counted], np.int64)
        self.order = np.argsort(-lengths, kind="stable")  # row -> number of the word as given
        self.lengths = lengths[self.order]
        self.counts = np.array([count for _, count in counted], np.float64)[self.order]
        self.longest = int(self.lengths[0]) if len(counted) else 0
        self.rows = [int((self.lengths > k).sum()) for k in range(self.longest)] + [0]  # words that have a place k
        self.starts = np.concatenate([[0], np.cumsum(self.rows)])
        words = [counted[number][0] for number in self.order]
        flat = np.frombuffer("".join(words).encode("utf-32-le"), np.uint32)
        firsts = np.cumsum(self.lengths) - self.lengths
        places = [flat[firsts[: self.rows[k]] + k] for k in range(self.longest)]
        self.codes = np.concatenate(places) if places else np.zeros(0, np.uint32)
        self.found: list[np.ndarray] = []  # [n - 1][place, row] -> number of the piece of n characters there, or none

    def at(self, array: np.ndarray, k: int, rows: int) -> np.ndarray:
        """Place k of the first `rows` words."""
        return array[self.starts[k] : self.starts[k] + rows]

    def _longer(self, n: int, names: np.ndarray) -> np.ndarray:
        """Keys of the substrings of n characters from names of those of n - 1; -1 where there is none."""
        keys = np.full(len(self.codes), -1, np.int64)
        for k in range(self.longest - n + 1):
            rows = self.rows[k + n - 1]
            shorter = self.at(names, k, rows)
            last = self.at(self.codes, k + n - 1, rows).astype(np.int64)
            self.at(keys, k, rows)[:] = np.where(shorter >= 0, shorter * 0x110000 + last, -1)
        return keys

    def seeds(self, alphabet: list[str], most: int) -> tuple[list[str], np.ndarray]:
        """The letters and the commonest longer substrings, by count times length, with their counts."""
        weight = np.concatenate([self.counts[: self.rows[k]] for k in range(self.longest)])
        place_of = np.repeat(np.arange(self.longest), self.rows[: self.longest])
        row_of = np.arange(len(self.codes)) - self.starts[place_of]
        occurs = dict(zip(*(values.tolist() for values in self._sums(self.codes, weight)), strict=True))
        found = [(letter, float(occurs.get(ord(letter), 0.0))) for letter in alphabet]
        longer: list[tuple[float, str]] = []
        names = self.codes.astype(np.int64)
        for n in range(2, min(LONGEST_PIECE, self.longest) + 1):
            keys = self._longer(n, names)
            there = np.flatnonzero(keys >= 0)
            if not len(there):
                break
            _, first, inverse = np.unique(keys[there], return_index=True, return_inverse=True)
            sums = np.bincount(inverse, weights=weight[there])
            often = sums >= 2  # what is seen once cannot save anything, nor can what contains it
            names = np.full(len(keys), -1, np.int64)
            names[there] = np.where(often[inverse], inverse, -1)
            ranked = np.flatnonzero(often)
            ranked = ranked[np.argsort(-sums[ranked], kind="stable")[:most]]
            for number in ranked.tolist():
                place = int(there[first[number]])
                k, row = int(place_of[place]), int(row_of[place])
                codes = [self.codes[self.starts[k + i] + row] for i in range(n)]
                longer.append((-float(sums[number]) * n, "".join(map(chr, codes))))
        longer.sort()
        found += [(piece, -score / len(piece)) for score, piece in longer[: max(0, most - len(found))]]
        return [piece for piece, _ in found], np.array([max(count, 1.0) for _, count in found])

    @staticmethod
    def _sums(keys: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, inverse = np.unique(keys, return_inverse=True)
        return values, np.bincount(inverse, weights=weight)

    def match(self, pieces: list[str]) -> None:
        """Finds every piece at every place; the number len(pieces) means none."""
        self.found = []
        prefixes: dict[str, int] = {}  # of pieces: a trie, so that keys stay small numbers
        for piece in pieces:
            for n in range(1, len(piece) + 1):
                prefixes.setdefault(piece[:n], len(prefixes))
        longest = max(map(len, pieces))
        by_length: list[dict[int, int]] = [{} for _ in range(longest)]
        for prefix, name in prefixes.items():
            shorter = prefixes[prefix[:-1]] if len(prefix) > 1 else 0
            by_length[len(prefix) - 1][shorter * 0x110000 + ord(prefix[-1])] = name
        numbers = np.full(len(prefixes), len(pieces), np.int32)
        for number, piece in enumerate(pieces):
            numbers[prefixes[piece]] = number
        names = np.zeros(len(self.codes), np.int64)
        for n in range(1, min(longest, self.longest) + 1):
            keys = self._longer(n, names)
            known = np.array(sorted(by_length[n - 1]), np.int64)
            named = np.array([by_length[n - 1][key] for key in known.tolist()], np.int64)
            slots = np.minimum(np.searchsorted(known, keys), len(known) - 1)
            hit = known[slots] == keys
            names = np.where(hit, named[slots], -1)
            self.found.append(np.where(hit, numbers[names], len(pieces)).astype(np.int32))

    def keep(self, kept: np.ndarray, before: int) -> None:
        """Renumbers the matches after pieces were dropped."""
        renumber = np.full(before + 1, len(kept), np.int32)
        renumber[kept] = np.arange(len(kept))
        self.found = [renumber[found] for found in self.found]

    def expected_counts(self, probabilities: np.ndarray) -> np.ndarray:
        """How often each piece is used, over all cuts of all words (forward-backward)."""
        padded = np.append(probabilities, 0.0)
        count = len(self.lengths)
        # ahead[k]: probability of the first k characters; behind[k]: of those from k on; both over words of >= k
        reach = [count, *self.rows[: self.longest]]  # words of at least k characters
        behind = [np.zeros(rows) for rows in reach]
        for k in range(self.longest, -1, -1):
            shorter = self.rows[k] if k < self.longest else 0
            behind[k][shorter : reach[k]] = 1.0  # words that end here
            for n in range(1, min(len(self.found), self.longest - k) + 1):
                rows = reach[k + n]
                behind[k][:rows] += padded[self.at(self.found[n - 1], k, rows)] * behind[k + n]
        ahead = [np.ones(count)] + [np.zeros(rows) for rows in reach[1:]]
        with np.errstate(divide="ignore", invalid="ignore"):
            scale = np.where(behind[0] > 0, self.counts / behind[0], 0.0)
        expected = np.zeros(len(padded))
        for k in range(self.longest):
            for n in range(1, min(len(self.found), self.longest - k) + 1):
                rows = reach[k + n]
                found = self.at(self.found[n - 1], k, rows)
                through = ahead[k][:rows] * padded[found]
                ahead[k + n] += through
                expected += np.bincount(found, weights=through * behind[k + n] * scale[:rows], minlength=len(padded))
        return expected[:-1]

    def best_cut(self, probabilities: np.ndarray) -> np.ndarray:
        """For each word (in rows), the probability of its best cut into at least two pieces."""
        padded = np.append(probabilities, 0.0)
        reach = [len(self.lengths), *self.rows[: self.longest]]
        best = [np.ones(len(self.lengths))] + [np.zeros(rows) for rows in reach[1:]]
        result = np.zeros(len(self.lengths))
        for k in range(1, self.longest + 1):
            rows = reach[k]

            def through(n: int, k: int = k, rows: int = rows) -> np.ndarray:
                return best[k - n][:rows] * padded[self.at(self.found[n - 1], k - n, rows)]

            for n in range(1, min(len(self.found), k - 1) + 1):
                np.maximum(best[k], through(n), out=best[k])
            ending = slice(self.rows[k] if k < self.longest else 0, rows)
            result[ending] = best[k][ending]
            if k <= len(self.found):  # only now the whole prefix as one piece
                np.maximum(best[k], through(k), out=best[k])
        return result
