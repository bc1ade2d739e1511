"""The entity column gives back its mentions from memory and from shards, and stays well formed when words move."""

from __future__ import annotations

import hashlib
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.manifests import read_values, write_manifest

from etude.errors import UserError
from etude.study.altered_corpus import Alterations, write_altered
from etude.text.corpus.corpus import Corpus
from etude.text.corpus.entities import is_well_formed, mark_mentions, mention_entities, restart_mentions
from etude.text.corpus.shard import Shard
from etude.text.corpus.split_writer import SplitWriter
from etude.text.tokenizer.tokenizer import Tokenizer

CHARACTERS = Tokenizer.train("char", ["abcdefgh"])
DOCUMENTS = [[[6, 7, 8, 9], [10, 11]], [[12, 6, 7]]]
ENTITIES = [[[5, -7, -1, 0], [0, -2]], [[-1, 3, 3]]]
FLAT = [5, -7, -1, 0, 0, -2, -1, 3, 3]


def write_corpus(folder: Path, entities: bool = True) -> Path:
    """Write the documents in two blocks over several shards, with a commit and a restart between."""

    def start() -> SplitWriter:
        return SplitWriter(folder / "train", CHARACTERS.vocab, np.dtype("<u2"), False, 4, entities)

    writer = start()
    for number, (document, column) in enumerate(zip(DOCUMENTS, ENTITIES, strict=True)):
        state, counts = json.loads(json.dumps(writer.commit())), writer.counts.copy()
        for again in range(2 - number):
            if again:
                writer.close()
                writer = start()
                writer.restore(state, counts)
            ids = [id for sentence in document for id in sentence]
            starts = np.cumsum([0, *(len(sentence) for sentence in document)])[:-1]
            block = Shard(np.array(ids), np.zeros(1, np.uint32), starts.astype(np.uint32), np.ones(len(ids), np.uint8))
            if entities:
                block.entities = np.array([e for sentence in column for e in sentence], np.int32)
            writer.append(block, 10)
    manifest: dict[str, object] = {
        "format": "etude corpus", "version": 1, "parts": {"train": writer.finish()},
        "tokenizer": {"fingerprint": CHARACTERS.fingerprint, "kind": CHARACTERS.kind, "vocab": CHARACTERS.vocab},
    }  # fmt: skip
    if entities:
        manifest["entities"] = {"graph": "g1"}
    write_manifest(folder, manifest)
    CHARACTERS.save(folder)
    return folder


def test_a_corpus_in_memory_has_its_entities() -> None:
    corpus = Corpus.from_documents(DOCUMENTS, CHARACTERS, entities=ENTITIES, graph="g1")
    for same in (corpus, pickle.loads(pickle.dumps(corpus))):
        assert same.graph == "g1"
        assert same.entities(0, 9).tolist() == FLAT
        assert same.entities(1, 3).tolist() == [-7, -1]
        assert same.entities(0, 9).dtype == np.int32
    assert corpus.fingerprint != Corpus.from_documents(DOCUMENTS, CHARACTERS).fingerprint


def test_shards_have_their_entities(tmp_path: Path) -> None:
    corpus = Corpus.open(write_corpus(tmp_path / "c"), verify=True)
    assert corpus.graph == "g1"
    assert corpus.entities(0, corpus.total).tolist() == FLAT
    assert corpus.entities(4, 8).tolist() == FLAT[4:8]
    assert sorted(path.name for path in (tmp_path / "c" / "train").glob("*.entities.*")) == [
        "00000.entities.i32", "00001.entities.i32",
    ]  # fmt: skip


def test_a_corpus_without_entities_has_no_trace_of_them(tmp_path: Path) -> None:
    corpus = Corpus.open(write_corpus(tmp_path / "c", entities=False), verify=True)
    assert corpus.graph is None
    assert not list((tmp_path / "c").rglob("*entities*"))
    with pytest.raises(UserError, match="was not linked to a graph"):
        corpus.entities(0, 1)


def test_entities_and_graph_go_together() -> None:
    with pytest.raises(ValueError, match="give both"):
        Corpus.from_documents(DOCUMENTS, CHARACTERS, entities=ENTITIES)
    broken = [[[5, -8, -1, 0], [0, -2]], [[-1, 3, 3]]]  # a later piece of entity 6 after one of entity 5
    with pytest.raises(ValueError, match="later pieces"):
        Corpus.from_documents(DOCUMENTS, CHARACTERS, entities=broken, graph="g1")


def test_broken_mentions_are_found(tmp_path: Path) -> None:
    folder = write_corpus(tmp_path / "c")
    path = folder / "train" / "00000.entities.i32"
    column = np.fromfile(path, "<i4")
    column[4] = -2  # the second sentence would start inside a mention
    column.tofile(path)
    manifest = read_values(folder)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    manifest["parts"]["train"]["shards"][0]["files"][path.name]["sha256"] = digest
    write_manifest(folder, manifest)
    with pytest.raises(UserError, match="broken mentions"):
        Corpus.open(folder, verify=True)


spans = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(0, 9)), max_size=8)


@given(spans, st.sets(st.integers(1, 40)), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_columns_are_marked_and_restarted(gaps: list[tuple[int, int, int]], starts: set[int], random: object) -> None:
    expected: list[int] = []
    firsts, ends, ids = [], [], []
    for gap, length, entity in gaps:
        expected += [-1] * gap
        firsts.append(len(expected))
        expected += [entity] + [-2 - entity] * (length - 1)
        ends.append(len(expected))
        ids.append(entity)
    expected += [-1] * 2
    column = mark_mentions(len(expected), np.array([firsts, ends], np.int64).T, np.array(ids, np.int64))
    assert column.tolist() == expected
    places = np.array([0, *sorted(place for place in starts if place < len(expected))])
    restarted = restart_mentions(column, places)
    assert is_well_formed(restarted, places)
    assert np.array_equal(mention_entities(restarted), mention_entities(column))
    is_changed = restarted != column
    assert set(np.flatnonzero(is_changed)) <= set(places.tolist())
    order = np.arange(len(column))
    random.shuffle(order)  # type: ignore[attr-defined]
    shuffled = restart_mentions(column[order], places)
    assert is_well_formed(shuffled, places)
    assert np.array_equal(mention_entities(shuffled), mention_entities(column)[order])


def test_an_altered_corpus_moves_entities_with_their_words(tmp_path: Path) -> None:
    source = write_corpus(tmp_path / "c")
    write_altered(source, tmp_path / "same", Alterations())
    assert Corpus.open(tmp_path / "same", verify=True).entities(0, 9).tolist() == FLAT
    write_altered(source, tmp_path / "noise", Alterations(noise=1.0))
    before, after = Corpus.open(source), Corpus.open(tmp_path / "noise", verify=True)
    assert after.graph == "g1"

    def pairs(corpus: Corpus) -> list[tuple[int, int]]:
        column = mention_entities(corpus.entities(0, 9)).tolist()
        return sorted(zip(corpus.tokens(0, 9).tolist(), column, strict=True))

    assert pairs(after) == pairs(before)


def test_a_token_of_two_mentions_belongs_to_the_first() -> None:
    spans = np.array([[1, 3], [2, 3], [2, 5], [5, 5]])
    assert mark_mentions(6, spans, np.array([7, 8, 9, 1])).tolist() == [-1, 7, -9, 9, -11, -1]
