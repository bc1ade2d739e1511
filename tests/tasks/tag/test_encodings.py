"""Schemes of tags: by hand, as round trips, and against the rules they state."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.tasks.tag.encodings import (
    PREFIXES,
    Scheme,
    Span,
    all_tags,
    allowed,
    convert,
    detect,
    encode,
    first_breach,
    parse_tag,
    spans,
)

SCHEMES: list[Scheme] = ["iob1", "iob2", "iobes"]
CHUNKS = [Span("PER", 0, 2), Span("PER", 2, 3), Span("LOC", 3, 4), Span("LOC", 5, 8)]
WRITTEN = {
    "iob1": "I-PER I-PER B-PER I-LOC O I-LOC I-LOC I-LOC O",
    "iob2": "B-PER I-PER B-PER B-LOC O B-LOC I-LOC I-LOC O",
    "iobes": "B-PER E-PER S-PER S-LOC O B-LOC I-LOC E-LOC O",
}


@st.composite
def chunked(draw: st.DrawFn) -> tuple[list[Span], int]:
    """Chunks of a sentence, in order and apart."""
    chunks, place = [], 0
    for kind, gap, length in draw(
        st.lists(st.tuples(st.sampled_from(["A", "B-1", "한"]), st.integers(0, 2), st.integers(1, 3)), max_size=6)
    ):
        chunks.append(Span(kind, place + gap, place + gap + length))
        place += gap + length
    return chunks, place + draw(st.integers(0, 2))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_three_schemes_by_hand(scheme: Scheme) -> None:
    tags = WRITTEN[scheme].split()
    assert encode(CHUNKS, 9, scheme) == tags
    assert spans(tags) == CHUNKS and spans(tags, strict=scheme) == CHUNKS
    for other in SCHEMES:
        assert convert(tags, other) == WRITTEN[other].split()


@pytest.mark.parametrize("scheme", SCHEMES)
@given(data=chunked())
def test_chunks_survive_every_scheme(scheme: Scheme, data: tuple[list[Span], int]) -> None:
    chunks, length = data
    tags = encode(chunks, length, scheme)
    assert spans(tags) == chunks and spans(tags, strict=scheme) == chunks
    assert first_breach(tags, scheme) is None
    assert all(convert(convert(tags, other), scheme) == tags for other in SCHEMES)
    assert detect([tags]) == _seen(tags)


def _seen(tags: list[str]) -> Scheme | None:
    """What can be told of one legal sentence: a chunk of several words may be all that differs."""
    prefixes = {tag[0] for tag in tags}
    if prefixes <= {"O"}:
        return None
    if prefixes & {"E", "S"}:
        return "iobes"
    return "iob2" if first_breach(tags, "iob1") is not None else "iob1"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_rules_allow_exactly_what_an_encoding_can_be(scheme: Scheme) -> None:
    """Of all sentences of four words, those without a breach are those that some chunks are written as."""
    tags = all_tags(["x", "y"], scheme)
    rules = allowed(tags, scheme)
    legal = 0
    for path in product(range(len(tags)), repeat=4):
        sentence = [tags[number] for number in path]
        can_be = encode(spans(sentence), 4, scheme) == sentence
        by_rules = (
            rules.starts[path[0]]
            and rules.ends[path[-1]]
            and all(rules.transitions[one, other] for one, other in pairwise(path))
        )
        assert can_be == by_rules == (first_breach(sentence, scheme) is None), sentence
        legal += can_be
    assert legal == 153, "f(n) = f(n-1) + 2 (f(n-1) + ... + f(0)): O, or a last chunk of two types and any length"


@pytest.mark.parametrize(
    ("tags", "lenient", "strict"),
    [
        ("O I-x I-x O", [("x", 1, 3)], []),
        ("I-x I-y", [("x", 0, 1), ("y", 1, 2)], []),
        ("B-x I-y I-y", [("x", 0, 1), ("y", 1, 3)], [("x", 0, 1)]),
        ("B-x I-x I-y O", [("x", 0, 2), ("y", 2, 3)], [("x", 0, 2)]),
        ("B-x O I-x", [("x", 0, 1), ("x", 2, 3)], [("x", 0, 1)]),
        ("B B I O I", [("_", 0, 1), ("_", 1, 3), ("_", 4, 5)], [("_", 0, 1), ("_", 1, 3)]),
        ("", [], []),
    ],
)
def test_illegal_tags_under_both_rules(tags: str, lenient: list[tuple], strict: list[tuple]) -> None:
    assert spans(tags.split()) == lenient
    assert spans(tags.split(), strict="iob2") == strict


def test_iobes_chunks_that_never_end_are_lenient_chunks_only() -> None:
    tags = ["B-x", "I-x", "O", "E-y", "S-y", "B-z", "E-z", "I-z"]
    assert spans(tags) == [("x", 0, 2), ("y", 3, 4), ("y", 4, 5), ("z", 5, 7), ("z", 7, 8)]
    assert spans(tags, strict="iobes") == [("y", 4, 5), ("z", 5, 7)]


def test_breaches_are_found_where_they_are() -> None:
    assert first_breach(["B-x", "I-x", "O", "I-x"], "iob2") == 3
    assert first_breach(["O", "B-x"], "iob1") == 1
    assert first_breach(["B-x", "I-x"], "iobes") == 2, "the end of the sentence"
    assert first_breach(["S-x"], "iob2") == 0
    assert first_breach(["I-x", "B-x"], "iob1") is None


def test_schemes_are_told_apart() -> None:
    assert detect([tags.split() for tags in ("O O", "O B-x I-x")]) == "iob2"
    assert detect([tags.split() for tags in ("O I-x B-x", "I-y")]) == "iob1"
    assert detect([tags.split() for tags in ("B-x I-x", "O I-x")]) == "iob2", "one slip does not change the scheme"
    assert detect([tags.split() for tags in ("B-x I-x", "S-x")]) == "iobes"
    assert detect([["NOUN", "VERB"]]) is None and detect([["O", "O"]]) is None and detect([]) is None
    assert detect([["B-x", "-LRB-"]]) is None


def test_shapes_of_tags() -> None:
    assert parse_tag("B-a-b") == ("B", "a-b") and parse_tag("O") == ("O", "") and parse_tag("I") == ("I", "_")
    for wrong in ("", "X", "b-x", "B-", "B_x", "O-x", "-B"):
        with pytest.raises(ValueError, match="no tag of a chunk"):
            parse_tag(wrong)
    with pytest.raises(ValueError, match="no place in iob2"):
        spans(["E-x"], strict="iob2")
    with pytest.raises(ValueError, match="out of order"):
        encode([Span("x", 2, 3), Span("x", 1, 2)], 4, "iob2")


def test_all_tags_of_types() -> None:
    assert all_tags(["y", "x", "y"], "iob2") == ["O", "B-x", "I-x", "B-y", "I-y"]
    assert all_tags(["x"], "iobes") == ["O", "B-x", "E-x", "I-x", "S-x"]
    assert all_tags(["_"], "iob1") == ["O", "B", "I"]
    for scheme in SCHEMES:
        rules = allowed(all_tags(["x"], scheme), scheme)
        assert rules.transitions.shape == (len(PREFIXES[scheme]),) * 2 and rules.transitions.dtype == np.bool_
