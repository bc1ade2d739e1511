"""Weights of word and character n-grams of texts, as sparse vectors.

    words        1-grams and 2-grams of words and of runs of punctuation, in lower case; 2-grams see the text's edges
    characters   n-grams inside each word, its edges marked by a space. Sizes go by the script of the word: a particle
                 or an ending is one or two syllables of Hangul, and three to five letters of an alphabet
    letters      n-grams of the letters (jamo) of words in Hangul, as endings melt into the last syllable of a stem

Each group is weighted by (1 + log tf) * idf and scaled to length 1 (Salton & Buckley 1988), or all together by their
share of the n-grams ("mean": the bag of Joulin et al. 2017). Words of Hangul carry particles and have many forms, so
among mostly such words the group of words weighs half. Word vectors, where there are any, add their idf-weighted mean;
where many words have none, as every third of Korean, they get that of their character n-grams, if these have vectors
(fastText's).

Nothing but numpy is imported here and there: an exported baseline holds copies of both files.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from etude.text.tokenizer.char_ngrams import NgramTable

WORD = re.compile(r"\w+|[^\w\s]+")
# Hangul, kana and Chinese characters, which are syllables or words
SYLLABIC = re.compile("[\u1100-\u11ff\u3040-\u30ff\u3130-\u318f\u3400-\u9fff\uac00-\ud7a3\uf900-\ufaff]")
HANGUL = re.compile("[\uac00-\ud7a3]")
JAMO = "\t"  # before an n-gram of letters: sorts before all others, as no word holds a tab
START, END = "<s>", "</s>"  # edges of a text in 2-grams of words
CACHED_WORDS = 200_000  # whose character n-grams are kept
# Share of the words of texts without a vector from which on n-grams stand for them: then most are forms of known words,
# and else names. TF-IDF with vectors, dev from the pool, three draws of 100 and 400 labels, without and with n-grams:
# 3i4K (33 % unknown) 64.7 and 65.2, 72.5 and 75.1; YNAT (33 %) 68.0 and 68.9, 73.1 and 74.1; NSMC 74.1 and 75.1, 77.9
# and 78.4; TREC-6 (6 %), 100 labels: 61.0 and 59.5
MANY_UNKNOWN = 0.15
SparseVector = tuple[np.ndarray, np.ndarray]  # (n,) columns, (n,) values


@dataclass(frozen=True)
class FeatureSettings:
    """Which n-grams are read, and how they are weighted; sizes are the smallest and the largest n, (1, 0) is none."""

    word_sizes: tuple[int, int] = (1, 2)
    char_sizes: tuple[int, int] = (2, 5)
    syllable_sizes: tuple[int, int] = (1, 4)  # of words in Hangul, kana or Chinese characters
    jamo_sizes: tuple[int, int] = (2, 6)  # of words in Hangul, by letter
    word_weight: float = 1.0  # of the group of words beside the others
    vector_weight: float = 1.0  # of the mean of word vectors beside the n-grams
    weighting: str = "tfidf"  # or "mean"

    def json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> FeatureSettings:
        sizes = {name: tuple(values[name]) for name in ("word_sizes", "char_sizes", "syllable_sizes", "jamo_sizes")}
        vector_weight = float(values.get("vector_weight", 1.0))  # older ones have none
        return cls(
            word_weight=float(values["word_weight"]), vector_weight=vector_weight, weighting=values["weighting"],
            **sizes,
        )  # fmt: skip


def split_words(text: str) -> list[str]:
    """Words and runs of punctuation, in lower case."""
    return WORD.findall(unicodedata.normalize("NFC", text).lower())


def word_ngrams(words: Sequence[str], sizes: tuple[int, int]) -> list[str]:
    """N-grams of words, joined by a space; those of more than one word with the edges of the text.

    The end of the text is a word of its own, as in fastText: its share tells how long a text is.
    """
    ngrams = [*words, END] if sizes[0] <= 1 <= sizes[1] else []
    framed = [START, *words, END]
    for size in range(max(2, sizes[0]), sizes[1] + 1):
        ngrams += [" ".join(framed[start : start + size]) for start in range(len(framed) - size + 1)]
    return ngrams


def char_ngrams(word: str, settings: FeatureSettings) -> list[str]:
    """N-grams of the characters of one word between two spaces; after a tab, those of its Hangul letters."""
    ngrams = _inner_ngrams(word, settings.syllable_sizes if SYLLABIC.search(word) else settings.char_sizes)
    if HANGUL.search(word):
        letters = unicodedata.normalize("NFD", word)
        ngrams += [JAMO + ngram for ngram in _inner_ngrams(letters, settings.jamo_sizes)]
    return ngrams


def _inner_ngrams(word: str, sizes: tuple[int, int]) -> list[str]:
    smallest, largest = sizes
    padded = f" {word} "
    ngrams = list(word) if smallest <= 1 <= largest else []
    for size in range(max(2, smallest), min(largest, len(padded)) + 1):
        ngrams += [padded[start : start + size] for start in range(len(padded) - size + 1)]
    return ngrams


class TextFeatures:
    """Texts as sparse vectors over the n-grams of the training texts."""

    def __init__(
        self,
        settings: FeatureSettings,
        words: Sequence[str],
        chars: Sequence[str],
        idf: np.ndarray,
        vector_words: Sequence[str] = (),
        vectors: np.ndarray | None = None,
        ngram_table: NgramTable | None = None,
        unknown_idf: float = 1.0,
    ) -> None:
        """`idf` (words + chars,); `vectors` (vector words, D) of words, each scaled by its idf already.

        `ngram_table` is for words without a vector, and `unknown_idf` their weight.
        """
        if len(idf) != len(words) + len(chars):
            raise ValueError(f"{len(idf)} idf weights for {len(words)} + {len(chars)} n-grams")
        if (0 if vectors is None else len(vectors)) != len(vector_words):
            raise ValueError(f"the matrix of vectors does not have one row for each of {len(vector_words)} words")
        self.settings, self.words, self.chars, self.idf = settings, list(words), list(chars), idf
        if ngram_table is not None and (vectors is None or ngram_table.table.shape[1:] != vectors.shape[1:]):
            raise ValueError("the vectors of n-grams are not as wide as those of words")
        self.vector_words, self.vectors = list(vector_words), vectors
        self.ngram_table, self.unknown_idf = ngram_table, unknown_idf
        self.width = 0 if vectors is None else vectors.shape[1]
        self._word_columns = {ngram: column for column, ngram in enumerate(self.words)}
        self._char_columns = {ngram: column for column, ngram in enumerate(self.chars, len(self.words))}
        # n-grams of letters stand first among the characters
        self._jamo_end = len(self.words) + sum(ngram.startswith(JAMO) for ngram in self.chars)
        self._vector_rows = {word: row for row, word in enumerate(self.vector_words)}
        self.largest_idf = float(idf.max()) if len(idf) else 1.0
        self._cache: dict[str, tuple[list[int], int]] = {}

    @property
    def columns(self) -> int:
        return len(self.idf) + self.width

    def word_column(self, word: str) -> int | None:
        """The column of a 1-gram; None where no training text has it."""
        return self._word_columns.get(word)

    @classmethod
    def learn(
        cls,
        settings: FeatureSettings,
        texts: Iterable[str],
        smallest_count: int = 1,
        vector_words: Sequence[str] = (),
        vectors: np.ndarray | None = None,
        ngram_table: NgramTable | None = None,
    ) -> TextFeatures:
        """Collect the n-grams that occur in at least `smallest_count` texts, and their idf."""
        word_counts: Counter[str] = Counter()
        char_counts: Counter[str] = Counter()
        texts_of_words: Counter[str] = Counter()
        ngrams_of: dict[str, list[str]] = {}
        count = syllabic = 0
        for text in texts:
            words = split_words(text)
            count += 1
            word_counts.update(set(word_ngrams(words, settings.word_sizes)))
            distinct = set(words)
            texts_of_words.update(distinct)
            for word in distinct - ngrams_of.keys():
                ngrams_of[word] = char_ngrams(word, settings)
            char_counts.update({ngram for word in distinct for ngram in ngrams_of[word]})
            syllabic += sum(bool(SYLLABIC.search(word)) for word in distinct)
        if 2 * syllabic > sum(texts_of_words.values()):
            settings = replace(settings, word_weight=settings.word_weight / 2)
        word_names, char_names = (
            sorted(name for name, texts_with in counts.items() if texts_with >= smallest_count)
            for counts in (word_counts, char_counts)
        )
        frequencies = [*(word_counts[name] for name in word_names), *(char_counts[name] for name in char_names)]
        idf = np.log((1 + count) / (1 + np.array(frequencies, dtype=np.float64))) + 1
        if vectors is not None:
            others = sorted(texts_of_words.keys() - set(vector_words))
            if sum(texts_of_words[word] for word in others) < MANY_UNKNOWN * sum(texts_of_words.values()):
                ngram_table = None
            if ngram_table is not None:  # words of the training texts have an idf of their own
                vector_words = [*vector_words, *others]
                vectors = np.concatenate([vectors, ngram_table.vectors(others)])
            own = np.array([texts_of_words[word] for word in vector_words], dtype=np.float64)
            vectors = (vectors * (np.log((1 + count) / (1 + own)) + 1)[:, None]).astype(np.float32)
        unknown_idf = float(np.log(1 + count) + 1)
        idf = idf.astype(np.float32)
        return cls(settings, word_names, char_names, idf, vector_words, vectors, ngram_table, unknown_idf)

    def with_vector_weight(self, weight: float) -> TextFeatures:
        """The same n-grams, and word vectors of another weight."""
        return self._with(replace(self.settings, vector_weight=weight), self.idf)

    def without_idf(self) -> TextFeatures:
        """The same n-grams, all of one weight."""
        return self._with(self.settings, np.ones_like(self.idf))

    def _with(self, settings: FeatureSettings, idf: np.ndarray) -> TextFeatures:
        return TextFeatures(
            settings, self.words, self.chars, idf, self.vector_words, self.vectors, self.ngram_table, self.unknown_idf
        )

    def vector(self, text: str) -> SparseVector:
        """The columns and values of one text, of length 1."""
        words = split_words(text)
        known, ngrams = self._word_columns, word_ngrams(words, self.settings.word_sizes)
        word_columns = [known[ngram] for ngram in ngrams if ngram in known]
        char_columns: list[int] = []
        total = len(ngrams)  # unknown ones too: a text of which nothing is known is no short text
        for word in words:
            columns, count = self._columns_of(word)
            char_columns += columns
            total += count
        if not char_columns and all(column == known.get(END) for column in word_columns):
            word_columns = []  # nothing of the text is known: its length alone must not decide
        if self.settings.weighting == "mean":
            places, counts = np.unique(np.array(word_columns + char_columns, dtype=np.int64), return_counts=True)
            return places, counts / max(1, total)
        chars = np.array(char_columns, dtype=np.int64)
        is_jamo = chars < self._jamo_end
        groups = [
            (self._weigh(np.array(word_columns, dtype=np.int64)), self.settings.word_weight),
            (self._weigh(chars[is_jamo]), 1.0),
            (self._weigh(chars[~is_jamo]), 1.0),
            (self._mean_vector(words), self.settings.vector_weight),
        ]
        length = sum(weight**2 for (places, _), weight in groups if len(places)) ** 0.5
        places = np.concatenate([places for (places, _), _ in groups])
        return places, np.concatenate([values * weight for (_, values), weight in groups]) / max(length, 1e-12)

    def _columns_of(self, word: str) -> tuple[list[int], int]:
        """Columns of the known character n-grams of a word, and the number of all of them."""
        cached = self._cache.get(word)
        if cached is None:
            known, ngrams = self._char_columns, char_ngrams(word, self.settings)
            cached = [known[ngram] for ngram in ngrams if ngram in known], len(ngrams)
            if len(self._cache) < CACHED_WORDS:
                self._cache[word] = cached
        return cached

    def _weigh(self, occurrences: np.ndarray) -> SparseVector:
        """(1 + log tf) * idf of one group of columns, of length 1."""
        columns, counts = np.unique(occurrences, return_counts=True)
        values = (1 + np.log(counts)) * self.idf[columns]
        return columns, values / max(float(np.sqrt(values @ values)), 1e-12)

    def _mean_vector(self, words: Sequence[str]) -> SparseVector:
        """The sum of the scaled vectors of the words, of length 1; nothing where no word has one."""
        nothing = np.zeros(0, np.int64), np.zeros(0)
        if self.vectors is None:
            return nothing
        rows = [self._vector_rows[word] for word in words if word in self._vector_rows]
        total = self.vectors[rows].sum(0, dtype=np.float64)
        if self.ngram_table is not None and len(rows) < len(words):
            unknown = [word for word in words if word not in self._vector_rows]
            total += self.unknown_idf * self.ngram_table.vectors(unknown).sum(0, dtype=np.float64)
        length = float(np.sqrt(total @ total))
        return (np.arange(len(self.idf), self.columns), total / length) if length > 1e-12 else nothing

    def describe(self) -> dict[str, Any]:
        """JSON-ready: what `restore` needs beside the arrays."""
        return {
            "settings": self.settings.json(), "words": self.words, "chars": self.chars,
            "vector_words": self.vector_words, "unknown_idf": self.unknown_idf,
            "ngram_sizes": self.ngram_table and [self.ngram_table.smallest, self.ngram_table.largest],
        }  # fmt: skip

    def arrays(self) -> dict[str, np.ndarray]:
        arrays = {"idf": self.idf}
        if self.vectors is not None:
            arrays["vectors"] = self.vectors
        if self.ngram_table is not None:
            arrays["ngram_vectors"] = self.ngram_table.table
        return arrays

    @classmethod
    def restore(cls, description: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> TextFeatures:
        settings, sizes = FeatureSettings.parse(description["settings"]), description.get("ngram_sizes")
        return cls(
            settings, description["words"], description["chars"], arrays["idf"],
            description["vector_words"], arrays.get("vectors"),
            NgramTable(arrays["ngram_vectors"], *sizes) if sizes else None,
            description.get("unknown_idf", 1.0),  # older ones have neither
        )  # fmt: skip


def score_linear(vector: SparseVector, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """(outputs,) logits of one sparse vector."""
    columns, values = vector
    return values @ weight[columns].astype(np.float64) + bias


def softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits - logits.max())
    return exponentials / exponentials.sum()
