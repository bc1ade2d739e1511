"""Schema graphs against a plain reading of their definition, and their cache after a kill."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from etude.errors import UserError
from etude.graph import schema_cache
from etude.graph.concept_graph import build_concept_graph
from etude.graph.graph import Graph
from etude.graph.paths import PathSearch
from etude.graph.schema_cache import build_schema_graphs, join_graphs
from etude.graph.schema_graphs import SchemaBuilder

WORDS = [f"w{letter}{second}" for letter in "abcdefgh" for second in "klmnopqr"]


def random_builder(seed: int = 0, edges: int = 3, scored: bool = True) -> SchemaBuilder:
    draw = np.random.default_rng(seed)
    triples = draw.integers(0, [len(WORDS), 4, len(WORDS)], (160, 3))
    graph = Graph.from_triples(triples, WORDS, ["r0", "r1", "r2", "r3"])
    concepts = build_concept_graph(graph)
    scores = None
    if scored:
        scores = concepts.score_hops(draw.normal(size=(len(WORDS), 6)), draw.normal(size=(4, 6)), graph.triples())
    return SchemaBuilder(concepts, PathSearch(concepts, edges, 20), scores)


def random_texts(count: int, seed: int = 0) -> list[tuple[str, str]]:
    draw = np.random.default_rng(seed)
    return [(" ".join(draw.choice(WORDS, 4)), " ".join(draw.choice(WORDS, 2))) for _ in range(count)]


@pytest.mark.parametrize("scored", [True, False])
def test_schema_graphs_are_what_they_are_defined_as(scored: bool) -> None:
    builder = random_builder(scored=scored)
    graph, pruned = builder.graph, 0
    for text in random_texts(40):
        own = builder.build([text])[0]
        grounding = builder.grounder.ground(*text)
        expected = []
        for answer in grounding.answer:
            for question in grounding.question:
                paths = builder.search.search(np.array([question]), np.array([answer])).concepts
                for path in ([concept for concept in row if concept >= 0] for row in paths.tolist()):
                    hops = graph.find_hops(np.array(path[:-1]), np.array(path[1:]))
                    score = 1.0 if builder.hop_scores is None else float(np.prod(builder.hop_scores[hops]))
                    pruned += score < 0.15
                    if score >= 0.15:
                        expected.append((question, answer, path, graph.hop_relations[hops].tolist()))
        paths = []
        for pair, nodes, relations in zip(own.path_pairs, own.path_nodes, own.path_relations, strict=True):
            question, answer = own.concepts[own.pairs[pair]].tolist()
            path = own.concepts[nodes[nodes >= 0]].tolist()
            paths.append((question, answer, path, relations[relations >= 0].tolist()))
        assert paths == expected
        edges = {frozenset(hop) for *_, path, _ in expected for hop in pairwise(path)}
        for side in (grounding.question, grounding.answer):
            joined = [(a, b) for a in side for b in side if graph.find_hops(np.array(a), np.array(b)) >= 0]
            edges |= {frozenset(edge) for edge in joined}
        assert {frozenset(own.concepts[edge].tolist()) for edge in own.edges} == edges
        assert len(own.edges) == 2 * len(edges)
        assert set(own.concepts.tolist()) == {concept for edge in edges for concept in edge}
        assert set(own.concepts[own.roles == 1].tolist()) <= set(grounding.question)
        assert set(own.concepts[own.roles == 2].tolist()) <= set(grounding.answer)
    assert bool(pruned) is scored


def test_company_changes_nothing() -> None:
    builder, texts = random_builder(), random_texts(30)
    for alone, together in zip((builder.build([text])[0] for text in texts), builder.build(texts), strict=True):
        assert alone.equals(together)


def test_the_cache_holds_what_was_built_and_opens_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_cache, "SHARD_TEXTS", 16)
    builder, texts = random_builder(), random_texts(30)
    plain = builder.build(texts)
    built = build_schema_graphs(builder, texts, tmp_path, processes=2)
    assert len(built) == 30 and all(a.equals(b) for a, b in zip(built, plain, strict=True))
    monkeypatch.setattr(SchemaBuilder, "build", lambda *_: pytest.fail("built again"))
    opened = build_schema_graphs(builder, texts, tmp_path)
    assert all(a.equals(b) for a, b in zip(opened, plain, strict=True))


def kill_in_the_middle(builder: SchemaBuilder, texts: list[tuple[str, str]], folder: Path) -> None:
    """Builds two shards and is then killed while the third lies half written."""
    join = join_graphs
    calls = []

    def count(graphs):  # type: ignore[no-untyped-def]
        calls.append(1)
        if len(calls) == 3:
            part = next(folder.iterdir()) / "00002.999.part"
            part.mkdir()
            (part / "concepts.npy").write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)
        return join(graphs)

    schema_cache.join_graphs = count
    build_schema_graphs(builder, texts, folder, processes=1)


def test_a_kill_and_a_second_start_give_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_cache, "SHARD_TEXTS", 16)
    builder, texts = random_builder(), random_texts(70)
    work = (builder, texts, tmp_path / "killed")
    process = multiprocessing.get_context("fork").Process(target=kill_in_the_middle, args=work)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    folder = next((tmp_path / "killed").iterdir())
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["00000", "00001", "00002.999.part"]
    build_schema_graphs(builder, texts, tmp_path / "killed", processes=2)
    build_schema_graphs(builder, texts, tmp_path / "whole", processes=1)
    for shard in range(5):
        for file in sorted((tmp_path / "whole" / folder.name / f"{shard:05d}").iterdir()):
            assert file.read_bytes() == (folder / f"{shard:05d}" / file.name).read_bytes()


def test_a_damaged_shard_is_built_again_and_another_graph_has_a_folder_of_its_own(tmp_path: Path) -> None:
    builder, texts = random_builder(), random_texts(5)
    plain = build_schema_graphs(builder, texts, tmp_path)
    file = next(tmp_path.glob("*/00000/concepts.npy"))
    content = bytearray(file.read_bytes())
    expected = [graph.concepts.copy() for graph in plain]
    content[-1] ^= 1
    file.unlink()
    file.write_bytes(bytes(content))
    again = build_schema_graphs(builder, texts, tmp_path)
    assert all(np.array_equal(graph.concepts, own) for graph, own in zip(again, expected, strict=True))
    build_schema_graphs(random_builder(seed=1), texts, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"concepts.npy": 1}'])
def test_a_damaged_list_of_a_shard_is_built_again(tmp_path: Path, content: bytes) -> None:
    """It was a traceback."""
    builder, texts = random_builder(), random_texts(2)
    expected = [graph.concepts.tolist() for graph in build_schema_graphs(builder, texts, tmp_path)]
    next(tmp_path.glob("*/00000/shard.json")).write_bytes(content)
    assert [graph.concepts.tolist() for graph in build_schema_graphs(builder, texts, tmp_path)] == expected


def test_a_shard_without_its_list_is_built_again(tmp_path: Path) -> None:
    builder, texts = random_builder(), random_texts(30)
    whole = list(build_schema_graphs(builder, texts, tmp_path))
    next(tmp_path.glob("*/00000/shard.json")).unlink()
    again = build_schema_graphs(builder, texts, tmp_path)
    assert len(again) == len(texts)
    assert all(left.equals(right) for left, right in zip(whole, again, strict=True))


def test_a_damaged_manifest_is_one_message(tmp_path: Path) -> None:
    builder, texts = random_builder(), random_texts(2)
    build_schema_graphs(builder, texts, tmp_path)
    manifest = next(tmp_path.glob("*/manifest.json"))
    whole = manifest.read_bytes()
    for content in (b"", whole[:20], b"[]", whole[:-1]):
        manifest.write_bytes(content)
        with pytest.raises(UserError, match=r"manifest\.json.*Delete the folder"):
            build_schema_graphs(builder, texts, tmp_path)


def test_a_folder_of_something_else_is_one_message(tmp_path: Path) -> None:
    builder, texts = random_builder(), random_texts(2)
    build_schema_graphs(builder, texts, tmp_path)
    manifest = next(tmp_path.glob("*/manifest.json"))
    manifest.write_text(json.dumps({"format": "another"}), encoding="utf-8")
    with pytest.raises(UserError, match="Delete the folder"):
        build_schema_graphs(builder, texts, tmp_path)
