"""The surfaces of a graph's entities: labels and aliases as phrases of hashed words, with a weight each.

A surface is left out where it could not be told from plain text: without a letter (1984), of a single letter, a single
function word (it, The; not IT), or longer than `MAX_WORDS`. Underscores are spaces, and a label such as
"Paris (mythology)" also names its entity without what is in brackets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Self

import numpy as np

from etude.graph.graph import Graph
from etude.graph.lemmas import pluralize
from etude.graph.linking.case_rules import Shape, find_shapes
from etude.graph.linking.word_trie import MAX_WORDS
from etude.graph.linking.words import BETWEEN, Words
from etude.text.function_words import FUNCTION_WORDS
from etude.text.tokenizer.normalization import normalize_nfc

CHUNK = 1 << 16  # surfaces that are hashed together
BRACKETS = re.compile(r"(?<=\S)\s*\([^()]*\)\Z")

Surface = tuple[str, int, float]  # text, entity, weight


@dataclass
class Surfaces:
    """Phrases with the entity that each names (P phrases, W words)."""

    hashes: np.ndarray  # (W,) uint64, of all phrases end to end
    follows_space: np.ndarray  # (W,) bool
    bounds: np.ndarray  # (P + 1,) int64: first word of each phrase, and the end
    cased: np.ndarray  # (P,) uint64: hash of the places of upper-case letters
    shapes: np.ndarray  # (P,) uint8
    entities: np.ndarray  # (P,) int32
    weights: np.ndarray  # (P,) float32

    @classmethod
    def collect(cls, surfaces: Iterable[Surface], min_letters: int, common: bool = True) -> Self:
        """Hash surfaces, a chunk at a time, without those that are like plain text.

        `common` False leaves out single words in lower case, too.
        """
        stream = iter(surfaces)
        parts = []
        while chunk := list(islice(stream, CHUNK)):
            parts.append(cls._hash(chunk, min_letters, common))
        if not parts:
            parts = [cls._hash([], min_letters, common)]
        lengths = np.concatenate([np.diff(part.bounds) for part in parts])
        return cls(
            bounds=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            hashes=np.concatenate([part.hashes for part in parts]),
            follows_space=np.concatenate([part.follows_space for part in parts]),
            cased=np.concatenate([part.cased for part in parts]),
            shapes=np.concatenate([part.shapes for part in parts]),
            entities=np.concatenate([part.entities for part in parts]),
            weights=np.concatenate([part.weights for part in parts]),
        )

    @classmethod
    def _hash(cls, chunk: list[Surface], min_letters: int, common: bool = True) -> Self:
        texts = [normalize_nfc(text.replace(BETWEEN, " ")) for text, _, _ in chunk]
        words = Words(texts)
        hashes = words.hash_prefixes(slice(None), words.ends)
        text_starts = np.cumsum([0, *(len(text) + 1 for text in texts)])
        firsts = np.searchsorted(words.starts, text_starts)
        lengths = np.diff(firsts) - 1  # without the word between two texts
        chosen = np.flatnonzero(lengths > 0)
        starts = words.starts[firsts[chosen]]
        ends = words.ends[firsts[chosen] + lengths[chosen] - 1]
        is_single = lengths[chosen] == 1
        counts = words.count_letters(starts, ends)
        shapes = find_shapes(words, starts, counts, is_single)
        is_function_word = is_single & np.isin(hashes[firsts[chosen]], _hash_function_words())
        is_usable = (counts.letters >= max(1, min_letters)) & (lengths[chosen] <= MAX_WORDS)
        is_usable &= ~is_function_word | (shapes == Shape.UPPER)
        if not common:
            is_usable &= ~is_single | (shapes != Shape.LOWER)
        has_long_word = np.add.reduceat(hashes == 0, firsts[chosen]) if len(chosen) else np.zeros(0)
        is_usable &= has_long_word == 0
        chosen, starts, ends, shapes = chosen[is_usable], starts[is_usable], ends[is_usable], shapes[is_usable]
        word_counts = lengths[chosen]
        places = np.repeat(firsts[chosen] - np.cumsum(word_counts) + word_counts, word_counts) + np.arange(
            word_counts.sum()
        )
        return cls(
            hashes[places], words.follows_space[places], np.concatenate([[0], np.cumsum(word_counts)]).astype(np.int64),
            words.hash_cases(starts, ends), shapes,
            np.fromiter((chunk[number][1] for number in chosen.tolist()), np.int32, len(chosen)),
            np.fromiter((chunk[number][2] for number in chosen.tolist()), np.float32, len(chosen)),
        )  # fmt: skip


def _hash_function_words() -> np.ndarray:
    words = Words(sorted(FUNCTION_WORDS))
    return words.hash_prefixes(slice(None), words.ends)[::2]


def list_surfaces(
    graph: Graph, weights: np.ndarray, alias_weight: float, commas: bool, plurals: bool = False
) -> Iterator[Surface]:
    """Yield labels, then aliases at a share of the weight, of every entity of a graph.

    `commas`: whether what follows the first comma tells apart, and the label is a name without it, too. `plurals`:
    whether a label in lower case is a name with its last word in the plural, too.
    """
    for entity, weight in enumerate(weights.tolist()):
        label = graph.label(entity).replace("_", " ")
        yield label, entity, weight
        for alias in graph.aliases(entity):
            yield alias.replace("_", " "), entity, alias_weight * weight
        if label.endswith(")") and (bare := BRACKETS.sub("", label)) != label:
            yield bare, entity, alias_weight * weight
        elif commas and "," in label:
            yield label.partition(",")[0], entity, alias_weight * weight
        if plurals and label.isascii() and label.islower() and (form := pluralize(label)):
            yield form, entity, alias_weight * weight
