"""Rows of segments: true to the text, whole and static."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.errors import UserError
from etude.objectives.base import IGNORE
from etude.objectives.rows.segments import Rules, SegmentRows, cut_end, fit
from etude.objectives.rows.walks import Draws, high_product, ones
from etude.text.corpus.corpus import Corpus
from etude.text.tokenizer.tokenizer import Tokenizer
from tests.objectives.one_row import OneByOne
from tests.objectives.rows.numbered_corpus import CLS, SEP, VOCAB, Numbered, corpus_of, rules, sequences, text

# --- true to the text -------------------------------------------------------------------------------


def test_next_labels_are_true() -> None:
    made = Numbered(text(1))
    rows = SegmentRows(made.corpus, 1, rules(sentence="next"))
    seen = {0: 0, 1: 0}
    for index in range(3 * len(rows)):
        row = list(sequences(rows[index]))
        for number, (first, second, label) in enumerate(row):
            if label == IGNORE:
                assert not second and number == len(row) - 1
                continue
            seen[label] += 1
            assert (
                len({made.document[token] for token in first}) == len({made.document[token] for token in second}) == 1
            )
            assert (made.document[first[0]] == made.document[second[0]]) == (label == 0)
            if label == 0:
                assert made.sentence[first[-1]] < made.sentence[second[0]]
                if len(first) + len(second) < 29 and number < len(row) - 1:  # nothing was cut: they touch
                    assert second[0] == first[-1] + 1
    assert min(seen.values()) > 100


@pytest.mark.parametrize("lone", ["random", "unlabelled"])
def test_order_labels_are_true(lone: Any) -> None:
    made = Numbered(text(2))
    rows = SegmentRows(made.corpus, 1, rules(sentence="order", lone=lone))
    seen, strangers, alone = {0: 0, 1: 0}, 0, 0
    for index in range(4 * len(rows)):
        row = list(sequences(rows[index]))
        for number, (first, second, label) in enumerate(row):
            if label == IGNORE:
                assert not second
                alone += number < len(row) - 1
                continue
            seen[label] += 1
            if made.document[first[0]] != made.document[second[0]]:
                assert label == 1 and len({made.sentence[token] for token in first}) == 1
                strangers += 1
            else:
                assert (made.sentence[first[-1]] < made.sentence[second[0]]) == (label == 0)
                assert (made.sentence[second[-1]] < made.sentence[first[0]]) == (label == 1)
    assert min(seen.values()) > 100
    assert (strangers > 10, alone > 10) == (lone == "random", lone == "unlabelled")
    assert 0 in (strangers, alone)


def test_every_segment_is_one_stretch_of_one_document() -> None:
    made = Numbered(text(3))
    for wanted in (rules(sentence="next"), rules(sentence="order"), rules(), rules(pair_rate=0.9)):
        rows = SegmentRows(made.corpus, 2, wanted)
        for index in range(len(rows)):
            for first, second, label in list(sequences(rows[index]))[:-1]:
                for segment in (first, second):
                    if segment and (label != IGNORE or wanted.sentence == "none"):
                        assert segment == list(range(segment[0], segment[0] + len(segment)))
                        assert made.document[segment[0]] == made.document[segment[-1]]


def test_unused_sentences_are_put_back() -> None:
    """After a B from elsewhere, the next sequence begins right behind A."""
    made = Numbered([[10] * 50, [10] * 50, [10] * 50])
    rows = SegmentRows(made.corpus, 3, rules(length=64, sentence="next", short_rate=0.0))
    seen = 0
    for index in range(3 * len(rows)):
        for (first, second, label), (after, _, _) in pairwise(list(sequences(rows[index]))[:-1]):
            if label == 1 and made.sentence[first[0]] // 50 == made.sentence[after[0]] // 50:
                assert made.sentence[after[0]] == made.sentence[first[-1]] + 1
                seen += 1
            elif label == 0 and made.document[first[0]] == made.document[after[0]]:
                assert made.sentence[after[0]] == made.sentence[second[-1]] + 1
    assert seen > 20


def test_no_sentence_task_gives_one_segment_and_electra_two() -> None:
    made = Numbered(text(4, sentences=30))
    rows = SegmentRows(made.corpus, 1, rules(length=64))
    assert rows[0].segments is None
    assert all(not second for index in range(len(rows)) for _, second, _ in sequences(rows[index]))
    rows = SegmentRows(made.corpus, 1, rules(length=64, pair_rate=0.9, short_rate=0.0, truncation="end"))
    pairs = [part for index in range(3 * len(rows)) for part in list(sequences(rows[index]))[:-1]]
    assert all(label == IGNORE for _, _, label in pairs)
    long = [(a, b) for a, b, _ in pairs if len(a) + len(b) == 61]
    both = [(a, b) for a, b in long if b]
    assert 0.8 < len(both) / len(long) < 0.98
    assert all(b[0] == a[-1] + 1 and a[0] in made.first for a, b in both)  # nothing is dropped at the front
    assert 22 < np.mean([len(a) for a, _ in both]) < 40


def test_without_markers_the_text_stands_alone() -> None:
    made = Numbered(text(5))
    rows = SegmentRows(made.corpus, 1, rules(markers=None))
    row = rows[0]
    assert row.tokens.min() >= 6
    assert len(row.tokens) == 256 and row.bounds[-1] == 256 and np.diff(row.bounds).max() == 32


# --- rows -------------------------------------------------------------------------------------------


shapes = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=6), min_size=2, max_size=8)
any_rules = st.builds(
    rules,
    length=st.sampled_from([8, 16, 33]),
    times=st.sampled_from([1, 3, 8]),
    sentence=st.sampled_from(["none", "next", "order"]),
    short_rate=st.sampled_from([0.0, 0.1, 1.0]),
    lone=st.sampled_from(["random", "unlabelled"]),
    truncation=st.sampled_from(["random", "end"]),
    places=st.sampled_from([1, 2, 8]),
)


@given(shapes, any_rules, st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_a_row_is_always_full_and_within_its_limits(sizes: list[list[int]], wanted: Rules, seed: int) -> None:
    made = Numbered(sizes)
    if len(made.corpus.sentences) == len(sizes):
        wanted = replace(wanted, sentence="none")
    rows = SegmentRows(made.corpus, seed, wanted)
    for index in (0, len(rows) - 1, len(rows), 10**9):
        row = rows[index]
        assert len(row.tokens) == wanted.row_tokens
        assert np.diff(row.bounds).min() >= 1 and np.diff(row.bounds).max() <= wanted.length
        for first, second, label in sequences(row):
            assert label == IGNORE or (first and second)


@given(shapes, any_rules, st.integers(0, 1000), st.sampled_from([0.0, 0.9]), st.booleans())
@settings(max_examples=25, deadline=None)
def test_rows_built_together_are_those_built_one_by_one(
    sizes: list[list[int]], wanted: Rules, seed: int, pair_rate: float, bare: bool
) -> None:
    made = Numbered(sizes)
    draw = random.Random(seed)
    words = [[[draw.random() < 0.6 for _ in sentence] for sentence in one] for one in made.documents]
    corpus = corpus_of(made.documents, words)
    if len(corpus.sentences) == len(sizes):
        wanted = replace(wanted, sentence="none")
    if wanted.sentence == "none":
        wanted = replace(wanted, pair_rate=pair_rate, markers=None if bare else wanted.markers)
    rows, slow = SegmentRows(corpus, seed, wanted, words=True), OneByOne(corpus, seed, wanted, words=True)
    assert (len(rows), rows.most) == (len(slow), slow.most)
    for most in (rows.most, wanted.row_tokens // wanted.length + 1):
        rows.most = slow.most = most
        numbers = [0, len(rows) - 1, len(rows), 10**9, 3, 10**12]
        for row, number in zip(rows.many(np.array(numbers)), numbers, strict=True):
            for one in (row, rows[number]):
                for name, value in vars(slow[number]).items():
                    assert np.array_equal(getattr(one, name), value), name


def test_rows_are_pure_and_epochs_differ() -> None:
    made = Numbered(text(6))
    one, other = (SegmentRows(made.corpus, 7, rules(sentence="next")) for _ in range(2))
    for index in (10**12, 5, 0, 10**9 + 1, 5):
        assert np.array_equal(one[index].tokens, other[index].tokens)
        assert np.array_equal(one[index].labels, other[index].labels)
    assert not np.array_equal(one[0].tokens, one[len(one)].tokens)
    assert not np.array_equal(one[0].tokens, SegmentRows(made.corpus, 8, rules(sentence="next"))[0].tokens)


@pytest.mark.parametrize("places", [1, 8])
@pytest.mark.parametrize("sentence", ["none", "next", "order"])
def test_an_epoch_reads_the_corpus_about_once(sentence: Any, places: int) -> None:
    made = Numbered(text(7, documents=150))
    rows = SegmentRows(made.corpus, 1, rules(length=32, sentence=sentence, short_rate=0.0, places=places))
    seen = np.zeros(VOCAB, int)
    for index in range(len(rows)):
        for first, second, label in sequences(rows[index]):
            foreign = label == 1 and made.document[first[0]] != made.document[second[0]]
            np.add.at(seen, first if foreign else first + second, 1)
    counts = seen[6 : 6 + made.corpus.total]
    assert 0.75 < counts.mean() < 1.1  # what truncation drops is not seen
    assert (counts == 0).mean() < 0.3


def test_a_row_has_its_sequences_from_many_places() -> None:
    """A sequence and the next are an eighth of the corpus apart, and in a walk one follows on the other."""
    made = Numbered([[10] * 40] * 32)
    rows = SegmentRows(made.corpus, 1, rules(length=32, places=8, short_rate=0.0))
    apart = len(made.corpus.sentences) // 8
    for index in (0, 5, len(rows) - 1):
        firsts = [made.sentence[first[0]] for first, _, _ in list(sequences(rows[index]))[:-1]]
        steps = np.diff(firsts) % len(made.corpus.sentences)
        assert (abs(steps[:7] - apart) <= 1).all()
        assert all(1 <= later - earlier <= 3 for earlier, later in zip(firsts, firsts[8:], strict=False))


def test_a_stretch_of_tiny_documents_cannot_burst_a_row() -> None:
    """Long sentences on average, then many documents of two tiny ones: full plain sequences fill the row."""
    made = Numbered([[60, 60, 60]] * 60 + [[1, 1]] * 250)
    rows = SegmentRows(made.corpus, 1, rules(length=32, times=16))
    free = max(len(rows[index].labels) for index in range(len(rows)))
    assert 60 < free <= rows.most  # the sample met the stretch; had it not:
    rows.most = 40
    counts = [len(rows[index].labels) for index in range(len(rows))]
    assert max(counts) == 40
    crowded = rows[int(np.argmax(counts))]
    lengths = np.diff(crowded.bounds)
    tiny = np.flatnonzero(lengths == 4)
    rest = lengths[tiny[-1] + 1 :]
    assert len(tiny) > 20 and len(rest) > 2 and (rest[:-1] == 32).all()
    plain = [first for first, _, _ in sequences(crowded)][-2]
    assert plain == list(range(plain[0], plain[0] + 30))  # on through fifteen documents
    assert all(len(rows[index].tokens) == 512 for index in range(len(rows)))


def test_words_start_where_they_did_and_at_every_cut() -> None:
    sizes = text(8)
    made = Numbered(sizes)
    draw = random.Random(1)
    words = [[[place == 0 or draw.random() < 0.6 for place in range(size)] for size in one] for one in sizes]
    starts = dict(zip(range(6, VOCAB), [flag for one in words for sentence in one for flag in sentence], strict=False))
    corpus = corpus_of(made.documents, words)
    for wanted in (rules(sentence="next"), rules()):
        row = SegmentRows(corpus, 1, wanted, words=True)[3]
        before = None
        for token, flag in zip(row.tokens.tolist(), row.word_starts.tolist(), strict=True):
            if token in (CLS, SEP) or before in (CLS, SEP):
                assert flag
            else:
                assert flag == starts[token]
            before = token
    assert SegmentRows(corpus, 1, rules())[0].word_starts is None


def test_korean_sentences_keep_their_order() -> None:
    stories = [
        ["할머니가 아침에 빵을 구웠다.", "고양이가 부엌으로 들어왔다.", "빵은 식탁 위에 있었다."],
        ["비가 하루 종일 내렸다.", "강물이 불어났다.", "마을 사람들은 다리로 모였다."],
        ["선생님이 책을 폈다.", "아이들은 조용해졌다."],
    ] * 6
    words = Tokenizer.train("wordpiece:300", [sentence for story in stories for sentence in story])
    corpus = Corpus.from_documents([[words.encode(s).ids.tolist() for s in story] for story in stories], words)
    markers = (words.special.start, words.special.separator)
    wanted = rules(length=256, times=4, sentence="order", lone="unlabelled", markers=markers)
    rows = SegmentRows(corpus, 3, wanted)
    joined = {" ".join(story): story for story in stories}
    seen = set()
    for index in range(4 * len(rows)):
        row = rows[index]
        for (start, stop), label in zip(pairwise(row.bounds.tolist()), row.labels.tolist(), strict=True):
            if label == IGNORE or stop == len(row.tokens):
                continue
            tokens, kinds = row.tokens[start:stop], row.segments[start:stop]
            text = [words.decode(tokens[kinds == kind].tolist()[(1 - kind) : -1]) for kind in (0, 1)]
            ordered = " ".join(text if label == 0 else text[::-1])
            assert any(ordered in story for story in joined), (text, label)
            seen.add(label)
    assert seen == {0, 1}


# --- parts ------------------------------------------------------------------------------------------


@given(st.integers(1, 60), st.integers(0, 60), st.integers(2, 80))
@settings(max_examples=300, deadline=None)
def test_fitting_equals_dropping_one_at_a_time(first: int, second: int, room: int) -> None:
    a, b = first, second
    while a + b > room:
        a, b = (a - 1, b) if a > b else (a, b - 1)
    assert fit(first, second, room) == (a, b)
    a, b = cut_end(first, second, room)
    assert a + b == min(first + second, room) and (b > 0) == (second > 0)
    assert b <= 1 or a == first  # A is whole as long as B has something to give


def test_a_first_segment_of_exactly_half_is_reached_by_a_coin() -> None:
    """ELECTRA's code asks whether a sentence keeps the first segment below half of the target, 20 of 40 tokens."""
    made = Numbered([[5] * 40 for _ in range(30)])
    rows = SegmentRows(made.corpus, 1, rules(length=43, pair_rate=1.0, short_rate=0.0, truncation="end"))
    full = [len(a) for row in range(len(rows)) for a, b, _ in sequences(rows[row]) if len(a) + len(b) == 40]
    assert set(full) == {15, 20} and 0.3 < np.mean([size == 20 for size in full]) < 0.7


