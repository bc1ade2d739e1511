"""Path search against networkx on random graphs; concept graphs, caps and hubs."""

from __future__ import annotations

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.graph.concept_graph import ConceptGraph, build_concept_graph
from etude.graph.graph import Graph
from etude.graph.path_kernel import compile_search
from etude.graph.paths import PathSearch


@st.composite
def random_graphs(draw: st.DrawFn) -> tuple[ConceptGraph, networkx.Graph]:
    count = draw(st.integers(2, 9))
    triple = st.tuples(st.integers(0, count - 1), st.integers(0, 2), st.integers(0, count - 1))
    triples = draw(st.lists(triple, min_size=1, max_size=30).filter(lambda all: any(h != t for h, _, t in all)))
    graph = Graph.from_triples(triples, [f"e{n}" for n in range(count)], ["r0", "r1", "r2"])
    plain = networkx.Graph()
    plain.add_nodes_from(range(count))
    plain.add_edges_from((head, tail) for head, _, tail in triples if head != tail)
    return build_concept_graph(graph), plain


def reference(
    plain: networkx.Graph, source: int, target: int, edges: int, most: int, degree: int | None
) -> list[list[int]]:
    """Shorter first, then by concepts; hubs removed unless they are an end."""
    hubs = [node for node, size in plain.degree if degree is not None and size > degree]
    inner = plain.copy()
    inner.remove_nodes_from(set(hubs) - {source, target})
    paths = networkx.all_simple_paths(inner, source, target, cutoff=edges) if source != target else []
    return sorted(paths, key=lambda path: (len(path), path))[:most]


def check_all_pairs(graph: ConceptGraph, plain: networkx.Graph, edges: int, most: int, degree: int | None) -> None:
    count = len(graph.names)
    targets, sources = (side.ravel() for side in np.divmod(np.arange(count * count), count))
    paths = PathSearch(graph, edges, most, degree).search(sources, targets)
    assert (np.diff(paths.pairs) >= 0).all()
    for pair, (source, target) in enumerate(zip(sources.tolist(), targets.tolist(), strict=True)):
        own = [[c for c in path if c >= 0] for path in paths.concepts[paths.pairs == pair].tolist()]
        assert own == reference(plain, source, target, edges, most, degree)


@given(random_graphs(), st.integers(1, 4), st.sampled_from([1, 2, 5, 1000]), st.sampled_from([None, 1, 2, 4]))
@settings(max_examples=100, deadline=None)
def test_paths_are_those_of_networkx(
    graphs: tuple[ConceptGraph, networkx.Graph], edges: int, most: int, degree: int | None
) -> None:
    check_all_pairs(*graphs, edges, most, degree)


@pytest.mark.parametrize("edges", [1, 2, 3, 4])
@pytest.mark.parametrize("degree", [None, 4])
def test_paths_of_dense_graphs_are_simple(edges: int, degree: int | None) -> None:
    """Drawn graphs are mostly sparse: few of them have a path that could meet itself."""
    for seed in range(5):
        plain = networkx.gnm_random_graph(8, 16, seed=seed)
        triples = [(head, 0, tail) for head, tail in plain.edges]
        graph = build_concept_graph(Graph.from_triples(triples, [f"e{n}" for n in range(8)], ["r0"]))
        check_all_pairs(graph, plain, edges, 1000, degree)


@pytest.mark.slow  # numba compiles for seconds
@given(random_graphs(), st.integers(1, 4))
@settings(max_examples=50, deadline=None)
def test_compiled_loops_find_the_same_as_plain_ones(graphs: tuple[ConceptGraph, networkx.Graph], edges: int) -> None:
    graph, _ = graphs
    count = len(graph.names)
    sources, targets = np.arange(count), np.arange(count)[::-1].copy()
    plain = PathSearch(graph, edges, 7).search(sources, targets)
    concepts, pairs = compile_search()(graph.bounds, graph.neighbours, np.ones(count, bool), sources, targets, edges, 7)
    assert np.array_equal(plain.concepts, concepts) and np.array_equal(plain.pairs, pairs)


def test_more_edges_than_are_written_out_are_refused() -> None:
    graph = build_concept_graph(Graph.from_triples([(0, 0, 1)], ["a", "b"], ["r"]))
    with pytest.raises(ValueError, match="5 edges"):
        PathSearch(graph, 5)


@pytest.mark.slow
def test_paths_at_the_size_of_commonsenseqa_take_seconds() -> None:
    """A random graph as large as ConceptNet: 300 000 concepts, two million edges, a million pairs."""
    draw = np.random.default_rng(0)
    triples = np.stack([draw.integers(0, 300_000, 2_000_000), np.zeros(2_000_000, int), draw.zipf(1.5, 2_000_000)], 1)
    triples[:, 2] %= 300_000
    graph = build_concept_graph(Graph.from_triples(triples, [f"e{n}" for n in range(300_000)], ["r"]))
    ends = draw.integers(0, 300_000, (2, 1_000_000))
    paths = PathSearch(graph, 2, 100, 1000).search(ends[0], ends[1])
    assert len(paths.pairs) and (np.bincount(paths.pairs) <= 100).all()
