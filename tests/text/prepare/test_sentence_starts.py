"""Sentence starts of many texts at once are those of the rules, one text at a time."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from etude.text.prepare import sentences
from etude.text.prepare.sentence_starts import find_sentence_starts
from etude.text.prepare.sentences import find_sentence_ends
from etude.text.tokenizer.text_batch import TextBatch
from etude.world import World

atoms = st.sampled_from([
    *"aAbZéñПK.!?…;:,。！？｡\n\t\r\"'”’»)]}「(“가나다요까죠니습인갈고며만라하는 1257-_",
    "\xa0", "\u3000", "\x1c", "\v", "\x85", "‼",
    " ", " ", " ", ". ", "! ", "? ", ". A", ".) B", '." C', "Mr.", " Dr. ", "e.g. ", "etc. ", "Inc. ", "U.S. ", " J. ",
    "The ", " no", "No. ", "pp. 12", "iv", "IV", "1935", "12", "\n1. ", "\n가. ", "1935. 5. 15. ", "(a) ", "word",
    "letters", "Something", "approx", "니다 ", "세요 ", "어요 ", "죠 ", "거든요 ",
    "라고 ", "이라고 ", "하고 ", "했다. ", "한국", "그는 ",
    "\r\n", " \n ", "\n\n", "\nlower", "\nà", "\nя", " " * 20,
])  # fmt: skip
texts = st.lists(st.lists(atoms, min_size=1, max_size=30).map("".join), min_size=1, max_size=5)


def find_one_by_one(some: list[str]) -> list[int]:
    starts, base = [], 0
    for text in some:
        starts += [base + len(text[:place].encode()) for place in [0, *find_sentence_ends(text)[:-1]]]
        base += len(text.encode())
    return starts


@given(texts)
@example([" "])
@example(["a. \n", "\n", "B. C. "])
@example(["한국", "가. 나 다. 라"])
@example(["x\n\n.", ". A\n. B"])
@settings(max_examples=250, deadline=None)
def test_starts_are_those_of_the_rules(some: list[str]) -> None:
    assert find_sentence_starts(TextBatch(some)).tolist() == find_one_by_one(some)


@pytest.mark.parametrize("language", ["en", "ko"])
def test_plain_text_needs_no_rule(language: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stories = list(World(seed=1, language=language).text(megabytes=0.1))
    expected = find_one_by_one(stories)
    asked = []
    monkeypatch.setattr(sentences, "ends_sentence", lambda *place: asked.append(place))
    find_sentence_starts(TextBatch(stories))
    assert len(expected) > 500 and len(asked) < len(expected) / 20


def test_lists_of_abbreviations_are_known() -> None:
    for word in sorted(sentences.TITLES | sentences.BEFORE_NUMBER | sentences.MAYBE_FINAL):
        for before in ("He saw ", "(", "", "x "):
            some = [
                f"{before}{spelled}. {after}" for spelled in (word, word.title()) for after in ("The end", "5 x", "Abc")
            ]
            assert find_sentence_starts(TextBatch(some)).tolist() == find_one_by_one(some)
