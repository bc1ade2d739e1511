"""Sub-words: fastText's hash with its signed bytes, its n-grams and their order; all words at once as one by one."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.text.tokenizer.char_ngrams import bucket, fnv, gram_buckets, grams, word_rows

MILLIONS = 2_000_000


def test_buckets_of_the_original() -> None:
    """Values of facebookresearch/fastText: bytes from 128 on are read as negative numbers."""
    assert bucket("<th", MILLIONS) == 1151151
    assert bucket("한국", MILLIONS) == 1725635  # 545347 if bytes were unsigned
    assert fnv("") == 2166136261


def test_grams_are_runs_of_characters_between_marks() -> None:
    assert grams("한국", 3, 6) == ["<한국", "<한국>", "한국>"]
    assert grams("the", 3, 4) == ["<th", "<the", "the", "the>", "he>"]
    assert grams("a", 1, 2) == ["<a", "a", "a>"], "a mark alone is none"
    assert grams("", 3, 6) == []


@given(st.lists(st.text(max_size=9), max_size=6), st.integers(1, 4), st.integers(0, 4), st.sampled_from([7, 1000]))
@settings(max_examples=100, deadline=None)
def test_all_words_at_once(words: list[str], smallest: int, more: int, buckets: int) -> None:
    words = [word.replace("\ud800", "") for word in words]
    bounds, found = gram_buckets(words, buckets, smallest, smallest + more)
    assert len(bounds) == len(words) + 1 and bounds[-1] == len(found)
    for number, word in enumerate(words):
        wanted = [bucket(gram, buckets) for gram in grams(word, smallest, smallest + more)]
        assert found[bounds[number] : bounds[number + 1]].tolist() == wanted


def test_rows_are_the_word_and_behind_all_words_its_buckets() -> None:
    bounds, rows = word_rows([None, "the", "</s>", "한국"], 1000, 3, 6)
    parts = [rows[start:stop].tolist() for start, stop in pairwise(bounds)]
    assert parts[0] == [0] and parts[2] == [2], "special tokens and fastText's end of a line have no n-grams"
    assert parts[1] == [1, *(4 + bucket(gram, 1000) for gram in grams("the", 3, 6))]
    assert parts[3] == [3, *(4 + bucket(gram, 1000) for gram in grams("한국", 3, 6))]


def test_against_gensim() -> None:
    inner = pytest.importorskip("gensim.models.fasttext_inner")
    for word in ("king", "한국어", "naïve", "ㅎ", "a", "日本語学校"):
        theirs = [inner.ft_hash_bytes(gram) % MILLIONS for gram in inner.compute_ngrams_bytes(word, 3, 6)]
        assert theirs == [bucket(gram, MILLIONS) for gram in grams(word, 3, 6)]
