"""Sub-words: fastText's hash with its signed bytes, its n-grams and their order; all words at once as one by one."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.text.tokenizer.char_ngrams import build_subword_rows, extract_ngrams, fnv1a, hash_ngram, hash_ngrams

MILLIONS = 2_000_000


def test_buckets_of_the_original() -> None:
    """Values of facebookresearch/fastText: bytes from 128 on are read as negative numbers."""
    assert hash_ngram("<th", MILLIONS) == 1151151
    assert hash_ngram("한국", MILLIONS) == 1725635  # 545347 if bytes were unsigned
    assert fnv1a("") == 2166136261


def test_grams_are_runs_of_characters_between_marks() -> None:
    assert extract_ngrams("한국", 3, 6) == ["<한국", "<한국>", "한국>"]
    assert extract_ngrams("the", 3, 4) == ["<th", "<the", "the", "the>", "he>"]
    assert extract_ngrams("a", 1, 2) == ["<a", "a", "a>"], "a mark alone is none"
    assert extract_ngrams("", 3, 6) == []


@given(st.lists(st.text(max_size=9), max_size=6), st.integers(1, 4), st.integers(0, 4), st.sampled_from([7, 1000]))
@settings(max_examples=100, deadline=None)
def test_all_words_at_once(words: list[str], smallest: int, more: int, buckets: int) -> None:
    words = [word.replace("\ud800", "") for word in words]
    bounds, ids = hash_ngrams(words, buckets, smallest, smallest + more)
    assert len(bounds) == len(words) + 1 and bounds[-1] == len(ids)
    for number, word in enumerate(words):
        expected = [hash_ngram(gram, buckets) for gram in extract_ngrams(word, smallest, smallest + more)]
        assert ids[bounds[number] : bounds[number + 1]].tolist() == expected


def test_rows_are_the_word_and_behind_all_words_its_buckets() -> None:
    bounds, rows = build_subword_rows([None, "the", "</s>", "한국"], 1000, 3, 6)
    parts = [rows[start:stop].tolist() for start, stop in pairwise(bounds)]
    assert parts[0] == [0] and parts[2] == [2], "special tokens and fastText's end of a line have no n-grams"
    assert parts[1] == [1, *(4 + hash_ngram(gram, 1000) for gram in extract_ngrams("the", 3, 6))]
    assert parts[3] == [3, *(4 + hash_ngram(gram, 1000) for gram in extract_ngrams("한국", 3, 6))]


def test_against_gensim() -> None:
    inner = pytest.importorskip("gensim.models.fasttext_inner")
    for word in ("king", "한국어", "naïve", "ㅎ", "a", "日本語学校"):
        theirs = [inner.ft_hash_bytes(gram) % MILLIONS for gram in inner.compute_ngrams_bytes(word, 3, 6)]
        assert theirs == [hash_ngram(gram, MILLIONS) for gram in extract_ngrams(word, 3, 6)]
