"""Triples as rows: every epoch another order, the same row for the same number; statistics of relations."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from etude.graph.graph import Graph
from etude.graph.graph_split import GraphSplit
from etude.objectives.rows.triples import TripleRows, head_shares, subsampling_weights


def make_graph(count: int = 50, valid: int = 7) -> Graph:
    draw = np.random.default_rng(1)
    triples = np.unique(
        np.stack([draw.integers(20, size=200), draw.integers(3, size=200), draw.integers(20, size=200)], 1), axis=0
    )
    triples = draw.permutation(triples)
    return Graph.from_triples(
        triples[:count], [f"e{k}" for k in range(20)], ["a", "b", "c"], valid=triples[count : count + valid]
    )


def test_an_epoch_reads_each_triple_at_most_once_and_the_next_in_another_order() -> None:
    rows = TripleRows(GraphSplit(make_graph()), 8, 0, None, None)
    assert len(rows) == 6 and rows.row_tokens == 8
    epochs = [[number for row in range(6) for number in rows[e * 6 + row].tokens.tolist()] for e in range(12)]
    for numbers in epochs:
        assert len(set(numbers)) == 48
    assert epochs[0] != epochs[1]
    assert set().union(*epochs) == set(range(50))  # what an epoch leaves out comes in another


def test_a_row_is_the_same_whoever_asks() -> None:
    source = GraphSplit(make_graph())
    first, second = TripleRows(source, 8, 5, None, None), TripleRows(source, 8, 5, None, None)
    forward = {number: first[number].triples for number in (0, 3, 17, 100_003)}
    for number in (100_003, 17, 3, 0):
        np.testing.assert_array_equal(second[number].triples, forward[number])
    assert not np.array_equal(TripleRows(source, 8, 6, None, None)[0].tokens, first[0].tokens)


def test_held_out_triples_stand_in_order_and_none_is_left_out() -> None:
    graph = make_graph()
    rows = TripleRows(GraphSplit(graph, "valid"), 4, 0, None, None)
    assert [len(rows[number].tokens) for number in range(len(rows))] == [4, 3]
    np.testing.assert_array_equal(np.concatenate([rows[0].triples, rows[1].triples]), graph.triples("valid"))


def test_a_graph_smaller_than_a_row_is_one_row() -> None:
    rows = TripleRows(GraphSplit(make_graph(count=5)), 128, 0, None, None)
    assert len(rows) == 1 and rows.row_tokens == 5


def test_head_shares_are_tails_a_head_over_both() -> None:
    triples = np.array([[0, 0, 1], [0, 0, 2], [0, 0, 3], [4, 0, 1], [5, 1, 6], [5, 1, 6]])
    # relation 0: 4 triples, 2 heads, 3 tails: tph 2, hpt 4/3; relation 1: one distinct triple; relation 2: none
    np.testing.assert_allclose(head_shares(triples, 3), [2 / (2 + 4 / 3), 0.5, 0.5], rtol=1e-6)


def test_subsampling_weights_fall_with_the_counts_of_both_sides() -> None:
    triples = make_graph().triples("train")
    weights = subsampling_weights(triples, 3)
    pairs = Counter((h, r) for h, r, _ in triples.tolist()), Counter((r, t) for _, r, t in triples.tolist())
    plain = np.array([1 / math.sqrt(pairs[0][h, r] + 3 + pairs[1][r, t] + 3) for h, r, t in triples.tolist()])
    np.testing.assert_allclose(weights, plain / plain.mean(), rtol=1e-5)
