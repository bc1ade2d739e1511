"""Files of vectors: what is written is read back to the bit, here and by gensim; what is broken is told with where."""

from __future__ import annotations

import struct
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from etude.errors import UserError
from etude.hub.fasttext_files import FastText, FastTextTraining, read_fasttext, write_fasttext
from etude.hub.vector_files import VectorFormat, detect_format, read_vectors, write_vectors
from etude.hub.word_vectors import WordVectors
from etude.text.tokenizer.char_ngrams import NgramTable

WORDS = ["the", "한국", "naïve", "</s>", "of", "1,5", "king", "queen", "12"]
FORMS: list[VectorFormat] = ["word2vec", "word2vec-binary", "glove"]


def vectors(words: list[str] = WORDS, width: int = 7) -> WordVectors:
    chance = np.random.default_rng(0)
    matrix = chance.normal(size=(len(words), width)).astype(np.float32) * 10.0 ** chance.integers(
        -9, 5, (len(words), 1)
    )
    return WordVectors(words, matrix.astype(np.float32))


def fasttext(buckets: int = 40, width: int = 5) -> FastText:
    chance = np.random.default_rng(1)
    inputs = chance.normal(size=(len(WORDS) + buckets, width)).astype(np.float32)
    outputs = chance.normal(size=(len(WORDS), width)).astype(np.float32)
    return FastText(
        WORDS, np.arange(len(WORDS), 0, -1) * 5, inputs, outputs, (3, 6), FastTextTraining(window=4, epochs=2)
    )


@pytest.mark.parametrize("form", FORMS)
def test_a_round_trip_is_exact(form: VectorFormat, tmp_path: Path) -> None:
    path, wanted = tmp_path / "vectors", vectors()
    write_vectors(wanted, path, form)
    assert detect_format(path) == form
    found = read_vectors(path)
    assert found.words == WORDS and np.array_equal(found.matrix, wanted.matrix)
    if form == "glove":
        np.testing.assert_array_equal(found.unknown_row, wanted.matrix.mean(0))


