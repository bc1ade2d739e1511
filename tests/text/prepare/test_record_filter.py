"""The filter language: what it selects, what it refuses, and that it never runs anything."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.errors import UserError
from etude.text.prepare.record_filter import parse_filter

RECORD: dict[str, Any] = {
    "score": 3, "ratio": 0.5, "lang": "ko", "draft": False, "title": "The 'x' y", "none": None, "number_text": "12.5",
    "meta": {"kind": "news", "deep": {"n": 4}}, "a.b": "dotted", "yes": "true",
    "name": unicodedata.normalize("NFD", "서울"), "huge": 10**400, "tiny": -(10**400),
    "law": "Act 7 of 2020, version 1.10, a true copy", "draft_text": "False", "empty": " ",
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "selected"),
    [
        ("score>=3", True), ("score > 3", False), ("score=3", True), ("score==3.0", True), ("score!=3", False),
        ("lang==ko", True), ('lang == "ko"', True), ("lang!='ko'", False), ("lang==en or score<5", True),
        ("lang==en and score<5", False), ("not draft", True), ("draft", False), ("not (lang==ko and score==3)", False),
        ("number_text>12", True), ("number_text<=12", False), ("missing==1", False), ("missing!=1", True),
        ("missing==null", True), ("none==null", True), ("score!=null", True), ("score==null", False),
        ("meta.kind==news", True), ("meta.deep.n>3", True), ("a.b==dotted", True), ("title contains y", True),
        (r'title == "The \'x\' y"', True), ("title contains z", False), ("draft==false", True), ("yes==true", True),
        ("lang>=ka and lang<kz", True), ("lang>3", False), ("score>-1e3", True), ("not not draft", False),
        ("law contains 2020", True), ("law contains 2021", False), ("not law contains 2020", False),
        ("law contains 1.10", True), ("law contains 1.1.0", False), ("law contains true", True),
        ("draft_text", False), ("not draft_text", True), ("empty", False), ("yes", True), ("title", True),
        ("law contains null", False), ('law contains "7 of"', True),
        ("name==서울", True), (unicodedata.normalize("NFD", "name contains '서'"), True), ("name contains 부", False),
        (unicodedata.normalize("NFD", "name!=서울"), False), ("huge>3", True), ("huge<1e300", False), ("tiny<3", True),
        ("score==3 or lang==en and draft", True), ("(score==3 or lang==en) and draft", False),
    ],
)  # fmt: skip
def test_selection(text: str, selected: bool) -> None:
    assert parse_filter(text).test(RECORD) is selected


def test_fields_are_known() -> None:
    assert parse_filter("score>=3 and (meta.kind==x or not score)").fields == ("score", "meta.kind")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "score>=",
        ">=3",
        "(score>3",
        "score>3)",
        "score 3",
        "and",
        "score>3 and",
        "score>>3",
        "__import__('os')",
        "f(x)",
        "a;b",
        "not",
        "(" * 5000 + "x" + ")" * 5000,
        "not " * 5000 + "x",
    ],
)
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="filter"):
        parse_filter(text)


@given(st.text(max_size=30))
@settings(max_examples=200, deadline=None)
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        where = parse_filter(text)
    except UserError:
        return
    assert where.test(RECORD) in (True, False)
    assert where.test({}) in (True, False)


values = st.one_of(st.integers(-5, 5), st.sampled_from(["ko", "en", "3", None, True, False, 1.5]))


@given(
    st.fixed_dictionaries({}, optional={"x": values, "y": values}), st.integers(-5, 5), st.sampled_from(["ko", "en"])
)
@settings(max_examples=200, deadline=None)
def test_logic_agrees_with_python(record: dict[str, Any], number: int, word: str) -> None:
    first, second = parse_filter(f"x>={number}").test(record), parse_filter(f"y=={word}").test(record)
    assert parse_filter(f"x>={number} and y=={word}").test(record) == (first and second)
    assert parse_filter(f"x>={number} or y=={word}").test(record) == (first or second)
    assert parse_filter(f"not x>={number}").test(record) == (not first)
    x = record.get("x")
    if isinstance(x, int):
        assert first == (x >= number)