def test_draws_are_fair_coins_in_a_fixed_order() -> None:
    draws, again = (Draws(np.array([5, 6], np.uint64)) for _ in range(2))
    zero, both = np.array([0]), np.array([0, 1])
    alone = [int(draws.bits(zero)[0]) for _ in range(200)]
    together = [again.bits(both).tolist() for _ in range(200)]
    assert alone == [pair[0] for pair in together] and not set(alone) & {pair[1] for pair in together}
    many, each = Draws(np.arange(4000).astype(np.uint64)), np.arange(4000)
    heads = many.heads(each, np.full(4000, 100))
    assert abs(heads.mean() - 50) < 3.5 * 5 / np.sqrt(4000) and 22 < heads.var() < 28
    few = many.heads(each, each % 4)
    assert (few <= each % 4).all() and few.max() == 3
    below = np.bincount(np.concatenate([many.below(each, 7) for _ in range(2)]), minlength=7)
    assert len(below) == 7 and np.abs(below - 8000 / 7).max() < 120
    assert abs(np.mean([many.coin(each, 0.3) for _ in range(3)]) - 0.3) < 0.016
    assert not many.coin(each, 0.0).any() and many.coin(each, 1.0).all()


def test_wide_products_and_ones_are_exact() -> None:
    draw = random.Random(0)
    bits = [0, 2**64 - 1, *(draw.getrandbits(64) for _ in range(500))]
    for limit in (1, 2, 7, 2**31 + 1, 2**32 - 1):
        assert high_product(np.array(bits, np.uint64), np.uint64(limit)).tolist() == [b * limit >> 64 for b in bits]
    assert ones(np.array(bits, np.uint64)).tolist() == [b.bit_count() for b in bits]


def test_what_the_text_cannot_teach_is_refused() -> None:
    lonely = Numbered([[4], [5], [6]]).corpus
    with pytest.raises(UserError, match=r"every document is one sentence.*objective\.sentence=none"):
        SegmentRows(lonely, 0, rules(sentence="next"))
    single = Numbered([[4, 5, 6]]).corpus
    with pytest.raises(UserError, match="only one"):
        SegmentRows(single, 0, rules(sentence="next"))
    assert len(SegmentRows(single, 0, rules(sentence="order", lone="unlabelled"))) == 1
    assert len(SegmentRows(lonely, 0, rules())) == 1
