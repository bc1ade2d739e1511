"""Units and windows: every word has its piece, every piece of a long sentence is in some window, with most context."""

from __future__ import annotations

import tracemalloc
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.errors import UserError
from etude.models.framing import Framing
from etude.tasks.tag.word_pieces import Pieces, expand, frame_sentence, split_characters, split_words
from etude.text.tokenizer.tokenizer import Tokenizer

TEXTS = [
    "the cats of Seoul sat down, unhappily.",
    "서울의 고양이들이 앉았다. 이순신 장군은 서울에 갔다",
    "a b c 1 2 3 ( ) #",
] * 8


@pytest.fixture(scope="module", params=["wordpiece:120", "bpe:120", "bytebpe:300", "unigram:120", "word:40", "char:90"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return Tokenizer.train(request.param, TEXTS)


WORDS = [
    "the",
    "Seoul",
    "고양이들이",
    "unhappily",
    "(",
    "zzz",
    "New York",
    "é",
    "e\u0301",
    "\u4e2d\u6587",
    "🙂",
    "1.5%",
]


def test_every_word_has_a_piece_of_its_own_letters(tokenizer: Tokenizer) -> None:
    chance = np.random.default_rng(0)
    sentences = [list(chance.choice(WORDS, chance.integers(1, 9))) for _ in range(30)]
    places = ["here"] * 30
    firsts, lasts = (split_words(sentences, tokenizer, which, places) for which in ("first", "last"))
    for words, first, last in zip(sentences, firsts, lasts, strict=True):
        assert first.ids.tolist() == last.ids.tolist()
        assert len(first.units) == len(words) and (np.diff(first.units) > 0).all() and (np.diff(last.units) > 0).all()
        assert (first.units <= last.units).all() and (last.units[:-1] < first.units[1:]).all()
        assert last.units[-1] == len(last.ids) - 1
        if first.ids.tolist() != tokenizer.encode(" ".join(words)).ids.tolist():
            assert tokenizer.special.unknown in first.ids  # one was put in for a word that had no piece


def test_a_piece_begins_where_its_word_does() -> None:
    tokenizer = Tokenizer.train("bytebpe:300", TEXTS)
    (found,) = split_words([["the", "cats", "고양이"]], tokenizer, "first", ["here"])
    encoding = tokenizer.encode("the cats 고양이")
    starts = [int(start) for start, _ in encoding.offsets[found.units]]
    assert starts[0] == 0 and starts[1] in (3, 4) and starts[2] in (8, 9), "a piece may hold the space before"


def test_a_word_the_tokenizer_drops_is_unknown_or_refused() -> None:
    tokenizer = Tokenizer.train("word:40", TEXTS)
    (found,) = split_words([["the", "\u200b", "cats"]], tokenizer, "first", ["a.conll:3"])
    assert len(found.units) == 3 and (np.diff(found.units) > 0).all()
    assert found.ids[found.units[1]] == tokenizer.special.unknown
    (found,) = split_words([["the", "", "cats"]], tokenizer, "first", ["a.conll:3"])
    assert found.ids.tolist()[1] == tokenizer.special.unknown and found.units.tolist() == [0, 1, 2]
    bare = Tokenizer.train("word:40", TEXTS)
    bare.special = type(bare.special)()
    with pytest.raises(UserError, match=r"a.conll:3: the tokenizer leaves nothing of ''"):
        split_words([["the", "", "cats"]], bare, "first", ["a.conll:3"])


def test_characters_belong_to_the_pieces_that_hold_them(tokenizer: Tokenizer) -> None:
    for text in ("이순신 장군은  서울에 갔다", "the cats", unicodedata.normalize("NFD", "이순신 장군"), " é 🙂"):
        (found,) = split_characters([list(text)], tokenizer, ["here"])
        owned = [owner for character, owner in zip(text, found.owners, strict=True) if not character.isspace()]
        assert all(owner >= 0 for owner in owned) or tokenizer.kind in ("wordpiece", "word")
        assert (np.diff(owned) >= 0).all() and set(owned) - {-1} == set(range(len(found.units)))
        assert all(owner == -1 for c, owner in zip(text, found.owners, strict=True) if c.isspace())
        heads = [next(i for i, owner in enumerate(found.owners) if owner == unit) for unit in range(len(found.units))]
        assert found.heads.tolist() == heads


def frame_of(length: int | None) -> Framing:
    return Framing([2], [3], [3], "start", length=length)


@settings(max_examples=200)
@given(
    pieces=st.integers(1, 60),
    share=st.floats(0.05, 1),
    length=st.integers(3, 20),
    stride=st.one_of(st.none(), st.integers(1, 30)),
    seed=st.integers(0, 9),
)
def test_every_unit_is_in_the_window_with_most_context(
    pieces: int, share: float, length: int, stride: int | None, seed: int
) -> None:
    units = np.flatnonzero(np.random.default_rng(seed).random(pieces) < share)
    one = Pieces(np.arange(100, 100 + pieces, dtype=np.int32), units, units, units)
    found = frame_sentence(one, frame_of(length), "window", stride)
    assert not found.cut and found.tokens[found.units].tolist() == (100 + units).tolist()
    windows = [found.tokens[a:b] for a, b in zip(found.bounds[:-1], found.bounds[1:], strict=True)]
    assert all(len(window) <= length and window[0] == 2 and window[-1] == 3 for window in windows)
    assert {int(t) for window in windows for t in window[1:-1]} == set(range(100, 100 + pieces))
    for unit, place in zip(units, found.units, strict=True):
        chosen = int(np.searchsorted(found.bounds, place, side="right")) - 1
        contexts = [
            min(list(window).index(100 + unit), len(window) - 1 - list(window).index(100 + unit))
            for window in windows
            if 100 + unit in window
        ]
        own = windows[chosen]
        at = list(own).index(100 + unit)
        assert min(at, len(own) - 1 - at) == max(contexts)


def test_decomposed_hangul_takes_time_by_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each jamo went is found word by word: a long text is not composed anew for each of its letters."""
    tokenizer, composed = Tokenizer.train("char:90", TEXTS), [0]
    text = unicodedata.normalize("NFD", "서울의 고양이들이 앉았다. " * 200)
    expected = split_characters([list(text[:60])], tokenizer, ["x"])[0]
    normalise = Tokenizer.normalise

    def counted(part: str) -> str:
        composed[0] += len(part)
        return normalise(part)

    monkeypatch.setattr(Tokenizer, "normalise", staticmethod(counted))
    [pieces] = split_characters([list(text)], tokenizer, ["x"])
    assert composed[0] < 50 * len(text) and pieces.owners[:59].tolist() == expected.owners[:59].tolist()


def test_memory_of_windows_grows_with_the_sentence_and_not_with_its_square() -> None:
    units = np.arange(20_000)
    tracemalloc.start()
    frame_sentence(Pieces(units.astype(np.int32), units, units, units), frame_of(22), "window", 10)  # 1,999 windows
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5e6


def test_short_sentences_are_one_sequence_and_cut_ones_lose_their_end() -> None:
    one = Pieces(np.arange(10, 16, dtype=np.int32), np.array([0, 2, 5]), np.arange(3), np.arange(3))
    whole = frame_sentence(one, frame_of(None), "window", None)
    assert whole.tokens.tolist() == [2, *range(10, 16), 3] and whole.units.tolist() == [1, 3, 6]
    cut = frame_sentence(one, frame_of(6), "cut", None)
    assert cut.cut and cut.tokens.tolist() == [2, 10, 11, 12, 13, 3] and cut.units.tolist() == [1, 3]
    assert frame_sentence(one, frame_of(8), "cut", None).cut is False


def test_tags_of_pieces_become_tags_of_characters() -> None:
    """이순신 장군은: pieces 이순신 | 장군 | 은."""
    owners = np.array([0, 0, 0, -1, -1, 1, 1, 2])
    pieces = Pieces(np.arange(3), np.arange(3), np.array([0, 5, 7]), owners)
    assert expand(["B-PS", "I-PS", "O"], pieces, "O") == ["B-PS", *["I-PS"] * 6, "O"], "and the spaces within"
    assert expand(["B-PS", "B-PS", "O"], pieces, "O") == ["B-PS", "I-PS", "I-PS", "O", "O", "B-PS", "I-PS", "O"]
    assert expand(["O", "I-PS", "O"], pieces, "O") == ["O", "O", "O", "O", "O", "I-PS", "I-PS", "O"]
    assert expand(["B-PS"], pieces, "O") == ["B-PS", "I-PS", "I-PS", "O", "O", "O", "O", "O"], "behind a cut"
    words = Pieces(np.arange(3), np.arange(3), np.arange(3), np.arange(3))
    assert expand(["NOUN", "VERB"], words, "X") == ["NOUN", "VERB", "X"]
