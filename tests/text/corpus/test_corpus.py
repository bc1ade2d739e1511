"""A corpus gives back what went in, wherever it is read, and says so when its files are not what they were."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.manifests import write_manifest

from etude.errors import UserError
from etude.text.corpus import corpus as corpus_module
from etude.text.corpus.bounds import BOUND, Bounds
from etude.text.corpus.corpus import Corpus
from etude.text.corpus.shard import Shard
from etude.text.corpus.split_writer import SplitWriter
from etude.text.prepare.prepare import prepare
from etude.text.tokenizer.tokenizer import Tokenizer

WORDS = Tokenizer.train("word:20", ["a b c d e f g h 가 나"])
CHARACTERS = Tokenizer.train("char", ["abcdefgh 가나"])

ids = st.integers(6, 13)
documents = st.lists(st.lists(st.lists(ids, min_size=1, max_size=5), min_size=1, max_size=4), min_size=1, max_size=8)
relaxed = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def flat(nested: list[list[list[int]]]) -> list[int]:
    return [id for document in nested for sentence in document for id in sentence]


@given(documents, st.randoms())
@relaxed
def test_a_corpus_in_memory_gives_back_what_went_in(nested: list[list[list[int]]], random: object) -> None:
    corpus = Corpus.from_documents(nested, WORDS)
    _check(corpus, nested, random)
    assert corpus.bytes == sum(len(" ".join(WORDS.token(id) for s in d for id in s).encode()) for d in nested)
    _check(pickle.loads(pickle.dumps(corpus)), nested, random)


@given(st.lists(documents, min_size=1, max_size=4), st.integers(1, 30), st.randoms())
@relaxed
def test_shards_give_back_what_went_in(
    tmp_path: Path, blocks: list[list[list[list[int]]]], limit: int, random: object
) -> None:
    """Any documents, in any blocks, over any number of shards, with commits and restarts between."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)  # hundreds of them would be most of the time
        _through_shards(tmp_path, blocks, limit, random)


def _through_shards(tmp_path: Path, blocks: list[list[list[list[int]]]], limit: int, random: object) -> None:
    folder = tmp_path / "c" / "train"
    shutil.rmtree(tmp_path / "c", ignore_errors=True)
    writer = SplitWriter(folder, WORDS.vocab, np.dtype("<u2"), True, shard_tokens=limit)
    for number, block in enumerate(blocks):
        state = json.loads(json.dumps(writer.commit()))
        counts = writer.counts.copy()
        if number % 2:  # written, lost, and written again
            writer.append(_shard(block), 1)
            writer.close()
            writer = SplitWriter(folder, WORDS.vocab, np.dtype("<u2"), True, shard_tokens=limit)
            writer.restore(state, counts)
        writer.append(_shard(block), 10)
    entry = writer.finish()
    nested = [document for block in blocks for document in block]
    manifest = {"format": "etude corpus", "version": 1, "parts": {"train": entry},
                "tokenizer": {"fingerprint": WORDS.fingerprint, "kind": WORDS.kind, "vocab": WORDS.vocab}}  # fmt: skip
    write_manifest(tmp_path / "c", manifest)
    WORDS.save(tmp_path / "c")
    corpus = Corpus.open(tmp_path / "c", verify=True)
    _check(corpus, nested, random)
    assert corpus.bytes == 10 * len(blocks)
    assert np.array_equal(corpus.token_counts(), np.bincount(flat(nested), minlength=WORDS.vocab))
    if len(flat(nested)) > limit + 200:
        assert len(entry["shards"]) > 1


def _shard(nested: list[list[list[int]]]) -> Shard:
    tokens = np.array(flat(nested))
    sentences = [sentence for document in nested for sentence in document]
    starts = np.cumsum([0, *map(len, sentences)])[:-1]
    first = np.cumsum([0, *map(len, nested)])[:-1]
    letters = [WORDS.token(id).encode() for id in tokens]
    places = np.cumsum([0, *map(len, letters)])[:-1]
    return Shard(
        tokens.astype("<u2"), starts[first].astype(BOUND), starts.astype(BOUND), (tokens % 2).astype(np.uint8),
        np.frombuffer(b"".join(letters), np.uint8), places.astype(BOUND),
    )  # fmt: skip


