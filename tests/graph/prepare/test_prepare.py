"""Graph folders: equal to a brute-force reading, whatever the sizes of chunks; damage refused; nothing half-written."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.manifests import read_values, write_manifest

from etude.errors import UserError
from etude.graph.graph import Graph
from etude.graph.prepare import entity_texts, row_sort, spill
from etude.graph.prepare import prepare as preparation
from etude.graph.prepare.graph_report import format_relations, format_report, summarize
from etude.graph.prepare.prepare import prepare_graph
from etude.text.checked_files import hash_file
from etude.text.prepare.work_folder import WorkFolder

Triple = tuple[str, str, str]
name = st.sampled_from(["a", "b", "c", "한", "강", "é", "zz", "a b"])
triple = st.tuples(name, st.sampled_from(["r", "s", "관계"]), name)
MANY = settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def write(path: Path, rows: list[Triple] | list[tuple[str, ...]]) -> Path:
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return path


def by_name(graph: Graph, split: str) -> list[Triple]:
    entities, relations = list(graph.entities), list(graph.relations)
    return [(entities[head], relations[relation], entities[tail]) for head, relation, tail in graph.triples(split)]


def small_sizes(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    for module, constant in ((spill, "MAX_NAMES"), (spill, "MAX_TRIPLES"), (row_sort, "BUCKET")):
        monkeypatch.setattr(module, constant, size)
    monkeypatch.setattr(row_sort, "BINS", max(2, size))
    monkeypatch.setattr(entity_texts, "MAX_LETTERS", 100 * size)


@MANY
@given(
    st.lists(triple, min_size=1, max_size=30),
    st.lists(triple, min_size=1, max_size=6),
    st.sampled_from([1, 3, 1 << 20]),
    st.booleans(),
    st.booleans(),
)
def test_a_graph_equals_its_files(
    tmp_path: Path, train: list[Triple], valid: list[Triple], size: int, drop_loops: bool, drop_unseen: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        small_sizes(patch, size)
        patch.setattr("os.fsync", lambda descriptor: None)  # the slowest part of a small graph
        from etude.graph.readers import lines

        patch.setattr(lines, "BLOCK_BYTES", 16 if size == 1 else 1 << 20)
        files = [write(tmp_path / "train.tsv", train), write(tmp_path / "valid.tsv", valid)]
        left = [t for t in train if not drop_loops or t[0] != t[2]]
        held_out = [t for t in valid if not drop_loops or t[0] != t[2]]
        policies = {"self_loops": "drop" if drop_loops else "keep", "unseen": "drop" if drop_unseen else "keep"}
        if not left or not held_out:
            with pytest.raises(UserError, match=r"has no triple"):
                prepare_graph(files[0], tmp_path / "g", valid=files[1], force=True, **policies)
            return
        graph = prepare_graph(files[0], tmp_path / "g", valid=files[1], force=True, **policies)
    known = {end for head, _, tail in left for end in (head, tail)}
    relations = {relation for _, relation, _ in left}
    unseen = [t for t in held_out if t[1] not in relations or not known >= {t[0], t[2]}]
    if drop_unseen:
        held_out = [t for t in held_out if t not in unseen]
    else:
        known |= {end for head, _, tail in held_out for end in (head, tail)}
        relations |= {relation for _, relation, _ in held_out}
    assert list(graph.entities) == sorted(known) and list(graph.relations) == sorted(relations)
    key = lambda t: (t[0], t[2], t[1])  # noqa: E731 (the order of rows)
    assert by_name(graph, "train") == sorted(set(left), key=key)
    assert by_name(graph, "valid") == sorted(set(held_out), key=key)
    for entity, own in enumerate(graph.entities):
        outgoing = sorted((t[2], t[1]) for t in set(left) if t[0] == own)
        incoming = sorted((t[0], t[1]) for t in set(left) if t[2] == own)
        for rows, expected in ((graph.outgoing, outgoing), (graph.incoming, incoming)):
            neighbours, used = rows.of(entity)
            pairs = [(graph.entities[n], graph.relations[r]) for n, r in zip(neighbours, used, strict=True)]
            assert pairs == expected
    report = graph.report
    assert report is not None
    assert report["duplicates"]["count"] == len(left) - len(set(left)) + len(held_out) - len(set(held_out))
    assert report["self_loops"]["count"] == sum(t[0] == t[2] for t in train + valid)
    assert report["leaks"]["count"] == len(set(held_out) & set(left))
    assert report["unseen_triples"] == {"valid": len(unseen)}
    degrees = Counter(end for head, _, tail in set(left) for end in (head, tail))
    assert report["max_degree"] == max(degrees.values()) == degrees[report["max_degree_entity"]]
    Graph.open(tmp_path / "g", verify=True)


ROWS = [("dog", "isa", "animal"), ("cat", "isa", "animal"), ("dog", "chases", "cat")]


def test_chunks_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(f"e{i * 7 % 40}", f"r{i % 3}", f"e{i * 11 % 40}") for i in range(200)]
    write(tmp_path / "t.tsv", rows)
    write(tmp_path / "e.tsv", [(f"e{i}", f"L{i}", f"alias {i}|L{i}|둘", "text") for i in range(0, 50, 2)])
    options = {"entities": tmp_path / "e.tsv", "entity_columns": "id,label,aliases,description", "valid": 0.2}
    whole = prepare_graph(tmp_path / "t.tsv", tmp_path / "whole", **options)
    small_sizes(monkeypatch, 5)
    from etude.graph.readers import lines

    monkeypatch.setattr(lines, "BLOCK_BYTES", 64)
    pieces = prepare_graph(tmp_path / "t.tsv", tmp_path / "pieces", **options)
    assert whole.fingerprint == pieces.fingerprint
    manifests = [json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("whole", "pieces")]
    assert manifests[0] == manifests[1]
    assert not list(tmp_path.glob("*.partial"))


def test_shares_are_drawn_by_hash(tmp_path: Path) -> None:
    rows = [(f"e{i % 50}", "r", f"e{i // 50}") for i in range(2500)]
    write(tmp_path / "t.tsv", rows + rows[:100])
    graph = prepare_graph(tmp_path / "t.tsv", tmp_path / "g", valid=0.1, test=0.2)
    counts = [len(graph.triples(split)) for split in ("train", "valid", "test")]
    assert sum(counts) == 2500 and abs(counts[1] - 250) < 60 and abs(counts[2] - 500) < 80
    assert not set(by_name(graph, "train")) & set(by_name(graph, "test"))
    shuffled = prepare_graph(write(tmp_path / "u.tsv", rows[::-1]), tmp_path / "h", valid=0.1, test=0.2)
    assert shuffled.fingerprint == graph.fingerprint
    other = prepare_graph(tmp_path / "t.tsv", tmp_path / "i", valid=0.1, test=0.2, seed=1)
    assert other.fingerprint != graph.fingerprint


def test_labels_are_joined(tmp_path: Path) -> None:
    write(tmp_path / "t.tsv", ROWS)
    rows = [("dog", "개", ""), ("unicorn", "U", ""), ("dog", "Dog", "barks"), ("cat", "", "")]
    write(tmp_path / "e.tsv", rows)
    graph = prepare_graph(
        tmp_path / "t.tsv", tmp_path / "g", entities=tmp_path / "e.tsv", entity_columns="id,label,description"
    )
    dog, cat, animal = (graph.entities.find(name) for name in ("dog", "cat", "animal"))
    assert dog is not None and cat is not None and animal is not None
    assert (graph.label(dog), graph.aliases(dog), graph.description(dog)) == ("개", ["Dog"], "barks")
    assert (graph.label(cat), graph.label(animal)) == ("cat", "animal")
    assert graph.report is not None
    text = dict(format_report(graph.report))
    assert text["entities"] == "3, 1 with a label"
    assert text["dangling"].endswith(f"{tmp_path / 'e.tsv'}:2 (unicorn)")


def test_weights_keep_the_largest_of_duplicates(tmp_path: Path) -> None:
    rows = [("a", "r", "b", "1"), ("a", "r", "b", "3"), ("a", "r", "b", "2"), ("b", "r", "a", "0.5")]
    graph = prepare_graph(write(tmp_path / "t.tsv", rows), tmp_path / "g", triple_columns="head,relation,tail,weight")
    weights = graph.weights()
    assert weights is not None and weights.tolist() == [3.0, 0.5]
    assert graph.report is not None and graph.report["duplicates"] == {"count": 2, "first": f"{tmp_path / 't.tsv'}:2"}


def test_the_report_names_what_is_doubtful(tmp_path: Path) -> None:
    train = write(tmp_path / "t.tsv", [*ROWS, ROWS[0], ("dog", "isa", "dog")])
    valid = write(tmp_path / "v.tsv", [ROWS[1], ("fish", "eats", "dog")])
    graph = prepare_graph(train, tmp_path / "g", valid=valid)
    assert graph.report is not None
    text = dict(format_report(graph.report))
    assert text["triples"] == "4 train, 2 valid" and text["relations"] == "3"
    assert text["duplicates"] == f"1 (16.7 %) triples, dropped; first: {train}:4"
    assert text["self loops"] == f"1 (16.7 %) triples, kept; --self-loops drop leaves them out; first: {train}:5"
    assert text["held out, also in train"].endswith(f"first: {valid}:1")
    without = prepare_graph(train, tmp_path / "without", valid=valid, self_loops="drop").report
    assert without is not None and dict(format_report(without))["self loops"].startswith("1 (16.7 %) triples, dropped")
    assert (
        text["unseen in train"] == "1 entities, in triples: 1 valid; kept; --unseen drop leaves them out; first: fish"
    )
    assert (
        text["empty relations"].startswith("1 relations without a train triple") and "eats" in text["empty relations"]
    )
    assert format_relations(graph, 1) == [("isa", 3, 1.5, 1.5)]
    assert dict(summarize(graph))["triples"] == text["triples"] and dict(summarize(graph))["degree"] == text["degree"]


def test_what_exists_is_not_replaced(tmp_path: Path) -> None:
    train = write(tmp_path / "t.tsv", ROWS)
    prepare_graph(train, tmp_path / "g")
    with pytest.raises(UserError, match="exists already"):
        prepare_graph(train, tmp_path / "g")
    write(tmp_path / "bad.tsv", [*ROWS, ("a", "", "b")])
    with pytest.raises(UserError, match=r"bad.tsv:4: the relation is empty"):
        prepare_graph(tmp_path / "bad.tsv", tmp_path / "new" / "h")
    with pytest.raises(UserError, match=r"bad.tsv:4"):
        prepare_graph(tmp_path / "bad.tsv", tmp_path / "g", force=True)
    assert Graph.open(tmp_path / "g").fingerprint and not (tmp_path / "new").exists()
    (tmp_path / "h.partial" / "corpus").mkdir(parents=True)  # of a process that died
    (tmp_path / "h.partial" / "corpus" / "train.triples.i32").write_text("half")
    assert prepare_graph(train, tmp_path / "h").fingerprint == Graph.open(tmp_path / "g").fingerprint
    assert not (tmp_path / "h.partial").exists()


def test_an_interrupted_preparation_starts_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = write(tmp_path / "t.tsv", ROWS)
    expected = prepare_graph(train, tmp_path / "g").fingerprint

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    for name in ("merge_names", "write_rows", "fingerprint_arrays"):
        with monkeypatch.context() as patch:
            patch.setattr(preparation, name, interrupt)
            with pytest.raises(KeyboardInterrupt):
                prepare_graph(train, tmp_path / "h")
        assert not (tmp_path / "h").exists() and (tmp_path / "h.partial").exists()
    assert prepare_graph(train, tmp_path / "h").fingerprint == expected
    assert not (tmp_path / "h.partial").exists()


@pytest.mark.parametrize("renamed", [0, 1])
def test_a_complete_graph_is_only_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renamed: int) -> None:
    """A death at the last renames, before or behind that of the graph it replaces, cost all of the work."""
    train, labels = write(tmp_path / "t.tsv", ROWS), write(tmp_path / "labels.tsv", [("a", "an A")])
    options: dict[str, Any] = {"entities": labels, "entity_columns": "id,label", "force": True}
    expected = prepare_graph(train, tmp_path / "g", **options).fingerprint
    prepare_graph(write(tmp_path / "old.tsv", ROWS[:1]), tmp_path / "h")
    rename = Path.rename

    def die(path: Path, target: Path) -> Path:
        if path.name == ["h", "corpus"][renamed]:
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "rename", die)
        prepare_graph(train, tmp_path / "h", **options)
    assert (tmp_path / "h.partial" / "published.json").is_file()
    assert (tmp_path / "h").exists() == (not renamed)
    with monkeypatch.context() as patch:
        patch.setattr(preparation, "read_triples", Mock(side_effect=AssertionError("it read again")))
        assert prepare_graph(train, tmp_path / "h", **options).fingerprint == expected
    assert not (tmp_path / "h.partial").exists()


@pytest.mark.parametrize("change", ["triples", "labels", "split"])
def test_a_complete_graph_of_other_files_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    train, labels = write(tmp_path / "t.tsv", ROWS), write(tmp_path / "labels.tsv", [("a", "an A")])
    held_out = write(tmp_path / "held_out.tsv", ROWS[:1])
    options: dict[str, Any] = {"entities": labels, "entity_columns": "id,label", "valid": held_out}
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(WorkFolder, "_move", Mock(side_effect=KeyboardInterrupt))
        prepare_graph(train, tmp_path / "h", **options)
    if change == "triples":
        write(train, [*ROWS, ("a", "r", "new")])
    elif change == "labels":
        write(labels, [("a", "something else")])
    else:  # the same files in the same order
        options["test"] = options.pop("valid")
    found = prepare_graph(train, tmp_path / "h", **options)
    assert found.fingerprint == prepare_graph(train, tmp_path / "whole", **options).fingerprint


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"valid": 1.0}, "from 0 to below 1, not 1"), ({"valid": 0.5, "test": 0.6}, "nothing is left"),
        ({"valid": "nowhere.tsv"}, "nowhere.tsv: no such file"), ({"unseen": "maybe"}, "'keep' or 'drop', not 'maybe'"),
        ({"triple_columns": "head,tail"}, "'relation' is missing"), ({"entities": "no*.tsv"}, "no file matches"),
    ],
)  # fmt: skip
def test_options_are_checked_first(tmp_path: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        prepare_graph(write(tmp_path / "t.tsv", ROWS), tmp_path / "g", **options)  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["t.tsv"]


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("\n\n")
    with pytest.raises(UserError, match=r"t.tsv has no triple"):
        prepare_graph(tmp_path / "t.tsv", tmp_path / "g")


def test_damaged_folders_are_refused(tmp_path: Path) -> None:
    original = tmp_path / "g"
    prepare_graph(write(tmp_path / "t.tsv", ROWS), original)

    def damage(change) -> Path:
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(original, copy)
        change(copy)
        return copy

    def alter(name: str, values: list[int]):
        return lambda folder: np.array(values, "<i4").tofile(folder / name)

    def edit(**changes: object):
        def change(folder: Path) -> None:
            write_manifest(folder, read_values(folder) | changes)

        return change

    cases = [
        (lambda folder: (folder / "outgoing.bounds.i64").unlink(), "outgoing.bounds.i64 is missing from the graph"),
        (alter("train.triples.i32", [0, 0]), "train.triples.i32 is truncated: 8 bytes"),
        (alter("train.triples.i32", [0] * 9), "train.triples.i32 was altered: its SHA-256"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "it is not JSON"),
        (lambda folder: (folder / "manifest.json").unlink(), "is not a graph: it has no manifest.json"),
        (edit(format="etude corpus"), "is not the manifest of a graph"), (edit(version=9), "format version 9"),
    ]  # fmt: skip
    for change, message in cases:
        with pytest.raises(UserError, match=message):
            Graph.open(damage(change))

    def forge(name: str, values: list[int], dtype: str = "<i4"):
        """Damage whose hash is right: only a look at the arrays finds it."""

        def change(folder: Path) -> None:
            np.array(values, dtype).tofile(folder / name)
            manifest = read_values(folder)
            manifest["files"][name]["sha256"] = hash_file(folder / name)
            write_manifest(folder, manifest)

        return change

    assert list(Graph.open(original).entities) == ["animal", "cat", "dog"]
    forgeries = [
        (forge("train.triples.i32", [0, 0, 3, 0, 0, 1, 0, 0, 1]), "train triples with entities from 1 to 3, but 3"),
        (forge("entities.order.i32", [0, 2, 1]), "broken names of entities"),
        (forge("entities.order.i32", [0, 1, 1]), "broken names of entities"),
        (forge("outgoing.bounds.i64", [0, 2, 1, 3], "<i8"), "broken bounds of outgoing rows"),
        (forge("incoming.neighbours.i32", [2, 1, 2]), "broken incoming rows"),
    ]
    for change, message in forgeries:
        with pytest.raises(UserError, match=message):
            Graph.open(damage(change), verify=True)
    with pytest.raises(UserError, match="there is no such folder"):
        Graph.open(tmp_path / "nowhere")


def test_a_graph_in_memory_is_saved(tmp_path: Path) -> None:
    graph = Graph.from_triples(
        [[0, 0, 1], [1, 1, 0]], ["b", "a"], ["r", "s"], valid=[[0, 1, 1]], labels=["B", ""], weights=[1.0, 2.0]
    )
    saved = graph.save(tmp_path / "g")
    assert saved.fingerprint == graph.fingerprint and saved.folder == tmp_path / "g"
    assert saved.triples().tolist() == [[0, 0, 1], [1, 1, 0]] and saved.entities.find("a") == 1
    assert saved.label(0) == "B" and saved.label(1) == "a" and saved.report is None
    with pytest.raises(UserError, match="exists already"):
        graph.save(tmp_path / "g")


def test_a_seed_of_more_than_64_bits_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("a\tr\tb\n")
    with pytest.raises(UserError, match="does not fit into 64 bits"):
        prepare_graph(tmp_path / "t.tsv", tmp_path / "g", valid=0.1, seed=1 << 70)
    assert not (tmp_path / "g.partial").exists()
