"""Which words of a text have a vector, and what stands for those that have none.

A word is looked up as it is written, then in lower case, then with its digits as 0 (Lample et al. 2016); what is left
is unknown. A tagger that meets many unknown words is a tagger that guesses, so this is worth a look before training.
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

BLOCK = 4096  # unknown words whose sub-words are looked at together


@dataclass(frozen=True)
class Coverage:
    words: int  # of the text
    kinds: int  # different ones
    found: dict[str, int]  # words that were found as written, in lower case, with digits as 0
    unknown: Counter[str]  # the others
    spelled: int | None  # of these, words of the text whose n-grams give a vector; None: the vectors have no n-grams

    @property
    def share(self) -> float:
        """Of the words of the text, those without a vector."""
        return self.unknown.total() / max(1, self.words)


def coverage(vectors: WordVectors, texts: Iterable[str]) -> Coverage:
    cut = pre_tokenizers.Split(Regex(WORD_PATTERN), "removed", invert=True)
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(word for word, _ in cut.pre_tokenize_str(Tokenizer.normalise(text)))
    found = dict.fromkeys(("as written", "lower case", "digits as 0"), 0)
    unknown: Counter[str] = Counter()
    for word, count in counts.items():
        if word in vectors.index:
            found["as written"] += count
        elif word.lower() in vectors.index:
            found["lower case"] += count
        elif vectors.find_row(word) is not None:
            found["digits as 0"] += count
        else:
            unknown[word] = count
    spelled = None
    if vectors.grams is not None:
        strange = list(unknown)
        spelled = 0
        for start in range(0, len(strange), BLOCK):
            part = strange[start : start + BLOCK]
            moved = np.abs(vectors.grams.vectors(part)).sum(1) > 0
            spelled += sum(unknown[word] for word, has in zip(part, moved.tolist(), strict=True) if has)
    return Coverage(counts.total(), len(counts), found, unknown, spelled)
