"""Clusters of word vectors: words that lie together share them, at every grain, the same every time."""

from __future__ import annotations

import numpy as np

from etude.baselines.word_clusters import GRAINS, cluster_words


def test_directions_become_clusters() -> None:
    draw = np.random.default_rng(1)
    matrix = np.concatenate([draw.normal(size=(600, 20)) * 0.1 + 3 * np.eye(20)[number] for number in range(4)])
    clusters = cluster_words(matrix)
    assert clusters.shape == (2400, len(GRAINS)) and clusters.dtype == np.int16
    assert np.array_equal(clusters, cluster_words(matrix))
    for grain, column in zip(GRAINS, clusters.T, strict=True):
        assert column.max() < grain
        owners = {number: set((np.flatnonzero(column == number) // 600).tolist()) for number in set(column.tolist())}
        assert all(len(groups) == 1 for groups in owners.values()), "no cluster holds words of two directions"


def test_few_words_have_few_clusters() -> None:
    assert cluster_words(np.eye(5)).max() == 0
