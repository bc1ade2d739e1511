"""The cache of words: what is looked up is what was computed, whatever was dropped and however long a span is."""

from __future__ import annotations

import random

import numpy as np

from etude.text.tokenizer.word_cache import SpanCache, SpanList, Tokens, hash_spans


def compute(spans: SpanList) -> Tokens:
    """One token for each letter, with its code as id; the surface is the letter."""
    words = spans.decode()
    ids = np.array([ord(letter) for word in words for letter in word], np.uint32)
    lengths = np.array([len(word) for word in words], np.int64)
    return Tokens.build(ids, lengths, [letter.encode() for word in words for letter in word])


def test_tokens_are_those_of_the_words_whatever_was_dropped() -> None:
    draw = random.Random(0)
    cache = SpanCache(compute, 0, surfaces=True)  # 1024 entries
    for _ in range(30):
        words = ["".join(draw.choices("ab가é", k=draw.choice([1, 2, 3, 7, 8, 9, 40, 300]))) for _ in range(400)]
        tokens = cache.look_up(SpanList.join([word.encode() for word in words]))
        assert tokens.flagged.tolist() == [ord(letter) for word in words for letter in word]
        assert tokens.lengths.tolist() == list(map(len, words))
        assert tokens.letters is not None and tokens.letters.tobytes().decode() == "".join(words)
        assert len(cache) <= cache.max_entries


def test_different_spans_have_different_hashes() -> None:
    words = [b"a" * length for length in range(1, 300)] + [b"\0" * length for length in range(1, 300)]
    words += [bytes([byte]) + b"b" * length for byte in range(98, 128) for length in (6, 7, 8, 15, 16, 127, 128, 129)]
    hashes = hash_spans(SpanList.join(words))
    assert len(np.unique(hashes)) == len(set(words)) and (hashes > 0).all()
    # wherever they lie
    shifted = hash_spans(SpanList.join([b"x", *words]))
    assert np.array_equal(shifted[1:], hashes)
