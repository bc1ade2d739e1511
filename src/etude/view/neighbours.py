"""Nearest words and analogies: what word vectors are looked at with.

An analogy a : b = c : ? is answered by the word whose direction is nearest to b - a + c, the three left out (3CosAdd,
Mikolov et al. 2013c), or by the largest cos(b) cos(c) / cos(a) (3CosMul, Levy & Goldberg 2014, section 6).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from etude.errors import UserError, suggest_name
from etude.hub.word_vectors import Unknown, WordVectors

Rule = Literal["add", "multiply"]
SMALL = 1e-3  # added to a divisor that may be 0 (Levy & Goldberg 2014)


def neighbours(vectors: WordVectors, word: str, top: int = 10, unknown: Unknown = "refuse") -> list[tuple[str, float]]:
    """The words of the largest cosine with a word, itself left out."""
    _known(vectors, [word], unknown)
    [vector] = vectors.vectors([word], unknown)
    length = float(np.linalg.norm(vector))
    if not length:
        raise UserError(f"The vector of '{word}' is 0: it has no neighbours.")
    scores = vectors.unit @ (vector / length)
    return _best(vectors, scores, [vectors.find_row(word)], top)


def analogy(vectors: WordVectors, a: str, b: str, c: str, top: int = 10, rule: Rule = "add") -> list[tuple[str, float]]:
    """Which word is to `c` as `b` is to `a`?"""
    _known(vectors, [a, b, c], "refuse")
    places = [vectors.find_row(word) for word in (a, b, c)]
    one, two, three = vectors.unit[[place for place in places if place is not None]]
    if rule == "add":
        scores = vectors.unit @ (two - one + three) / np.linalg.norm(two - one + three)
    else:
        less, more, same = ((vectors.unit @ vector + 1) / 2 for vector in (one, two, three))  # from 0 to 1
        scores = more * same / (less + SMALL)
    return _best(vectors, scores, places, top)


def _best(vectors: WordVectors, scores: np.ndarray, without: Sequence[int | None], top: int) -> list[tuple[str, float]]:
    scores = scores.copy()
    scores[[place for place in without if place is not None]] = -np.inf
    top = min(top, len(scores))
    found = np.argpartition(-scores, top - 1)[:top]
    found = found[np.argsort(-scores[found], kind="stable")]
    return [(vectors.words[place], float(scores[place])) for place in found if np.isfinite(scores[place])]


def _known(vectors: WordVectors, words: Sequence[str], unknown: Unknown) -> None:
    for word in words:
        if unknown == "refuse" and vectors.find_row(word) is None:
            hint = " --unknown subwords makes a vector of its n-grams." if vectors.grams else ""
            suggestion = suggest_name(word, vectors.words[:50_000])
            raise UserError(f"'{word}' is not among the {len(vectors.words):,} words.{suggestion}{hint}")