@given(
    st.lists(st.text(st.characters(blacklist_categories=["Cs", "Zs", "Cc"]), min_size=1), min_size=1, unique=True),
    st.integers(1, 5),
    st.sampled_from(FORMS),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_words_come_back(tmp_path: Path, words: list[str], width: int, form: VectorFormat) -> None:
    path, wanted = tmp_path / "vectors", vectors(words, width)
    write_vectors(wanted, path, form)
    found = read_vectors(path, form)
    if form == "glove" and words[-1] == "<unk>":
        words, wanted = words[:-1], wanted.most_frequent(len(words) - 1)
    assert found.words == words and np.array_equal(found.matrix, wanted.matrix)


@pytest.mark.parametrize("form", FORMS)
def test_gensim_reads_what_is_written_and_the_other_way_round(form: VectorFormat, tmp_path: Path) -> None:
    keyed = pytest.importorskip("gensim.models").KeyedVectors
    path, wanted = tmp_path / "vectors", vectors()
    write_vectors(wanted, path, form)
    options = {"word2vec": {}, "word2vec-binary": {"binary": True}, "glove": {"no_header": True}}[form]
    theirs = keyed.load_word2vec_format(str(path), **options)
    assert theirs.index_to_key[: len(WORDS)] == WORDS
    assert np.array_equal(theirs.vectors[: len(WORDS)], wanted.matrix)
    if form != "glove":
        theirs.save_word2vec_format(str(tmp_path / "theirs"), binary=form == "word2vec-binary")
        found = read_vectors(tmp_path / "theirs")
        assert found.words == WORDS and np.array_equal(found.matrix, wanted.matrix)


def test_a_fasttext_file_comes_back_byte_by_byte(tmp_path: Path) -> None:
    write_fasttext(fasttext(), tmp_path / "a.bin")
    assert detect_format(tmp_path / "a.bin") == "fasttext"
    found = read_fasttext(tmp_path / "a.bin")
    assert found.words == WORDS and found.training == fasttext().training and found.ngram_sizes == (3, 6)
    assert found.counts.tolist() == fasttext().counts.tolist()
    write_fasttext(found, tmp_path / "b.bin")
    assert (tmp_path / "a.bin").read_bytes() == (tmp_path / "b.bin").read_bytes()


def test_gensim_reads_our_fasttext_files(tmp_path: Path) -> None:
    """Known words, and unknown ones by their n-grams, Korean ones too: to the bit.

    But for </s>: gensim looks for n-grams in it, the original has none for it and neither have we.
    """
    reader = pytest.importorskip("gensim.models.fasttext")
    write_fasttext(fasttext(), tmp_path / "a.bin")
    theirs, ours = reader.load_facebook_vectors(str(tmp_path / "a.bin")), read_vectors(tmp_path / "a.bin")
    for word in ("the", "한국", "king", "kingdom", "한국인", "queens"):
        np.testing.assert_array_equal(theirs[word], ours.vectors([word], "subwords")[0])
    assert ours.vectors(["</s>"]).tolist() == [fasttext().inputs[WORDS.index("</s>")].tolist()]


def test_we_read_gensims_fasttext_files(tmp_path: Path) -> None:
    models = pytest.importorskip("gensim.models.fasttext")
    sentences = [["한국", "사람", "은", "naïve", "king"], ["queen", "of", "the", "한국어"]] * 20
    trained = models.FastText(sentences, vector_size=6, min_count=1, bucket=300, epochs=1, seed=1, workers=1)
    models.save_facebook_model(trained, str(tmp_path / "g.bin"))
    ours = read_vectors(tmp_path / "g.bin")
    assert set(ours.words) == set(trained.wv.index_to_key)
    for word in ("한국", "queen", "한국인", "kingdom"):
        np.testing.assert_array_equal(trained.wv[word], ours.vectors([word], "subwords")[0])


def test_words_with_spaces_are_read_from_the_right(tmp_path: Path) -> None:
    """As in glove.840B."""
    path = tmp_path / "glove.txt"
    path.write_text("the 1 2\n. . . 3 4\nat name@domain.com 5 6\n", encoding="utf-8")
    found = read_vectors(path)
    assert found.words == ["the", ". . .", "at name@domain.com"] and found.matrix.tolist() == [[1, 2], [3, 4], [5, 6]]


def test_trailing_spaces_and_line_separators_are_no_fields(tmp_path: Path) -> None:
    path = tmp_path / "fast.vec"
    path.write_bytes("2 2\na\u2028b 1 2 \nc 3 4 \n".encode())
    found = read_vectors(path)
    assert found.words == ["a\u2028b", "c"] and found.matrix.tolist() == [[1, 2], [3, 4]]


def test_a_word_that_comes_twice_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "twice.txt"
    path.write_text("2 1\na 1\na 2\n", encoding="utf-8")
    found = read_vectors(path)
    assert "1 words come twice" in caplog.text and found.vectors(["a"]).tolist() == [[1]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"2 2\na 1 2\nb 3\n", r":3: expected a word and 2 numbers, found 1"),
        (b"2 2\na 1 2\nb 3 x\n", r":3: expected a word and 2 numbers: could not"),
        (b"2 2\na 1 2\n", r"ends after 1 of 2 words"),
        (b"1 2\na 1 2\nb 3 4\n", r":3: the first line of the file promises 1 words"),
        (b"1 2\n\xff\xfe 1 2\n", r":2: the word is not UTF-8"),
        (b"just text\nof no use\n", r":1: this is no file of word vectors"),
        (b"", r"this is no file of word vectors"),
    ],
)
def test_broken_text_is_told_with_its_place(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.txt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_vectors(path, "word2vec" if content[:1].isdigit() else None)


def test_a_broken_binary_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "vectors.bin"
    write_vectors(vectors(), path, "word2vec-binary")
    whole = path.read_bytes()
    for content, message in ((whole[:-9], "not whole"), (whole[:60], "not whole"), (whole + b"more", "more behind")):
        path.write_bytes(content)
        with pytest.raises(UserError, match=message):
            read_vectors(path, "word2vec-binary")
    path.write_bytes(b"9 7\n" + b"x" * 10_000)
    with pytest.raises(UserError, match="is not there"):
        read_vectors(path, "word2vec-binary")


def test_a_broken_fasttext_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    write_fasttext(fasttext(), path)
    whole = path.read_bytes()
    cases: list[tuple[bytes, str]] = [
        (whole[:-5], "does not fit into the rest"),
        (whole[:70], "ends after"),
        (whole + b"x", "more behind"),
        (whole[:4] + b"\x0a" + whole[5:], "version 10"),
        (whole[:4] + b"\x0d" + whole[5:], "version 13"),
        (whole[:32] + b"\x03" + whole[33:], "classifier"),
        (whole[:48] + b"\xff\xff\xff\x7f" + whole[52:], "n-grams of . to 2147483647 characters"),
    ]
    for content, message in cases:
        path.write_bytes(content)
        with pytest.raises(UserError, match=message):
            read_fasttext(path)


def test_word_vectors_of_version_11_are_those_of_version_12(tmp_path: Path) -> None:
    """The released program reads both alike; only classifiers differ."""
    path = tmp_path / "a.bin"
    write_fasttext(fasttext(), path)
    content = path.read_bytes()
    path.write_bytes(content[:4] + b"\x0b" + content[5:])
    model = read_fasttext(path)
    assert model.words == fasttext().words and np.array_equal(model.inputs, fasttext().inputs)
    write_fasttext(model, path)
    assert path.read_bytes() == content


def test_an_output_table_of_other_words_is_told(tmp_path: Path) -> None:
    model = fasttext()
    write_fasttext(replace(model, outputs=model.outputs[1:]), tmp_path / "a.bin")
    with pytest.raises(UserError, match="the output table is"):
        read_fasttext(tmp_path / "a.bin")


def test_what_cannot_be_written_is_told(tmp_path: Path) -> None:
    for form in FORMS:
        with pytest.raises(UserError, match="cannot be written"):
            write_vectors(vectors(["a", "b\nc"]), tmp_path / "v", form)
    with pytest.raises(UserError, match="cannot be written"):
        write_vectors(vectors(["a b"]), tmp_path / "v", "word2vec")
    with pytest.raises(UserError, match="cannot be read"):
        read_vectors(tmp_path / "none")


def test_a_word_typed_as_jamo_is_found() -> None:
    known = WordVectors(["고양이"], np.ones((1, 2), np.float32))
    assert known.find_row(unicodedata.normalize("NFD", "고양이")) == 0


def test_unknown_words_by_every_rule() -> None:
    known = WordVectors(["the", "dog", "n0"], np.arange(6, dtype=np.float32).reshape(3, 2))
    assert known.vectors(["The", "N7"]).tolist() == [[0, 1], [4, 5]], "lower case, then digits as 0"
    with pytest.raises(UserError, match="'cat' is not among the 3 words"):
        known.vectors(["cat"])
    assert known.vectors(["cat"], "zero").tolist() == [[0, 0]]
    assert known.vectors(["cat"], "rarest").tolist() == [[2, 3]]
    drawn = known.vectors(["cat", "cow", "cat"], "random")
    assert np.array_equal(drawn[0], drawn[2]) and not np.array_equal(drawn[0], drawn[1])
    with pytest.raises(UserError, match="no rows for sub-words"):
        known.vectors(["cat"], "subwords")
    spelled: Any = WordVectors(known.words, known.matrix, grams=NgramTable(np.ones((9, 2), np.float32), 3, 3))
    assert spelled.vectors(["cat", ""], "subwords").tolist() == [[1, 1], [0, 0]]


@pytest.mark.parametrize("form", ["word2vec", "glove", "word2vec-binary"])
def test_numbers_that_are_not_finite_are_told(tmp_path: Path, form: VectorFormat) -> None:
    known = vectors()
    known.matrix[1, 2] = np.nan
    write_vectors(known, tmp_path / "v", form)
    with pytest.raises(UserError, match=f"the vector of '{known.words[1]}' has a number that is not finite"):
        read_vectors(tmp_path / "v", form)


def test_of_a_fasttext_file_too(tmp_path: Path) -> None:
    """Its words went on with NaN: every cosine with them was one."""
    model = fasttext()
    model.inputs[len(WORDS) + 3, 1] = np.inf
    write_fasttext(model, tmp_path / "a.bin")
    with pytest.raises(UserError, match=r"a\.bin: row 12 of a table has a number that is not finite"):
        read_vectors(tmp_path / "a.bin")


SIZES = st.sampled_from([-(2**31), -1, 0, 1, 2, 2**31 - 1, 2**40, 2**62, 2**63 - 1, -(2**63)])


@given(
    st.lists(st.tuples(st.integers(0, 400), SIZES, st.sampled_from([4, 8])), min_size=1, max_size=3), st.integers(0, 9)
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_fasttext_file_is_read_or_refused(
    tmp_path: Path, numbers: list[tuple[int, int, int]], cut: int
) -> None:
    """Sizes that no file has, anywhere in it; what is read has finite vectors of its words."""
    small = replace(fasttext(buckets=3, width=2), ngram_sizes=(2, 3))
    write_fasttext(small, tmp_path / "a.bin")
    content = bytearray((tmp_path / "a.bin").read_bytes())
    for place, number, size in numbers:
        place %= len(content) - size
        content[place : place + size] = (number % 2 ** (8 * size)).to_bytes(size, "little")
    (tmp_path / "a.bin").write_bytes(content[: len(content) - max(0, cut - 7)])
    try:
        found = read_fasttext(tmp_path / "a.bin")
        known = found.vectors()
    except UserError as error:
        assert "a.bin" in str(error)
    else:
        assert known.matrix.shape == (len(found.words), found.outputs.shape[1]) and np.isfinite(known.matrix).all()


def test_a_fasttext_table_of_no_columns_has_a_largest_size_too(tmp_path: Path) -> None:
    write_fasttext(fasttext(), tmp_path / "a.bin")
    content = (tmp_path / "a.bin").read_bytes()
    sizes = struct.pack("<?qq", False, *fasttext().outputs.shape)
    (tmp_path / "a.bin").write_bytes(content.replace(sizes, struct.pack("<?qq", False, 2**62, 0)))
    with pytest.raises(UserError, match="does not fit into the rest of the file"):
        read_vectors(tmp_path / "a.bin")
