"""Files of vectors as runs and back: what the file says of unknown words stays, and a failed export leaves nothing."""

from __future__ import annotations

import bz2
import gzip
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etude.errors import UserError
from etude.hub import vector_runs
from etude.hub.fasttext_files import FastText, FastTextTraining, write_fasttext
from etude.hub.vector_files import read_vectors, write_vectors
from etude.hub.vector_runs import export_vectors, import_vectors, open_vectors
from etude.hub.word_vectors import WordVectors


@pytest.fixture
def glove(tmp_path: Path) -> Path:
    words = [f"w{number}" for number in range(130)]
    matrix = np.random.default_rng(0).normal(size=(130, 4)).astype(np.float32)
    unknown = np.array([9, 8, 7, 6], np.float32)  # not the mean of the rarest
    write_vectors(WordVectors(words, matrix, unknown_row=unknown), tmp_path / "glove.txt", "glove")
    return tmp_path / "glove.txt"


def test_the_row_of_unknown_words_of_a_file_stays(glove: Path, tmp_path: Path) -> None:
    run = import_vectors(glove, tmp_path / "run")
    assert open_vectors(run.folder).vectors(["never"], "rarest").tolist() == [[9, 8, 7, 6]]
    export_vectors(run, tmp_path / "again.txt", "glove")
    assert (tmp_path / "again.txt").read_bytes() == glove.read_bytes()
    unknown = read_vectors(tmp_path / "again.txt").unknown_row
    assert unknown is not None and unknown.tolist() == [9, 8, 7, 6]


def test_an_export_that_fails_leaves_nothing(glove: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = import_vectors(glove, tmp_path / "run")
    before = set(tmp_path.iterdir())

    def fail(vectors: Any, path: Path, form: str) -> None:
        path.write_text("half")
        raise KeyboardInterrupt

    monkeypatch.setattr(vector_runs, "write_vectors", fail)
    with pytest.raises(KeyboardInterrupt):
        export_vectors(run, tmp_path / "out.vec")
    assert set(tmp_path.iterdir()) == before


def test_an_export_makes_the_folder_of_its_file(glove: Path, tmp_path: Path) -> None:
    run = import_vectors(glove, tmp_path / "run")
    export_vectors(run, tmp_path / "new" / "deep" / "out.vec")
    assert len(read_vectors(tmp_path / "new" / "deep" / "out.vec").words) == 130


def test_words_typed_as_jamo_are_words_of_a_text(tmp_path: Path) -> None:
    """Every text is composed before it is cut into words: a vocabulary that is not would know none of them."""
    words = [unicodedata.normalize("NFD", word) for word in ("빵집", "시장")]
    write_vectors(WordVectors(words, np.eye(2, dtype=np.float32)), tmp_path / "jamo.vec", "word2vec")
    assert read_vectors(tmp_path / "jamo.vec").vectors(["시장", words[0]]).tolist() == [[0, 1], [1, 0]]
    run = import_vectors(tmp_path / "jamo.vec", tmp_path / "run")
    tokenizer = run.tokenizer
    assert [tokenizer.token(id) for id in tokenizer.encode(f"시장 {words[0]}").ids] == ["시장", "빵집"]
    assert open_vectors(run.folder).vectors(["빵집"]).tolist() == [[1, 0]]


def test_ngrams_from_none_on_are_ngrams_from_one_on(tmp_path: Path) -> None:
    """fastText -minn 0 -maxn 3: its n-grams of no character are none."""
    words, draw = ["the", "a", "서울"], np.random.default_rng(0)
    inputs, outputs = (draw.normal(size=(rows, 5)).astype(np.float32) for rows in (23, 3))
    imported = []
    for shortest in (0, 1):
        model = FastText(words, np.arange(3) + 1, inputs, outputs, (shortest, 3), FastTextTraining())
        write_fasttext(model, tmp_path / f"{shortest}.bin")
        run = import_vectors(tmp_path / f"{shortest}.bin", tmp_path / f"run{shortest}")
        imported.append(open_vectors(run.folder).vectors(["서울", "서울시"], "subwords"))
    np.testing.assert_array_equal(*imported)
    plain = read_vectors(tmp_path / "0.bin").vectors(["서울", "서울시"], "subwords")
    np.testing.assert_allclose(imported[0], plain, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("name", "pack", "command"), [
    ("cc.ko.300.vec.gz", gzip.compress, "gunzip"), ("vectors.bin.bz2", bz2.compress, "bunzip2"),
])  # fmt: skip
def test_a_packed_file_says_what_unpacks_it(tmp_path: Path, name: str, pack: Any, command: str) -> None:
    (tmp_path / name).write_bytes(pack(b"1 2\na 1 2\n"))
    with pytest.raises(UserError, match=f"is packed. Unpack it first: {command} "):
        import_vectors(tmp_path / name, tmp_path / "run")


def test_a_file_without_words_is_told(tmp_path: Path) -> None:
    (tmp_path / "none.txt").write_text("<unk> 1 2 3\n")
    with pytest.raises(UserError, match=r"none\.txt has no words"):
        import_vectors(tmp_path / "none.txt", tmp_path / "run")
    assert not (tmp_path / "run").exists()
