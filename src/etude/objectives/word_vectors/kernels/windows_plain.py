"""The loops in numpy, for where numba is not installed: the same updates in the same order, a pair at a time.

Also the plain reading of what `windows_compiled.py` does.
"""

from __future__ import annotations

import numpy as np

from etude.chance import random_bits
from etude.objectives.word_vectors.kernels.tables import CELLS, LIMIT, LOSS, SIGMOID, Noise, Paths, Subwords

PARALLEL = False  # threads of Python take turns


def skip_gram(
    words: np.ndarray, low: np.ndarray, high: np.ndarray, keys: np.ndarray, start: int, stop: int,
    inputs: np.ndarray, outputs: np.ndarray, subwords: Subwords, noise: Noise, paths: Paths, negatives: int,
    rate: float,
) -> float:  # fmt: skip
    """See windows_compiled.skip_gram."""
    loss = 0.0
    for centre in range(start, stop):
        rows = _rows(int(words[centre]), subwords)
        hidden = inputs[rows].mean(0)
        total = np.zeros_like(hidden)
        growth = subwords.growth[words[centre]]
        for neighbour in range(low[centre], high[centre]):
            if neighbour == centre:
                continue
            targets = _targets(
                int(words[neighbour]), keys[centre], int(neighbour - low[centre]) * negatives, negatives, noise, paths
            )
            change, added = _learn(hidden, outputs, *targets, np.float32(rate), len(paths.bounds) > 0)
            hidden += growth * change
            total += change
            loss += added
        np.add.at(inputs, rows, total)
    return loss


def cbow(
    words: np.ndarray, low: np.ndarray, high: np.ndarray, keys: np.ndarray, start: int, stop: int,
    inputs: np.ndarray, outputs: np.ndarray, subwords: Subwords, noise: Noise, paths: Paths, negatives: int,
    rate: float, divide: bool,
) -> float:  # fmt: skip
    """See windows_compiled.cbow."""
    loss = 0.0
    for centre in range(start, stop):
        around = [int(words[neighbour]) for neighbour in range(low[centre], high[centre]) if neighbour != centre]
        if not around:
            continue
        rows = np.concatenate([_rows(word, subwords) for word in around])
        targets = _targets(int(words[centre]), keys[centre], 0, negatives, noise, paths)
        hidden = inputs[rows].mean(0)
        change, added = _learn(hidden, outputs, *targets, np.float32(rate), len(paths.bounds) > 0)
        np.add.at(inputs, rows, change / np.float32(len(rows)) if divide else change)
        loss += added
    return loss


def _rows(word: int, subwords: Subwords) -> np.ndarray:
    return subwords.rows[subwords.bounds[word] : subwords.bounds[word + 1]]


def _targets(
    word: int, key: np.uint64, first: int, negatives: int, noise: Noise, paths: Paths
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of the output table, all different, the labels they are to be learnt with, and how often each counts."""
    if len(paths.bounds):
        span = slice(paths.bounds[word], paths.bounds[word + 1])
        return paths.nodes[span], paths.labels[span], np.ones_like(paths.labels[span])
    bits = random_bits(int(key), np.arange(first, first + negatives))
    slot = (((bits >> np.uint64(32)) * np.uint64(len(noise.accept))) >> np.uint64(32)).astype(np.int64)
    own = (bits & np.uint64(0xFFFFFFFF)) < noise.accept[slot]
    drawn_words, times = np.unique(np.where(own, slot, noise.alias[slot]), return_counts=True)
    different = drawn_words != word  # skipped, not drawn again [code]
    rows = np.concatenate([[word], drawn_words[different]])
    labels = np.zeros(len(rows), np.float32)
    labels[0] = 1
    return rows, labels, np.concatenate([[1], times[different]]).astype(np.float32)


def _learn(
    hidden: np.ndarray, table: np.ndarray, rows: np.ndarray, labels: np.ndarray, weights: np.ndarray, rate: np.float32,
    hard: bool,
) -> tuple[np.ndarray, float]:  # fmt: skip
    """See windows_compiled._learn."""
    outputs = table[rows]  # (T, D)
    scores = outputs @ hidden
    inside = np.abs(scores) < LIMIT
    cells = np.where(inside, (scores + np.float32(LIMIT)) * np.float32(CELLS / (2 * LIMIT)), 0).astype(np.int64)
    certain = (scores >= LIMIT).astype(np.float32)
    grads = np.where(inside, labels - SIGMOID[cells], 0.0 if hard else labels - certain).astype(np.float32)
    grads *= rate * weights
    right = np.where(labels == 1, LOSS[cells], LOSS[CELLS - 1 - cells])
    beyond = np.where((labels != certain) | np.isnan(scores), np.where(labels == 1, -scores, scores), 0)
    table[rows] = outputs + grads[:, None] * hidden
    return grads @ outputs, float((weights * np.where(inside, right, beyond)).sum(dtype=np.float64))
