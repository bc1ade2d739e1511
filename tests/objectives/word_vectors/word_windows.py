"""A small text with falling frequencies and unknown words, and the slow way to its windows, pairs and noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from etude import chance as draw
from etude.chance import Chance
from etude.models import static
from etude.objectives.base import Row
from etude.objectives.word_vectors.windows import CorpusTables, WindowBatch, Windows
from etude.text.corpus.corpus import Corpus
from tests.objectives.small_corpus import SPECIAL, VOCAB, small_corpus

UNKNOWN = SPECIAL.unknown


def system(module: Any, buckets: int = 0, **options: Any) -> tuple[static.Static, Any]:
    """A model with vectors far enough from 0 that no gradient is trivially right, and its objective."""
    torch.manual_seed(0)
    model = static.build(static.Settings(width=7, vocab=VOCAB, buckets=buckets))
    with torch.no_grad():
        model.input.weight.normal_(0, 0.5)
        model.output.weight.normal_(0, 0.5)
    return model, module.build(module.Settings(**options), model, SPECIAL)


def corpus_of(documents: int = 6, size: int = 30, seed: int = 0) -> Corpus:
    """Tokens 6..39 with falling frequency, a few unknown ones."""
    chance = np.random.default_rng(seed)
    found = []
    for _ in range(documents):
        tokens = np.minimum(6 + chance.geometric(0.15, size) - 1, VOCAB - 1)
        tokens[chance.random(size) < 0.05] = UNKNOWN
        found.append([tokens.tolist()])
    return small_corpus(found)


def batch_of(objective: Windows, rows: Any, numbers: list[int], step: int = 3) -> WindowBatch:
    return objective.batch([rows[number] for number in numbers], Chance(11, step))


def slow_windows(
    row: Row, options: Any, text: CorpusTables, chance: Chance
) -> list[tuple[int, list[int], list[list[int]]]]:
    """Of one row, token by token: each centre, the words around it, and the noise of each of its slots.

    The slot of a context is its place in the window, counted from the window's first word.
    """
    found = []
    ends = {int(bound) for bound in row.bounds}
    kept: list[list[int]] = [[]]
    for place, token in enumerate(row.tokens.tolist()):
        if place in ends:
            kept.append([])
        if hashed(chance, row, place) >> 32 < int(text.keep_probs[token]):
            kept[-1].append(place)
    for document in kept:
        for number, place in enumerate(document):
            reach = 1 + ((hashed(chance, row, place) & 0xFFFFFFFF) * options.window >> 32)
            key = int(draw.random_bits(hashed(chance, row, place), np.array([0]))[0])
            before, behind = document[max(0, number - reach) : number], document[number + 1 : number + 1 + reach]
            words = row.tokens[[*before, place, *behind]].tolist()
            draws = range(options.negatives if len(text.noise.accept) else 0)
            noise = [[slow_noise(key, slot * options.negatives + k, text) for k in draws] for slot in range(len(words))]
            found.append((len(before), words, noise))
    return found


def hashed(chance: Chance, row: Row, place: int) -> int:
    return int(draw.random_bits(chance.key("windows", row.index), np.array([place]))[0])


def slow_noise(key: int, index: int, text: CorpusTables) -> int:
    drawn = int(draw.random_bits(key, np.array([index]))[0])
    slot = (drawn >> 32) * len(text.noise.accept) >> 32
    return slot if drawn & 0xFFFFFFFF < int(text.noise.accept[slot]) else int(text.noise.alias[slot])
