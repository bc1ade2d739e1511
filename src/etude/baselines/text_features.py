"""Weights of word and character n-grams of texts and of pairs of texts, as sparse vectors.

    words        1-grams and 2-grams of words and of runs of punctuation, in lower case
    characters   n-grams inside each word, its edges marked by a space. Sizes go by the script of the word: a particle
                 or an ending is one or two syllables of Hangul, and three to five letters of an alphabet

Each group is weighted by (1 + log tf) * idf and scaled to length 1 (Salton & Buckley 1988), or by its share of all
n-grams ("mean": the bag of Joulin et al. 2017). Word vectors, where there are any, add their idf-weighted mean.

Nothing but numpy is imported here: an exported baseline holds a copy of this file.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

WORD = re.compile(r"\w+|[^\w\s]+")
# Hangul, kana and Chinese characters, which are syllables or words
SYLLABIC = re.compile("[\u1100-\u11ff\u3040-\u30ff\u3130-\u318f\u3400-\u9fff\uac00-\ud7a3\uf900-\ufaff]")
CACHED_WORDS = 200_000  # whose character n-grams are kept
SparseVector = tuple[np.ndarray, np.ndarray]  # (n,) columns ascending, (n,) values


@dataclass(frozen=True)
class FeatureSettings:
    """Which n-grams are read, and how they are weighted."""

    word_sizes: tuple[int, int] = (1, 2)  # smallest and largest n; (1, 0): none
    char_sizes: tuple[int, int] = (2, 5)
    syllable_sizes: tuple[int, int] = (1, 4)  # of words in Hangul, kana or Chinese characters
    weighting: str = "tfidf"  # or "mean"

    def json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> FeatureSettings:
        sizes = {name: tuple(values[name]) for name in ("word_sizes", "char_sizes", "syllable_sizes")}
        return cls(weighting=values["weighting"], **sizes)


def split_words(text: str) -> list[str]:
    """Words and runs of punctuation, in lower case."""
    return WORD.findall(unicodedata.normalize("NFC", text).lower())


def word_ngrams(words: Sequence[str], sizes: tuple[int, int]) -> list[str]:
    """N-grams of words, joined by a space; those of more than one word with the edges of the text."""
    ngrams = list(words) if sizes[0] <= 1 <= sizes[1] else []
    for size in range(max(2, sizes[0]), sizes[1] + 1):
        ngrams += [" ".join(words[start : start + size]) for start in range(len(words) - size + 1)]
    return ngrams


def char_ngrams(word: str, settings: FeatureSettings) -> list[str]:
    """N-grams of the characters of one word between two spaces."""
    smallest, largest = settings.syllable_sizes if SYLLABIC.search(word) else settings.char_sizes
    padded = f" {word} "
    ngrams = list(word) if smallest <= 1 <= largest else []
    for size in range(max(2, smallest), min(largest, len(padded)) + 1):
        ngrams += [padded[start : start + size] for start in range(len(padded) - size + 1)]
    return ngrams


class TextFeatures:
    """Texts as sparse vectors over the n-grams of the training texts."""

    texts = 1  # of an example

    def __init__(
        self,
        settings: FeatureSettings,
        words: Sequence[str],
        chars: Sequence[str],
        idf: np.ndarray,
        vector_words: Sequence[str] = (),
        vectors: np.ndarray | None = None,
    ) -> None:
        """`idf` (words + chars,); `vectors` (vector words, D) of words, each scaled by its idf already."""
        if len(idf) != len(words) + len(chars):
            raise ValueError(f"{len(idf)} idf weights for {len(words)} + {len(chars)} n-grams")
        if (0 if vectors is None else len(vectors)) != len(vector_words):
            raise ValueError(f"the matrix of vectors does not have one row for each of {len(vector_words)} words")
        self.settings, self.words, self.chars, self.idf = settings, list(words), list(chars), idf
        self.vector_words, self.vectors = list(vector_words), vectors
        self.width = 0 if vectors is None else vectors.shape[1]
        self._word_columns = {ngram: column for column, ngram in enumerate(self.words)}
        self._char_columns = {ngram: column for column, ngram in enumerate(self.chars, len(self.words))}
        self._vector_rows = {word: row for row, word in enumerate(self.vector_words)}
        self._cache: dict[str, list[int]] = {}

    @property
    def columns(self) -> int:
        return len(self.idf) + self.width

    @classmethod
    def learn(
        cls,
        settings: FeatureSettings,
        texts: Iterable[str],
        smallest_count: int = 1,
        vector_words: Sequence[str] = (),
        vectors: np.ndarray | None = None,
    ) -> TextFeatures:
        """Collect the n-grams that occur in at least `smallest_count` texts, and their idf."""
        word_counts: Counter[str] = Counter()
        char_counts: Counter[str] = Counter()
        texts_of_words: Counter[str] = Counter()
        ngrams_of: dict[str, list[str]] = {}
        count = 0
        for text in texts:
            words = split_words(text)
            count += 1
            word_counts.update(set(word_ngrams(words, settings.word_sizes)))
            distinct = set(words)
            texts_of_words.update(distinct)
            for word in distinct - ngrams_of.keys():
                ngrams_of[word] = char_ngrams(word, settings)
            char_counts.update({ngram for word in distinct for ngram in ngrams_of[word]})
        word_names, char_names = (
            sorted(name for name, texts_with in counts.items() if texts_with >= smallest_count)
            for counts in (word_counts, char_counts)
        )
        frequencies = [*(word_counts[name] for name in word_names), *(char_counts[name] for name in char_names)]
        idf = np.log((1 + count) / (1 + np.array(frequencies, dtype=np.float64))) + 1
        if vectors is not None:
            own = np.array([texts_of_words[word] for word in vector_words], dtype=np.float64)
            vectors = (vectors * (np.log((1 + count) / (1 + own)) + 1)[:, None]).astype(np.float32)
        return cls(settings, word_names, char_names, idf.astype(np.float32), vector_words, vectors)

    def vector(self, text: str) -> SparseVector:
        """The columns and values of one text."""
        words = split_words(text)
        known = self._word_columns
        word_columns = [known[ngram] for ngram in word_ngrams(words, self.settings.word_sizes) if ngram in known]
        char_columns: list[int] = []
        for word in words:
            char_columns += self._columns_of(word)
        if self.settings.weighting == "mean":
            columns, counts = np.unique(np.array(word_columns + char_columns, dtype=np.int64), return_counts=True)
            return columns, counts / max(1, counts.sum())
        parts = [self._weigh(group) for group in (word_columns, char_columns)]
        parts += [self._mean_vector(words)] if self.width else []
        groups = sum(len(values) > 0 for _, values in parts)
        columns = np.concatenate([part[0] for part in parts])
        return columns, np.concatenate([part[1] for part in parts]) / max(1, groups) ** 0.5

    def _columns_of(self, word: str) -> list[int]:
        """Columns of the character n-grams of a word."""
        columns = self._cache.get(word)
        if columns is None:
            known = self._char_columns
            columns = [known[ngram] for ngram in char_ngrams(word, self.settings) if ngram in known]
            if len(self._cache) < CACHED_WORDS:
                self._cache[word] = columns
        return columns

    def _weigh(self, occurrences: list[int]) -> SparseVector:
        """(1 + log tf) * idf of one group of columns, of length 1."""
        columns, counts = np.unique(np.array(occurrences, dtype=np.int64), return_counts=True)
        values = (1 + np.log(counts)) * self.idf[columns]
        return columns, values / max(float(np.sqrt(values @ values)), 1e-12)

    def _mean_vector(self, words: Sequence[str]) -> SparseVector:
        """The sum of the scaled vectors of the words, of length 1; nothing where no word has one."""
        rows = [self._vector_rows[word] for word in words if word in self._vector_rows]
        if not rows or self.vectors is None:
            return np.zeros(0, np.int64), np.zeros(0)
        total = self.vectors[rows].sum(0, dtype=np.float64)
        return np.arange(len(self.idf), self.columns), total / max(float(np.sqrt(total @ total)), 1e-12)

    def describe(self) -> dict[str, Any]:
        """JSON-ready: what `restore` needs beside the arrays."""
        return {
            "settings": self.settings.json(), "words": self.words, "chars": self.chars,
            "vector_words": self.vector_words,
        }  # fmt: skip

    def arrays(self) -> dict[str, np.ndarray]:
        return {"idf": self.idf} | ({} if self.vectors is None else {"vectors": self.vectors})

    @classmethod
    def restore(cls, description: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> TextFeatures:
        settings = FeatureSettings.parse(description["settings"])
        return cls(
            settings, description["words"], description["chars"], arrays["idf"],
            description["vector_words"], arrays.get("vectors"),
        )  # fmt: skip


def score_linear(vector: SparseVector, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """(outputs,) logits of one sparse vector."""
    columns, values = vector
    return values @ weight[columns].astype(np.float64) + bias


def softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits - logits.max())
    return exponentials / exponentials.sum()