def _check(corpus: Corpus, nested: list[list[list[int]]], random: object) -> None:
    tokens = flat(nested)
    assert corpus.total == len(tokens)
    assert corpus.tokens(0, corpus.total).tolist() == tokens
    assert corpus.tokens(0, corpus.total).dtype == np.int32
    document_bounds = np.cumsum([0, *(sum(map(len, document)) for document in nested)]).tolist()
    sentence_bounds = np.cumsum([0, *(len(sentence) for document in nested for sentence in document)]).tolist()
    for bounds, expected in ((corpus.documents, document_bounds), (corpus.sentences, sentence_bounds)):
        assert list(bounds) == expected and len(bounds) == len(expected) - 1
        for _ in range(5):
            i = random.randint(0, len(bounds) + 1)  # type: ignore[attr-defined]
            j = random.randint(i, len(bounds) + 1)  # type: ignore[attr-defined]
            assert bounds.slice(i, j).tolist() == expected[i:j]
        for extra in (0, 1, 3):
            for offset in range(len(tokens) + extra * len(bounds) + 3):
                wanted = max(i for i in range(len(expected)) if expected[i] + extra * i <= offset)
                assert bounds.find(offset, extra) == wanted
        anywhere = np.array([random.randint(0, len(bounds)) for _ in range(20)])  # type: ignore[attr-defined]
        assert bounds.at(anywhere).tolist() == [expected[i] for i in anywhere]
        offsets = np.array([random.randint(0, len(tokens) + 2) for _ in range(20)])  # type: ignore[attr-defined]
        assert bounds.find_all(offsets).tolist() == [bounds.find(offset) for offset in offsets.tolist()]
        assert not bounds.at(anywhere[:0]).size and not bounds.find_all(offsets[:0]).size
    places = np.array([random.randrange(len(tokens)) for _ in range(40)])  # type: ignore[attr-defined]
    assert corpus.tokens_at(places).tolist() == [tokens[i] for i in places]
    assert np.array_equal(corpus.word_starts_at(places), corpus.word_starts(0, corpus.total)[places])
    for _ in range(5):
        a = random.randint(0, len(tokens))  # type: ignore[attr-defined]
        b = random.randint(a, len(tokens))  # type: ignore[attr-defined]
        assert corpus.tokens(a, b).tolist() == tokens[a:b]
        if corpus.manifest["parts"]["train"].get("shards"):
            assert corpus.word_starts(a, b).tolist() == [bool(id % 2) for id in tokens[a:b]]
        if corpus.tokenizer.word_level:
            assert corpus.surfaces(a, b) == [corpus.tokenizer.token(id).encode() for id in tokens[a:b]]


def test_word_starts_are_kept_in_memory() -> None:
    corpus = Corpus.from_documents([[[6, 7], [8]]], CHARACTERS, word_starts=[[[True, False], [True]]])
    assert corpus.word_starts(0, 3).tolist() == [True, False, True]
    with pytest.raises(UserError, match="word:50000"):
        corpus.surfaces(0, 1)


@pytest.mark.parametrize("nested", [[], [[]], [[[]]], [[[6], []]], [[[99]]], [[[-1]]]])
def test_impossible_documents_are_refused(nested: list[list[list[int]]]) -> None:
    with pytest.raises(ValueError):
        Corpus.from_documents(nested, WORDS)


def test_places_outside_are_refused() -> None:
    corpus = Corpus.from_documents([[[6, 7]]], WORDS)
    bounds: Bounds = corpus.documents
    for call in (lambda: corpus.tokens(0, 3), lambda: corpus.tokens(-1, 1), lambda: bounds[2], lambda: bounds.find(-1)):
        with pytest.raises(IndexError):
            call()


@pytest.fixture
def corpus_folder(tmp_path: Path) -> Path:
    text = tmp_path / "t.txt"
    text.write_text("\n\n".join(f"a b c {n}. The end of it." for n in range(40)))
    prepare(text, tmp_path / "corpus", "word:50", valid=0.1)
    return tmp_path / "corpus"


def test_every_file_is_checked(corpus_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Corpus.open(corpus_folder, verify=True)
    assert Corpus.open(corpus_folder, "valid").total > 0
    names = list((corpus_folder / "train").iterdir())
    assert len(names) == 7
    for path in names:
        data = path.read_bytes()
        path.write_bytes(data[:-1])
        with pytest.raises(UserError, match=rf"{path.name} is truncated"):
            Corpus.open(corpus_folder)
        path.write_bytes(data + b"x")
        with pytest.raises(UserError, match=rf"{path.name} is altered"):
            Corpus.open(corpus_folder)
        path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
        for verify in (None, True):
            with pytest.raises(UserError, match=rf"{path.name} was altered"):
                Corpus.open(corpus_folder, verify=verify)
        # the length is right: only reading everything finds a changed byte
        Corpus.open(corpus_folder, verify=False)
        monkeypatch.setattr(corpus_module, "ALWAYS_HASHED", 10)
        Corpus.open(corpus_folder)  # too large to be read at every opening
        monkeypatch.undo()
        path.unlink()
        with pytest.raises(UserError, match=rf"{path.name} is missing"):
            Corpus.open(corpus_folder)
        path.write_bytes(data)


def test_another_tokenizer_is_refused(corpus_folder: Path) -> None:
    CHARACTERS.save(corpus_folder)
    with pytest.raises(UserError, match="not the tokenizer"):
        Corpus.open(corpus_folder)
    (corpus_folder / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"tokenizer\.json is missing"):
        Corpus.open(corpus_folder)


def test_what_is_no_corpus_is_said(corpus_folder: Path, tmp_path: Path) -> None:
    for folder, word in (
        (tmp_path / "nothing", "no such folder"),
        (tmp_path, "no manifest"),
        (tmp_path / "t.txt", "not a corpus"),
    ):
        with pytest.raises(UserError, match=word):
            Corpus.open(folder)
    with pytest.raises(UserError, match="no split 'test'"):
        Corpus.open(corpus_folder, "test")
    manifest = corpus_folder / "manifest.json"
    content = json.loads(manifest.read_text())
    for text, word in (
        ("{", "damaged"),
        ("[]", "not the manifest"),
        (json.dumps({**content, "version": 99}), "version 99"),
    ):
        manifest.write_text(text)
        with pytest.raises(UserError, match=word):
            Corpus.open(corpus_folder)


def test_opening_touches_no_shard_and_other_processes_map_again(corpus_folder: Path) -> None:
    corpus = Corpus.open(corpus_folder)
    assert not corpus._shards.shards  # type: ignore[attr-defined]
    again = pickle.loads(pickle.dumps(corpus))
    assert again.fingerprint == corpus.fingerprint
    assert again.tokens(0, 5).tolist() == corpus.tokens(0, 5).tolist()
