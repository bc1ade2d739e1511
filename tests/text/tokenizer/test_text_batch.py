"""Texts as one run of bytes: pieces, classes and positions are those of the characters."""

from __future__ import annotations

import re

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from etude.text.tokenizer import characters
from etude.text.tokenizer.text_batch import CONTINUATION, TextBatch

letters = st.sampled_from([*"ab1.é서😀 ", "  ", "\n", "\u3000", "\xa0 ", "\u2028", "\x1c"])
texts = st.lists(st.lists(letters, min_size=1, max_size=12).map("".join), min_size=1, max_size=4)
SPACES = re.escape(characters.WHITE_SPACE)
PIECE = re.compile(rf"[{SPACES}]+[^{SPACES}]*|[^{SPACES}]+")


@given(texts)
@example(["a", " ", "\u3000b"])
@settings(max_examples=200, deadline=None)
def test_pieces_are_white_space_with_what_follows(some: list[str]) -> None:
    batch = TextBatch(some)
    ends = (batch.starts + batch.lengths).tolist()
    pieces = [batch.encoded[start:end].decode() for start, end in zip(batch.starts.tolist(), ends, strict=True)]
    expected = [PIECE.findall(text) for text in some]
    assert pieces == [piece for of_text in expected for piece in of_text]
    assert np.diff(batch.first_pieces, append=len(pieces)).tolist() == list(map(len, expected))
    assert (batch.last_pieces - batch.first_pieces + 1).tolist() == list(map(len, expected))
    assert batch.has_only_space.tolist() == [not of_text[-1].strip(characters.WHITE_SPACE) for of_text in expected]


@given(texts)
@settings(max_examples=200, deadline=None)
def test_positions_and_classes_are_those_of_the_characters(some: list[str]) -> None:
    batch, text = TextBatch(some), "".join(some)
    positions = np.cumsum([0, *(len(letter.encode()) for letter in text)])
    assert batch.to_characters(positions).tolist() == list(range(len(text) + 1))
    assert batch.to_bytes(np.arange(len(text) + 1)).tolist() == positions.tolist()
    classes = characters.classify(text)
    assert batch.classes[positions[:-1]].tolist() == classes.tolist()
    assert np.array_equal(batch.count_classes(), np.bincount(classes, minlength=characters.CLASSES))
    behind = np.setdiff1d(np.arange(len(batch.data)), positions)
    assert all(batch.is_space[place] or batch.classes[place] == CONTINUATION for place in behind.tolist())
    for first in range(len(some)):
        part = batch.slice(first, len(some))
        assert part.encoded == "".join(some[first:]).encode() and list(part.texts) == some[first:]
