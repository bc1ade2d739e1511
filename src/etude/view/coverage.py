"""Vocabulary coverage: which words of a text have a vector.

A word is looked up as it is written, then in lower case, then with its digits as 0 (Lample et al. 2016); the rest are
unknown. A tagger guesses at unknown words, so this is worth a look before training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from tokenizers import Regex, pre_tokenizers

from etude.hub.word_vectors import WordVectors
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.text.tokenizer.training import WORD_PATTERN

BLOCK = 4096  # unknown words whose n-grams are summed at once


@dataclass(frozen=True)
class Coverage:
    """Counts of known and unknown words of a text."""

    words: int  # of the text
    distinct: int  # different ones
    known: dict[str, int]  # words that were found as written, in lower case, with digits as 0
    unknown: Counter[str]  # the others
    from_ngrams: (
        int | None
    )  # of these, words of the text whose n-grams give a vector; None: the vectors have no n-grams

    @property
    def share(self) -> float:
        """The share of the words of the text without a vector."""
        return self.unknown.total() / max(1, self.words)


def measure_coverage(vectors: WordVectors, texts: Iterable[str]) -> Coverage:
    """Count the words of texts with and without a vector."""
    splitter = pre_tokenizers.Split(Regex(WORD_PATTERN), "removed", invert=True)
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(word for word, _ in splitter.pre_tokenize_str(Tokenizer.normalise(text)))
    known = dict.fromkeys(("as written", "lower case", "digits as 0"), 0)
    unknown: Counter[str] = Counter()
    for word, count in counts.items():
        if word in vectors.index:
            known["as written"] += count
        elif word.lower() in vectors.index:
            known["lower case"] += count
        elif vectors.find_row(word) is not None:
            known["digits as 0"] += count
        else:
            unknown[word] = count
    from_ngrams = None
    if vectors.grams is not None:
        unknown_words = list(unknown)
        from_ngrams = 0
        for start in range(0, len(unknown_words), BLOCK):
            part = unknown_words[start : start + BLOCK]
            has_vector = np.abs(vectors.grams.vectors(part)).sum(1) > 0
            from_ngrams += sum(
                unknown[word] for word, is_composed in zip(part, has_vector.tolist(), strict=True) if is_composed
            )
    return Coverage(counts.total(), len(counts), known, unknown, from_ngrams)
