"""Nearest neighbours and analogies of word vectors.

An analogy a : b = c : ? is answered by the word whose direction is nearest to b - a + c, the three left out (3CosAdd,
Mikolov et al. 2013c), or by the largest cos(b) cos(c) / cos(a) (3CosMul, Levy & Goldberg 2014, section 6).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from etude.errors import UserError, suggest_nearest
from etude.hub.word_vectors import PIECE, Unknown, WordVectors
from etude.text.tokenizer.tokenizer import Tokenizer

Rule = Literal["add", "multiply"]
SUGGESTED = 50_000  # the most frequent words, of which one may have been meant
LONGEST = 40  # letters of a word for which others are suggested
SMALL = 1e-3  # added to a divisor that may be 0 (Levy & Goldberg 2014)


def neighbours(vectors: WordVectors, word: str, top: int = 10, unknown: Unknown = "refuse") -> list[tuple[str, float]]:
    """Return the words of the largest cosine with a word, itself left out; pieces of words only where one is asked."""
    word = Tokenizer.normalise(word)  # as the words of a run are
    _check_known(vectors, [word], unknown)
    [vector] = vectors.vectors([word], unknown)
    length = float(np.linalg.norm(vector))
    if not length:
        raise UserError(f"The vector of '{word}' is 0: it has no neighbours.")
    scores = vectors.unit @ (vector / length)
    return _top_words(vectors, scores, [word], top)


def analogy(vectors: WordVectors, a: str, b: str, c: str, top: int = 10, rule: Rule = "add") -> list[tuple[str, float]]:
    """Return the words that are to `c` as `b` is to `a`, the best first."""
    a, b, c = (Tokenizer.normalise(word) for word in (a, b, c))
    _check_known(vectors, [a, b, c], "refuse")
    places = [vectors.find_row(word) for word in (a, b, c)]
    vector_a, vector_b, vector_c = vectors.unit[[place for place in places if place is not None]]
    if rule == "add":
        scores = vectors.unit @ (vector_b - vector_a + vector_c) / np.linalg.norm(vector_b - vector_a + vector_c)
    else:
        shifted = ((vectors.unit @ vector + 1) / 2 for vector in (vector_a, vector_b, vector_c))  # from 0 to 1
        cosine_a, cosine_b, cosine_c = shifted
        scores = cosine_b * cosine_c / (cosine_a + SMALL)
    return _top_words(vectors, scores, [a, b, c], top)


def _top_words(vectors: WordVectors, scores: np.ndarray, asked: Sequence[str], top: int) -> list[tuple[str, float]]:
    """Return the `top` words of the highest scores, without those asked, and without pieces unless one was asked."""
    scores = scores.copy()
    scores[[place for word in asked if (place := vectors.find_row(word)) is not None]] = -np.inf
    if not any(word.startswith(PIECE) for word in asked):
        scores[vectors.pieces] = -np.inf
    top = min(top, len(scores))
    places = np.argpartition(-scores, top - 1)[:top]
    places = places[np.argsort(-scores[places], kind="stable")]
    return [(vectors.words[place], float(scores[place])) for place in places if np.isfinite(scores[place])]


def _check_known(vectors: WordVectors, words: Sequence[str], unknown: Unknown) -> None:
    """Raise UserError for a word without a vector, under the rule "refuse"."""
    for word in words:
        if unknown == "refuse" and vectors.find_row(word) is None:
            advice = "--unknown subwords makes a vector of its n-grams." if vectors.grams else ""
            excerpt = word if len(word) <= LONGEST else f"{word[:LONGEST]}…"
            suggestion = _suggest_word(word, vectors.words)
            raise UserError(f"'{excerpt}' is not among the {len(vectors.words):,} words.{suggestion}", advice)


def _suggest_word(word: str, words: Sequence[str]) -> str:
    """Return a hint for a mistyped word; only words of much the same letters are compared one by one: they are many."""
    if len(word) > LONGEST:
        return ""
    letters = set(word)
    alike = [
        other
        for other in words[:SUGGESTED]
        if abs(len(other) - len(word)) <= 2
        and len(letters.intersection(other)) >= 0.6 * len(letters)
        and not other.startswith(PIECE)
    ]
    return suggest_nearest(word, alike)
