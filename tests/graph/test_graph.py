"""Graphs in memory: names, labels, adjacency against a brute-force dict, and refused ids."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.errors import UserError
from etude.graph.graph import Graph, check_graph

ENTITIES = ["/m/seoul", "/m/한강", "/m/korea", "/m/alone"]
RELATIONS = ["capital_of", "flows_through"]
TRIPLES = [[0, 0, 2], [1, 1, 0], [1, 1, 2]]


def small_graph() -> Graph:
    return Graph.from_triples(
        TRIPLES, ENTITIES, RELATIONS, valid=[[0, 1, 1]], labels=["Seoul", "Han", "", ""],
        aliases=[["서울", "Seoul city"], [], [], []], descriptions=["a city", "", "", ""],
    )  # fmt: skip


def test_names_labels_and_splits() -> None:
    graph = small_graph()
    assert graph.splits == ("train", "valid")
    assert [graph.entities.find(name) for name in ENTITIES] == [0, 1, 2, 3]
    assert graph.entities.find("/m/nowhere") is None and graph.entities.find("") is None
    assert list(graph.relations) == RELATIONS and len(graph.entities) == 4 and "/m/한강" in graph.entities
    assert [graph.label(entity) for entity in range(4)] == ["Seoul", "Han", "/m/korea", "/m/alone"]
    assert graph.aliases(0) == ["서울", "Seoul city"] and graph.aliases(1) == []
    assert graph.description(0) == "a city" and graph.description(3) == ""
    assert graph.triples().tolist() == TRIPLES and graph.triples("valid").tolist() == [[0, 1, 1]]
    assert graph.weights() is None
    with pytest.raises(UserError, match=r"no split 'test'\. Splits: train, valid"):
        graph.triples("test")
    with pytest.raises(ValueError, match="in memory has no folder"):
        _ = graph.folder


def test_rows_of_neighbours() -> None:
    graph = small_graph()
    neighbours, relations = graph.outgoing.of(1)
    assert neighbours.tolist() == [0, 2] and relations.tolist() == [1, 1]
    assert graph.incoming.of(2)[0].tolist() == [0, 1] and graph.incoming.of(2)[1].tolist() == [0, 1]
    assert graph.outgoing.of(3)[0].tolist() == []
    assert graph.outgoing.degrees().tolist() == [1, 2, 0, 0]
    with pytest.raises(IndexError):
        graph.outgoing.of(4)
    assert graph.outgoing.bounds.dtype == np.int64 and graph.outgoing.neighbours.dtype == np.int32


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 2), st.integers(0, 8)), max_size=40))
def test_rows_equal_a_dict(triples: list[tuple[int, int, int]]) -> None:
    graph = Graph.from_triples(triples, [f"e{i}" for i in range(9)], ["a", "b", "c"])
    for entity in range(9):
        expected = sorted((tail, relation) for head, relation, tail in triples if head == entity)
        assert list(zip(*(a.tolist() for a in graph.outgoing.of(entity)), strict=True)) == expected
        expected = sorted((head, relation) for head, relation, tail in triples if tail == entity)
        assert list(zip(*(a.tolist() for a in graph.incoming.of(entity)), strict=True)) == expected


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=8), unique=True, max_size=30), st.text(max_size=8))
def test_names_are_found(names: list[str], probe: str) -> None:
    graph = Graph.from_triples([], names, [])
    assert list(graph.entities) == names
    assert [graph.entities.find(name) for name in names] == list(range(len(names)))
    assert graph.entities.find(probe) == (names.index(probe) if probe in names else None)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(UserError, match="train triples with entities from 4 to 4, but 4 entities"):
        Graph.from_triples([[0, 0, 4]], ENTITIES, RELATIONS)
    with pytest.raises(UserError, match="valid triples with relations from 2 to 2, but 2 relations"):
        Graph.from_triples(TRIPLES, ENTITIES, RELATIONS, valid=[[0, 2, 1]])
    with pytest.raises(UserError, match="1 labels for 4 entities"):
        Graph.from_triples(TRIPLES, ENTITIES, RELATIONS, labels=["x"])
    with pytest.raises(UserError, match="1 weights for 3 train triples"):
        Graph.from_triples(TRIPLES, ENTITIES, RELATIONS, weights=[1.0])
    with pytest.raises(ValueError, match="'a' stands at 0 and at 2"):
        Graph.from_triples([], ["a", "b", "a"], [])


def test_what_a_killed_save_left_behind_is_in_nobodys_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "graph.partial").mkdir()
    (tmp_path / f".graph.partial-{os.getpid()}").mkdir()
    assert len(small_graph().save(tmp_path / "graph").triples()) == len(TRIPLES)
    monkeypatch.setattr("etude.graph.graph.write_manifest", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        small_graph().save(tmp_path / "other")
    assert {path.name for path in tmp_path.iterdir()} == {"graph", "graph.partial"}


def test_fingerprints_tell_graphs_apart() -> None:
    graph = small_graph()
    assert graph.fingerprint == small_graph().fingerprint
    renamed = Graph.from_triples(TRIPLES, ["other", *ENTITIES[1:]], RELATIONS)
    assert graph.fingerprint != renamed.fingerprint
    check_graph(graph, graph.fingerprint, "The run x")
    with pytest.raises(UserError, match="The run x was made with another graph"):
        check_graph(graph, renamed.fingerprint, "The run x")
    assert pickle.loads(pickle.dumps(graph)).fingerprint == graph.fingerprint
