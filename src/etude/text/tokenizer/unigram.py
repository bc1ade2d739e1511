"""Training of a unigram language model of pieces (Kudo 2018, "Subword Regularization", section 3.2).

Start from all frequent substrings of words; re-estimate their probabilities by expectation-maximisation over all
segmentations of each word (with the digamma step that SentencePiece uses, which starves rare pieces); drop the quarter
whose removal lowers the likelihood least; repeat until the size is reached. The `tokenizers` library has a trainer of
its own, but no two of its runs agree, and a corpus must not depend on the run.

All words are processed at once with numpy. They are sorted by length, longest first, and laid out by character
position: position k of every word that has one is a contiguous slice, so each step of the forward and backward passes
is one array operation over words. Probabilities stay linear: words of at most MAX_WORD_CHARS cannot underflow.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from scipy.special import digamma

MAX_PIECE_CHARS = 16  # characters, as SentencePiece has it
MAX_WORD_CHARS = 32  # longer runs (addresses, base64) are split for training: 1e-9^32 is still a normal float64
MAX_CHARACTERS = 2_000_000  # of distinct words, most frequent first: the rest is a tail of words seen once
SEEDS_PER_PIECE = 10  # candidates for each piece of the result
SHRINK = 0.75
SUB_ITERATIONS = 2


def train_unigram(counts: Counter[str], alphabet: list[str], size: int, min_count: int = 1) -> list[tuple[str, float]]:
    """Return at most `size` pieces with log-probabilities, best first; all of `alphabet` are among them.

    Longer pieces occur at least `min_count` times.
    """
    fragments = _split_words(counts, set(alphabet))
    if not fragments:
        return [(letter, 0.0) for letter in alphabet]
    words = _WordTable(fragments)
    pieces, weights = words.find_seeds(alphabet, SEEDS_PER_PIECE * size, max(2, min_count))
    words.match(pieces)
    expected = weights
    probabilities = expected / expected.sum()
    letters = np.array([len(piece) == 1 for piece in pieces])
    while True:
        for _ in range(SUB_ITERATIONS):
            expected = words.expected_counts(probabilities)
            probabilities = _update_probabilities(expected)
        if len(pieces) <= size:
            break
        target = max(size, int(SHRINK * len(pieces)))
        losses = expected * (np.log(probabilities + 1e-300) - _score_alternatives(pieces, probabilities))
        losses[letters] = np.inf  # every letter stays: any word can be encoded
        order = np.lexsort((np.arange(len(pieces)), -losses))[:target]
        survivors = np.sort(order)
        words.renumber_matches(survivors, len(pieces))
        pieces = [pieces[number] for number in survivors]
        expected, probabilities, letters = expected[survivors], probabilities[survivors], letters[survivors]
        probabilities = probabilities / probabilities.sum()
    floor = probabilities[probabilities > 0].min(initial=1e-12)
    scores = np.log(np.maximum(probabilities, floor))
    ranked = sorted(zip(-scores, pieces, strict=True))
    return [(piece, float(-score)) for score, piece in ranked]


def _split_words(counts: Counter[str], alphabet: set[str]) -> list[tuple[str, int]]:
    """Split words into runs of known letters, most frequent first.

    Runs have at most MAX_WORD_CHARS letters, all together MAX_CHARACTERS.
    """
    fragments: Counter[str] = Counter()
    for word, count in counts.items():
        runs = [word]
        if not alphabet.issuperset(word):
            runs = "".join(letter if letter in alphabet else "\0" for letter in word).split("\0")
        for run in runs:
            for start in range(0, len(run), MAX_WORD_CHARS):
                fragments[run[start : start + MAX_WORD_CHARS]] += count
    ranked = sorted(fragments.items(), key=lambda item: (-item[1], item[0]))
    places = np.cumsum([len(word) for word, _ in ranked])
    return ranked[: int(np.searchsorted(places, MAX_CHARACTERS)) + 1]


def _update_probabilities(expected: np.ndarray) -> np.ndarray:
    """Return new probabilities from expected counts (the M step).

    A piece expected less than half a time gets 0.
    """
    alive = expected >= 0.5
    probabilities = np.zeros(len(expected))
    probabilities[alive] = np.exp(digamma(expected[alive]) - digamma(expected[alive].sum()))
    return probabilities


def _score_alternatives(pieces: list[str], probabilities: np.ndarray) -> np.ndarray:
    """Return the log-probability of each piece's best segmentation into other pieces (letters: none)."""
    words = _WordTable([(piece, 1) for piece in pieces])
    words.match(pieces)
    best = np.empty(len(pieces))
    with np.errstate(divide="ignore"):
        best[words.order] = np.log(words.best_split(probabilities))
    return np.maximum(best, -700.0)  # about the log of the smallest float64: no segmentation at all


