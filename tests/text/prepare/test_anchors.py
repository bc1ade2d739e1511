"""Anchors keep their places when markup is removed, texts are normalized, and documents are cut."""

from __future__ import annotations

import time
import unicodedata
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.errors import UserError
from etude.text.prepare.anchors import Anchor, AnchoredText, read_entities, read_ernie_record, remove_wiki_links


def spans(anchored: AnchoredText) -> list[tuple[str, str | int]]:
    return [(anchored.text[start:end], name) for start, end, name in anchored.anchors]


@pytest.mark.parametrize(
    ("markup", "text", "anchors"),
    [
        ("in [[Paris]].", "in Paris.", [("Paris", "Paris")]),
        ("[[Paris|the capital]] of", "the capital of", [("the capital", "Paris")]),
        ("two [[bus]]es and [[Bus|bus]]s", "two buses and buss", [("buses", "bus"), ("buss", "Bus")]),
        ("[[서울]]에서", "서울에서", [("서울", "서울")]),  # a particle is no trail
        ("[[Paris#History|its past]] [[#Top]]", "its past #Top", [("its past", "Paris")]),
        ("a [[File:x.jpg|thumb|the [[Seine]]]] b[[Category:Cities]]", "a  b", []),
        ("[[파일:x.jpg]]가[[분류:도시]]", "가", []),
        ("[[:Category:Cities]]", "Category:Cities", [("Category:Cities", "Category:Cities")]),
        ("[[a]][[b]]", "ab", [("a", "a"), ("b", "b")]),
        ("open [[Paris and [[Rome]]", "open [[Paris and Rome", [("Rome", "Rome")]),
        ("closed]] x[1]", "closed]] x[1]", []),
        ("[[ Paris | the city ]]", "the city", [("the city", "Paris")]),
        ("[[Paris (mythology)|]]", "Paris (mythology)", [("Paris (mythology)", "Paris (mythology)")]),
        ("[[]] [[|]] none", "  none", []),
        ("plain", "plain", []),
    ],
)
def test_wiki_links(markup: str, text: str, anchors: list[tuple[str, str]]) -> None:
    anchored = remove_wiki_links(markup)
    assert anchored.text == text
    assert spans(anchored) == anchors


@given(st.text(alphabet="[]|ab :#\u0301가", max_size=30))
@settings(max_examples=200, deadline=None)
def test_any_markup_gives_anchors_in_order(markup: str) -> None:
    anchored = remove_wiki_links(markup).normalise().strip()
    assert unicodedata.is_normalized("NFC", anchored.text)
    assert anchored.text == anchored.text.strip()
    end = 0
    for anchor in anchored.anchors:
        assert end <= anchor.start <= anchor.end <= len(anchored.text)
        end = anchor.end


def test_anchors_move_with_normalization() -> None:
    text = unicodedata.normalize("NFD", "그는 서울 café")
    start = text.index(unicodedata.normalize("NFD", "서울"))
    length = len(unicodedata.normalize("NFD", "서울"))
    anchored = AnchoredText(text, [Anchor(start, start + length, "Q1"), Anchor(len(text) - 5, len(text), "Q2")])
    assert spans(anchored.normalise()) == [("서울", "Q1"), ("café", "Q2")]
    late = remove_wiki_links("x [[cafe]]\u0301s [[b]]").normalise()  # the accent of the letter before the bracket
    assert late.text == "x cafés b"
    assert spans(late) == [("café", "cafe"), ("b", "b")]


@given(st.text(alphabet="ab \n\u0301\u1100\u1161\u11a8가각", max_size=30), st.lists(st.integers(0, 30), max_size=6))
@settings(max_examples=200, deadline=None)
def test_anchors_move_as_the_text_before_them_does(text: str, places: list[int]) -> None:
    places = sorted({min(place, len(text)) for place in places})
    anchored = AnchoredText(text, [Anchor(start, end, "x") for start, end in pairwise(places)]).normalise()
    expected = [len(unicodedata.normalize("NFC", text[:place])) for place in places]
    assert anchored.anchors == [Anchor(start, end, "x") for start, end in pairwise(expected)]


