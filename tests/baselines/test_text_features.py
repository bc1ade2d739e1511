"""Features of texts: words without a vector are read by their character n-grams."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.baselines.linear_baseline import NO_NGRAMS, WordVectors
from etude.baselines.registry import fit
from etude.baselines.text_features import FeatureSettings, TextFeatures, split_words
from etude.inference.baseline_model import BaselineModel
from etude.text.tokenizer.char_ngrams import NgramTable, extract_ngrams, hash_ngram
from tests.baselines.test_export import run_standalone
from tests.baselines.test_labels import reviews

WIDTH, BUCKETS, SIZES = 4, 50, (3, 5)
TEXTS = ["the cat sat", "the dog 달렸다", "고양이가 sat"]


def make_table() -> NgramTable:
    return NgramTable(np.random.default_rng(0).normal(size=(BUCKETS, WIDTH)).astype(np.float16), *SIZES)


def learn(table: NgramTable | None) -> TextFeatures:
    vectors = np.random.default_rng(1).normal(size=(2, WIDTH)).astype(np.float32)
    return TextFeatures.learn(NO_NGRAMS, TEXTS, 1, ["cat", "고양이"], vectors, table)


def spell(word: str, table: NgramTable) -> np.ndarray:
    """(D,) the mean of a word's n-grams, one by one."""
    rows = [hash_ngram(ngram, BUCKETS) for ngram in extract_ngrams(word, *SIZES)]
    return np.mean([table.table[row].astype(np.float64) for row in rows], 0) if rows else np.zeros(WIDTH)


@given(st.lists(st.text("catdog고양이가는 ?", max_size=9), max_size=4).map(" ".join))
def test_every_word_counts_by_its_vector_or_by_its_ngrams(text: str) -> None:
    table, vectors = make_table(), np.random.default_rng(1).normal(size=(2, WIDTH))
    frequencies = {"the": 2, "cat": 1, "sat": 2, "dog": 1, "달렸다": 1, "고양이가": 1}
    expected = np.zeros(WIDTH)
    for word in split_words(text):
        own = {"cat": vectors[0], "고양이": vectors[1]}.get(word, spell(word, table))
        expected += own * (np.log((1 + len(TEXTS)) / (1 + frequencies.get(word, 0))) + 1)
    length = np.linalg.norm(expected)
    columns, values = learn(table).vector(text)
    if length > 1e-9:
        assert columns.tolist() == list(range(WIDTH))
        assert values == pytest.approx(expected / length, abs=1e-5)
    else:
        assert len(columns) == 0


def test_without_a_table_unknown_words_are_left_out() -> None:
    features = learn(None)
    assert len(features.vector("고양이들은 뛰었다")[0]) == 0
    assert features.vector("cat 뛰었다")[1] == pytest.approx(features.vector("cat")[1])


def test_few_unknown_words_are_left_out_as_names_are() -> None:
    known = ["the cat sat"] * 9 + ["the dog sat"]
    words = ["the", "cat", "sat"]
    features = TextFeatures.learn(NO_NGRAMS, known, 1, words, np.eye(3, WIDTH, dtype=np.float32), make_table())
    assert features.ngram_table is None
    assert features.vector_words == words


def test_what_is_restored_reads_the_same() -> None:
    features = learn(make_table())
    again = TextFeatures.restore(features.describe(), features.arrays())
    for text in ("고양이들은 cat", "unheard of", "the"):
        assert again.vector(text)[1].tolist() == features.vector(text)[1].tolist()
    older = {
        name: value for name, value in learn(None).describe().items() if name not in ("unknown_idf", "ngram_sizes")
    }
    assert TextFeatures.restore(older, learn(None).arrays()).ngram_table is None


def test_tables_of_other_widths_are_refused() -> None:
    narrow = NgramTable(np.zeros((BUCKETS, WIDTH - 1), np.float16), *SIZES)
    with pytest.raises(ValueError, match="not as wide"):
        TextFeatures(FeatureSettings(), [], [], np.zeros(0), ["a"], np.zeros((1, WIDTH)), narrow)


@pytest.mark.parametrize("name", ["vectors", "tfidf+vectors"])
def test_an_export_spells_unknown_words_as_the_model_does(name: str, tmp_path: Path) -> None:
    words = ["fine", "dull", "재밌어요", "지루해요"]
    matrix = np.array([[2, 0, 0, 1], [-2, 0, 1, 0], [2, 1, 0, 0], [-2, 0, 0, 1]], np.float32)
    fit(name, "classify", None, reviews(), vectors=WordVectors(words, matrix, make_table())).save(tmp_path / "best")
    model = BaselineModel.open(tmp_path / "best")
    lines = ["재밌었습니다 정말", "a dullish thing", "???"]
    assert run_standalone(model.export(tmp_path / "out"), lines) == model.predict(lines)