class _WordTable:
    """Distinct words with counts, laid out by position: position k of the words of more than k characters."""

    def __init__(self, counted: list[tuple[str, int]]) -> None:
        lengths = np.array([len(word) for word, _ in counted], np.int64)
        self.order = np.argsort(-lengths, kind="stable")  # row -> number of the word as given
        self.lengths = lengths[self.order]
        self.counts = np.array([count for _, count in counted], np.float64)[self.order]
        self.longest = int(self.lengths[0]) if len(counted) else 0
        self.rows = [int((self.lengths > k).sum()) for k in range(self.longest)] + [0]  # words that have a position k
        self.starts = np.concatenate([[0], np.cumsum(self.rows)])
        words = [counted[number][0] for number in self.order]
        flat = np.frombuffer("".join(words).encode("utf-32-le"), np.uint32)
        firsts = np.cumsum(self.lengths) - self.lengths
        places = [flat[firsts[: self.rows[k]] + k] for k in range(self.longest)]
        self.codes = np.concatenate(places) if places else np.zeros(0, np.uint32)
        # [n - 1][position, row] -> number of the piece of n characters that starts there, or none
        self.matches: list[np.ndarray] = []

    def at(self, array: np.ndarray, k: int, rows: int) -> np.ndarray:
        """Return position k of the first `rows` words."""
        return array[self.starts[k] : self.starts[k] + rows]

    def _extend_keys(self, n: int, names: np.ndarray) -> np.ndarray:
        """Return keys of the substrings of n characters from names of those of n - 1; -1 where there is none."""
        keys = np.full(len(self.codes), -1, np.int64)
        for k in range(self.longest - n + 1):
            rows = self.rows[k + n - 1]
            shorter = self.at(names, k, rows)
            last = self.at(self.codes, k + n - 1, rows).astype(np.int64)
            self.at(keys, k, rows)[:] = np.where(shorter >= 0, shorter * 0x110000 + last, -1)
        return keys

    def find_seeds(self, alphabet: list[str], most: int, least: int) -> tuple[list[str], np.ndarray]:
        """Return the letters and the best longer substrings, by count times length, with their counts.

        least: occurrences of a longer one; 2 at least.
        """
        weight = np.concatenate([self.counts[: self.rows[k]] for k in range(self.longest)])
        place_of = np.repeat(np.arange(self.longest), self.rows[: self.longest])
        row_of = np.arange(len(self.codes)) - self.starts[place_of]
        letter_counts = dict(zip(*(values.tolist() for values in self._sum_by_key(self.codes, weight)), strict=True))
        seeds = [(letter, float(letter_counts.get(ord(letter), 0.0))) for letter in alphabet]
        longer: list[tuple[float, str]] = []
        names = self.codes.astype(np.int64)
        for n in range(2, min(MAX_PIECE_CHARS, self.longest) + 1):
            keys = self._extend_keys(n, names)
            present = np.flatnonzero(keys >= 0)
            if not len(present):
                break
            _, first, inverse = np.unique(keys[present], return_index=True, return_inverse=True)
            sums = np.bincount(inverse, weights=weight[present])
            repeated = sums >= least  # what is seen once cannot save anything, nor can what contains it
            names = np.full(len(keys), -1, np.int64)
            names[present] = np.where(repeated[inverse], inverse, -1)
            ranked = np.flatnonzero(repeated)
            ranked = ranked[np.argsort(-sums[ranked], kind="stable")[:most]]
            for number in ranked.tolist():
                place = int(present[first[number]])
                k, row = int(place_of[place]), int(row_of[place])
                codes = [self.codes[self.starts[k + i] + row] for i in range(n)]
                longer.append((-float(sums[number]) * n, "".join(map(chr, codes))))
        longer.sort()
        seeds += [(piece, -score / len(piece)) for score, piece in longer[: max(0, most - len(seeds))]]
        return [piece for piece, _ in seeds], np.array([max(count, 1.0) for _, count in seeds])

    @staticmethod
    def _sum_by_key(keys: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, inverse = np.unique(keys, return_inverse=True)
        return values, np.bincount(inverse, weights=weight)

    def match(self, pieces: list[str]) -> None:
        """Find every piece at every position; the number len(pieces) means none."""
        self.matches = []
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
            keys = self._extend_keys(n, names)
            known = np.array(sorted(by_length[n - 1]), np.int64)
            hit_names = np.array([by_length[n - 1][key] for key in known.tolist()], np.int64)
            slots = np.minimum(np.searchsorted(known, keys), len(known) - 1)
            hit = known[slots] == keys
            names = np.where(hit, hit_names[slots], -1)
            self.matches.append(np.where(hit, numbers[names], len(pieces)).astype(np.int32))

    def renumber_matches(self, survivors: np.ndarray, before: int) -> None:
        """Renumber the matches after pieces were dropped, of `before` pieces."""
        renumber = np.full(before + 1, len(survivors), np.int32)
        renumber[survivors] = np.arange(len(survivors))
        self.matches = [renumber[match] for match in self.matches]

    def expected_counts(self, probabilities: np.ndarray) -> np.ndarray:
        """Return the expected count of each piece over all segmentations of all words (the E step)."""
        padded = np.append(probabilities, 0.0)
        count = len(self.lengths)
        # ahead[k]: probability of the first k characters; behind[k]: of those from k on; both over words of >= k
        reach = [count, *self.rows[: self.longest]]  # words of at least k characters
        behind = [np.zeros(rows) for rows in reach]
        for k in range(self.longest, -1, -1):
            shorter = self.rows[k] if k < self.longest else 0
            behind[k][shorter : reach[k]] = 1.0  # words that end here
            for n in range(1, min(len(self.matches), self.longest - k) + 1):
                rows = reach[k + n]
                behind[k][:rows] += padded[self.at(self.matches[n - 1], k, rows)] * behind[k + n]
        ahead = [np.ones(count)] + [np.zeros(rows) for rows in reach[1:]]
        with np.errstate(divide="ignore", invalid="ignore"):
            scale = np.where(behind[0] > 0, self.counts / behind[0], 0.0)
        expected = np.zeros(len(padded))
        for k in range(self.longest):
            for n in range(1, min(len(self.matches), self.longest - k) + 1):
                rows = reach[k + n]
                match = self.at(self.matches[n - 1], k, rows)
                through = ahead[k][:rows] * padded[match]
                ahead[k + n] += through
                expected += np.bincount(match, weights=through * behind[k + n] * scale[:rows], minlength=len(padded))
        return expected[:-1]

    def best_split(self, probabilities: np.ndarray) -> np.ndarray:
        """Return for each row the probability of its best segmentation into at least two pieces."""
        padded = np.append(probabilities, 0.0)
        reach = [len(self.lengths), *self.rows[: self.longest]]
        best = [np.ones(len(self.lengths))] + [np.zeros(rows) for rows in reach[1:]]
        result = np.zeros(len(self.lengths))
        for k in range(1, self.longest + 1):
            rows = reach[k]

            def through(n: int, k: int = k, rows: int = rows) -> np.ndarray:
                return best[k - n][:rows] * padded[self.at(self.matches[n - 1], k - n, rows)]

            for n in range(1, min(len(self.matches), k - 1) + 1):
                np.maximum(best[k], through(n), out=best[k])
            ending = slice(self.rows[k] if k < self.longest else 0, rows)
            result[ending] = best[k][ending]
            if k <= len(self.matches):  # only now the whole prefix as one piece
                np.maximum(best[k], through(k), out=best[k])
        return result
