"""Vectors of entities from runs, text files and OpenKE's folders; damaged files say where."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from etude.errors import UserError
from etude.graph.entity_table import ENTITIES, load_entity_table, write_entity_file
from etude.graph.graph import Graph

NAMES = ["Mira", "the old mill", "빵집", "x y"]


def make_vectors(rows: int = 4, width: int = 3) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, width)).astype(np.float32)


def make_run(folder: Path, vectors: np.ndarray, relations: np.ndarray, graph: str = "f") -> Path:
    folder.mkdir()
    (folder / "recipe.yaml").write_text("name: x")
    save_file({"model.entities.weight": vectors, "model.relations.weight": relations}, folder / "model.safetensors")
    content = {"graph": graph, "entities": NAMES, "relations": ["lives in", "owns"]}
    (folder / ENTITIES).write_text(json.dumps(content))
    return folder


def test_a_text_file_reads_back_the_same_bits(tmp_path: Path) -> None:
    vectors, path = make_vectors(), tmp_path / "entities.vec"
    write_entity_file(NAMES, vectors, path)
    table = load_entity_table(path)
    assert table.names == NAMES and table.graph is None and table.width == 3
    np.testing.assert_array_equal(table.vectors, vectors)
    np.testing.assert_array_equal(table.vector("빵집"), vectors[2])
    packed = tmp_path / "entities.vec.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    np.testing.assert_array_equal(load_entity_table(packed).vectors, vectors)


def test_a_file_without_header_and_with_spaces_is_read(tmp_path: Path) -> None:
    path = tmp_path / "v.txt"
    path.write_text("a 1 2\nb 3 -4e-1\n")
    table = load_entity_table(path)
    assert table.names == ["a", "b"]
    np.testing.assert_allclose(table.vectors, [[1, 2], [3, -0.4]])


def test_a_table_with_tabs_alone_is_read(tmp_path: Path) -> None:
    """Numbers with tabs between them are numbers, not a part of the name; a byte order mark is neither."""
    path = tmp_path / "v.tsv"
    path.write_bytes("\ufeffthe old mill\t1\t2\t3\r\nb\t3\t-4e-1\t0\r\n".encode())
    table = load_entity_table(path)
    assert table.names == ["the old mill", "b"]
    np.testing.assert_allclose(table.vectors, [[1, 2, 3], [3, -0.4, 0]])


def test_a_run_gives_vectors_names_and_its_graph(tmp_path: Path) -> None:
    vectors, relations = make_vectors(), make_vectors(2, 3)
    table = load_entity_table(make_run(tmp_path / "run", vectors, relations))
    assert (table.graph, table.relation_names) == ("f", ["lives in", "owns"])
    np.testing.assert_array_equal(table.vectors, vectors)
    np.testing.assert_array_equal(table.relations, relations)


def test_openke_folder_is_read_by_its_ids(tmp_path: Path) -> None:
    vectors = make_vectors(3, 2)
    (tmp_path / "entity2vec.vec").write_text("\n".join("\t".join(map(str, row)) for row in vectors) + "\n")
    (tmp_path / "entity2id.txt").write_text("3\nQ3\t2\nQ1\t0\nQ2\t1\n")
    table = load_entity_table(tmp_path)
    assert table.names == ["Q1", "Q2", "Q3"] and len(table.relations) == 0
    np.testing.assert_array_equal(table.vectors, vectors)
    (tmp_path / "entity2id.txt").write_text("3\nQ3\t2\nQ1\t0\nQ2\t1\nQ4\t1\n")
    with pytest.raises(UserError, match=r"entity2id.txt:5: row 1 has the name 'Q2' already"):
        load_entity_table(tmp_path)
    (tmp_path / "entity2id.txt").write_text("3\nQ3\t2\nQ1\t0\n")
    with pytest.raises(UserError, match="names no entity of row 1"):
        load_entity_table(tmp_path)


def test_align_orders_rows_as_the_graph_has_them(tmp_path: Path) -> None:
    vectors, path = make_vectors(), tmp_path / "entities.vec"
    write_entity_file(NAMES, vectors, path)
    graph = Graph.from_triples([[0, 0, 1]], [NAMES[3], NAMES[0]], ["r"])
    aligned = load_entity_table(path).align(graph)
    assert aligned.graph == graph.fingerprint and aligned.names == [NAMES[3], NAMES[0]]
    np.testing.assert_array_equal(aligned.vectors, vectors[[3, 0]])
    assert aligned.align(graph) is aligned
    stranger = Graph.from_triples([[0, 0, 1]], ["nobody", "Mira"], ["r"])
    with pytest.raises(UserError, match=r"1 of the 2 entities of the graph have no vector, 'nobody'"):
        load_entity_table(path).align(stranger)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("2 2\na\t1 2\nb\t3\n", r"v.vec:3: expected a name and 2 numbers, got 1"),
        ("2 2\na\t1 2\nb\t3 x\n", r"v.vec:3: expected a name and 2 numbers: could not convert"),
        ("2 2\na\t1 2\nb\t3 nan\n", r"v.vec:3: a number of this vector is not finite"),
        ("3 2\na\t1 2\nb\t3 4\n", r"promises 3 entities, and there are 2"),
        ("2 2\na\t1 2\na\t3 4\n", r"v.vec:3: the entity 'a' has a vector in line 2 already"),
        ("word\n", r"v.vec:1: this is no file of entity vectors"),
        ("", r"this is no file of entity vectors"),
    ],
)
def test_a_damaged_text_file_says_where(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "v.vec"
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        load_entity_table(path)


def test_damaged_runs_and_wrong_places_are_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", make_vectors(5), make_vectors(2))
    with pytest.raises(UserError, match=r"5 entities and 2 relations, entities.json names 4 and 2"):
        load_entity_table(run)
    weights = run / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:60])
    with pytest.raises(UserError, match="is damaged"):
        load_entity_table(run)
    weights.unlink()
    with pytest.raises(UserError, match="is not finished"):
        load_entity_table(run)
    (run / ENTITIES).unlink()
    with pytest.raises(UserError, match="holds no vectors of entities"):
        load_entity_table(run)
    with pytest.raises(UserError, match="neither a run"):
        load_entity_table(tmp_path)
    with pytest.raises(UserError, match="There is no run"):
        load_entity_table(tmp_path / "nowhere")
    with pytest.raises(UserError, match="cannot be written"):
        write_entity_file(["a\tb"], make_vectors(1), tmp_path / "bad.vec")