def test_many_links_are_removed_in_time() -> None:
    start = time.process_time()
    anchored = remove_wiki_links("[[서울]] " * 150_000 + "[[" * 150_000)
    assert time.process_time() - start < 8  # two seconds; it took 12, and four times as many links minutes
    assert anchored.text == "서울 " * 150_000 + "[[" * 150_000
    assert len(anchored.anchors) == 150_000 and spans(anchored)[-1] == ("서울", "서울")


def test_many_anchors_of_decomposed_korean_move_in_time() -> None:
    text = unicodedata.normalize("NFD", "서울 " * 40_000)
    start = time.process_time()
    anchored = AnchoredText(text, [Anchor(6 * n, 6 * n + 5, n) for n in range(40_000)]).normalise()
    assert time.process_time() - start < 20  # half a second; it took two minutes
    assert {anchored.text[start:end] for start, end, _ in anchored.anchors} == {"서울"}


def test_parts_keep_the_anchors_inside() -> None:
    anchored = AnchoredText("  ab cd ef ", [Anchor(2, 4, 1), Anchor(5, 7, 2), Anchor(8, 10, 3)])
    assert spans(anchored.strip()) == [("ab", 1), ("cd", 2), ("ef", 3)]
    assert spans(anchored.slice(3, 8)) == [("cd", 2)]


def test_ernie_records() -> None:
    record = {
        "sentences": [
            {"wordpieces": ["state", "##less", "societies", "in", "new", "york"],
             "qid": ["Q1", None, "Q1", None, "Q60", "Q60"]},
            {"wordpieces": [], "qid": []},
            {"wordpieces": ["york", ",", "uk"], "qid": ["Q42462", None, "Q145"]},
        ]
    }  # fmt: skip
    anchored = read_ernie_record(record, "x.jsonl, line 1")
    assert anchored.text == "stateless societies in new york\nyork , uk"
    assert spans(anchored) == [
        ("stateless societies", "Q1"), ("new york", "Q60"), ("york", "Q42462"), ("uk", "Q145"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"sentences": "x"},
        {"sentences": [{"wordpieces": ["a"], "qid": []}]},
        {"sentences": [{"wordpieces": [1], "qid": [None]}]},
    ],
)
def test_broken_ernie_records_are_one_message(record: dict[str, object]) -> None:
    with pytest.raises(UserError, match="line 3"):
        read_ernie_record(record, "x.jsonl, line 3")


def test_a_column_of_entities() -> None:
    text = unicodedata.normalize("NFD", "é Paris, Rome")
    record = {"entities": [[9, 13, 7], [3, 8, "Q90"]]}
    record["entities"] = [[text.index("Rome"), len(text), 7], [text.index("Paris"), text.index("Paris") + 5, "Q90"]]
    assert spans(read_entities(record, text, "here").normalise()) == [("Paris", "Q90"), ("Rome", 7)]


@pytest.mark.parametrize(
    ("entities", "message"),
    [
        (None, "not a list"), ("x", "not a list"), ([[0, 1]], "not .start, end, entity"),
        ([[0, "1", "Q"]], "not .start"), ([[0, 1, None]], "not .start"), ([[0, True, "Q"]], "not .start"),
        ([[0, 99, "Q"]], "outside of a text"), ([[2, 2, "Q"]], "outside of a text"),
        ([[0, 3, "Q"], [2, 4, "R"]], "overlap"),
    ],
)  # fmt: skip
def test_broken_columns_are_one_message(entities: object, message: str) -> None:
    with pytest.raises(UserError, match=f"file, line 2: .*{message}"):
        read_entities({"entities": entities}, "Paris is", "file, line 2")
