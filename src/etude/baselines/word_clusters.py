"""Clusters of words by their vectors: what a tagger with few labels can know of words that it never saw.

k-means on the unit sphere (Dhillon & Modha 2001) at several grains; a word's features are the numbers of its clusters.
In linear taggers clusters do better than the vectors themselves (Guo et al. 2014; Lin & Wu 2009), and they are as cheap
as any other feature.
"""

from __future__ import annotations

import numpy as np

GRAINS = (64, 256, 1024)  # clusters; fewer where words are few
WORDS_PER_CLUSTER = 8  # at least, on average
ITERATIONS = 8
BLOCK = 4096  # words at once


def cluster_words(matrix: np.ndarray, seed: int = 0) -> np.ndarray:
    """(words, D) -> (words, grains) int16: the cluster of each word at each grain."""
    centred = matrix.astype(np.float32) - matrix.mean(0, dtype=np.float64).astype(np.float32)
    unit = centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-9)
    draw = np.random.default_rng(seed)
    sizes = [max(1, min(grain, len(unit) // WORDS_PER_CLUSTER)) for grain in GRAINS]
    return np.stack([_cluster(unit, size, draw) for size in sizes], axis=1).astype(np.int16)


def _cluster(unit: np.ndarray, size: int, draw: np.random.Generator) -> np.ndarray:
    """(words,) the nearest of `size` centres; a centre without words stays where it is."""
    centres = unit[draw.choice(len(unit), size, replace=False)]
    assigned = _nearest(unit, centres)
    for _ in range(ITERATIONS):
        sums = np.zeros_like(centres)
        np.add.at(sums, assigned, unit)
        lengths = np.linalg.norm(sums, axis=1, keepdims=True)
        centres = np.where(lengths > 1e-9, sums / np.maximum(lengths, 1e-9), centres)
        assigned = _nearest(unit, centres)
    return assigned


def _nearest(unit: np.ndarray, centres: np.ndarray) -> np.ndarray:
    blocks = range(0, len(unit), BLOCK)
    return np.concatenate([(unit[start : start + BLOCK] @ centres.T).argmax(1) for start in blocks])
