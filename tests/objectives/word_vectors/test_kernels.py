"""The tables of the inner loops: noise by its probabilities, trees of least depth; the slow loops told in one line."""

from __future__ import annotations

import heapq
import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude import chance as draw
from etude.objectives.word_vectors import kernels
from etude.objectives.word_vectors.kernels.tables import (
    CELLS,
    LIMIT,
    LOSS,
    SIGMOID,
    alias_table,
    huffman_paths,
    noise_table,
)

counts_ = st.lists(st.integers(0, 1000), min_size=2, max_size=60).filter(lambda counts: np.count_nonzero(counts) > 1)


@given(st.lists(st.one_of(st.just(0.0), st.floats(1e-9, 1e6)), min_size=1, max_size=60).filter(any))
@settings(max_examples=100, deadline=None)
def test_an_alias_table_holds_exactly_its_probabilities(weights: list[float]) -> None:
    probability = np.array(weights) / np.sum(weights)
    accept, alias = alias_table(probability)
    held = accept.copy()
    np.add.at(held, alias, 1 - accept)
    np.testing.assert_allclose(held / len(weights), probability, atol=1e-12)


@given(counts_)
@settings(max_examples=60, deadline=None)
def test_the_noise_table_gives_nothing_that_does_not_occur(counts: list[int]) -> None:
    accept, alias = noise_table(np.array(counts) ** 0.75)
    possible = set(np.flatnonzero(accept > 0).tolist()) | set(alias[accept < 2**32 - 1].tolist())
    assert all(counts[word] > 0 for word in possible)


def test_noise_follows_counts_to_the_three_quarters() -> None:
    counts = np.zeros(40, np.int64)
    counts[6:] = 10_000 / np.arange(1, 35) ** 1.2
    noise, drawn = noise_table(counts**0.75), 200_000
    hashes = draw.random_bits(7, np.arange(drawn))
    slots = ((hashes >> np.uint64(32)) * np.uint64(40) >> np.uint64(32)).astype(np.int64)
    words = np.where((hashes & np.uint64(0xFFFFFFFF)) < noise.accept[slots], slots, noise.alias[slots])
    found = np.bincount(words, minlength=40)
    expected = counts**0.75 / (counts**0.75).sum() * drawn
    assert found[:6].sum() == 0
    chi = ((found - expected)[6:] ** 2 / expected[6:]).sum()
    assert chi < 75  # 33 degrees of freedom: above 75 once in 10^5


@given(counts_)
@settings(max_examples=60, deadline=None)
def test_a_huffman_tree_is_a_tree_of_least_depth(counts: list[int]) -> None:
    paths = huffman_paths(np.array(counts))
    depths = np.diff(paths.bounds)
    present = np.flatnonzero(counts)
    assert (depths[present] > 0).all() and not np.delete(depths, present).any()
    codes = set()
    for word in present:
        span = slice(paths.bounds[word], paths.bounds[word + 1])
        nodes, labels = paths.nodes[span][::-1].tolist(), paths.labels[span][::-1].tolist()
        assert nodes[0] == len(present) - 2, "from the root"
        codes.add(tuple(zip(nodes, labels, strict=True)))
    assert len(codes) == len(present) and len(set(paths.nodes.tolist())) == len(present) - 1
    assert np.sum(0.5 ** depths[present]) == 1.0, "a whole binary tree"
    heap, cost = [int(count) for count in counts if count], 0
    heapq.heapify(heap)
    while len(heap) > 1:  # the cost of the best code: the sum of all inner nodes
        joined = heapq.heappop(heap) + heapq.heappop(heap)
        cost += joined
        heapq.heappush(heap, joined)
    assert int((depths * np.array(counts)).sum()) == cost


def test_the_sigmoid_as_a_table() -> None:
    scores = np.linspace(-LIMIT + 1e-3, LIMIT - 1e-3, 5000)
    cells = ((scores + LIMIT) * CELLS / (2 * LIMIT)).astype(int)
    assert np.abs(SIGMOID[cells] - 1 / (1 + np.exp(-scores))).max() < 0.0016  # half a cell, a slope of a quarter
    assert np.abs(LOSS[cells] - np.log1p(np.exp(-scores))).max() < 0.0061
    np.testing.assert_allclose(SIGMOID + SIGMOID[::-1], 1, rtol=1e-6)


def test_without_numba_the_plain_loops_are_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kernels.compiles.cache_clear()
    monkeypatch.setattr(kernels, "is_installed", lambda package: False)
    try:
        with caplog.at_level(logging.WARNING, "etude"):
            for of in ("windows", "glove", "windows"):
                assert not kernels.inner_loops(of).PARALLEL
        assert len(caplog.records) == 1 and "pip install 'etude[fast]'" in caplog.text
    finally:
        kernels.compiles.cache_clear()
