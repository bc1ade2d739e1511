"""Filters of records by their fields, in a small language: `score>=3 and (lang==ko or not draft)`.

    or         = and ("or" and)*
    and        = condition ("and" condition)*
    condition  = "not" condition | "(" or ")" | field | field operator value
    operator   = == != < <= > >= contains
    value      = number | "text" | 'text' | true | false | null | a bare word

A field may be reached through objects (`meta.lang`). A field that a record lacks is null, and null compares as false
with everything but null. CSV has nothing but text: so text is compared with a number as a number, and a field alone is
false where its text is empty, false, no or 0. `contains` looks for the value as it is written. Parsed, not evaluated:
no Python code in it is ever run.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from etude.errors import UserError
from etude.text.tokenizer.normalization import normalize_nfc

Record = Mapping[str, object]
Literal = str | float | bool | None
Predicate = Callable[[Record], bool]
Comparison = Callable[[Any, Any], bool]  # of numbers, or of texts

TOKEN = re.compile(
    r"\s*(?:(?P<symbol>==|!=|<=|>=|<|>|=|\(|\))"
    r"|(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w.]))"
    r"""|(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
    r"|(?P<word>[\w.\-/]+))"
)
COMPARISONS: dict[str, Comparison] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
CONSTANTS = {"true": True, "false": False, "null": None}
FALSE_WORDS = ("", "false", "0", "no")


@dataclass(frozen=True)
class RecordFilter:
    """A parsed filter."""

    text: str
    test: Predicate  # whether a record is used
    fields: tuple[str, ...]  # in the order they are named


def parse_filter(text: str) -> RecordFilter:
    """Parse a filter; raises UserError where it cannot be read."""
    parser = _Parser(text)
    try:
        test = parser.parse_or()
    except RecursionError:
        parser.fail("its conditions lie too deep in each other")
    if parser.kind:
        parser.fail(f"'{parser.value}' is unexpected")
    return RecordFilter(text, test, tuple(dict.fromkeys(parser.fields)))


def find_name(name: str, names: Collection[str]) -> str | None:
    """Return the one of `names` that is `name`, however its letters are composed; None where there is none."""
    if name in names:
        return name
    if name.isascii():
        return None
    composed = normalize_nfc(name)
    return next((each for each in names if normalize_nfc(each) == composed), None)


def get_field(record: Record, field: str) -> object:
    """Return the value of a field; dots reach into objects unless the record has the dotted name itself."""
    whole = find_name(field, record)
    if whole is not None:
        return record[whole]
    value: object = record
    for part in field.split("."):
        name = find_name(part, value) if isinstance(value, dict) else None
        if name is None:
            return None
        value = value[name]  # type: ignore[index]
    return value


class _Parser:
    """A recursive-descent parser over the tokens of the text."""

    def __init__(self, text: str) -> None:
        self.text, self.place = text, 0
        self.fields: list[str] = []
        self.advance()

    def advance(self) -> None:
        match = TOKEN.match(self.text, self.place)
        if match is None:
            if self.text[self.place :].strip():
                self.fail(f"'{self.text[self.place :].strip()[0]}' is unexpected")
            self.kind, self.value = "", ""
            return
        self.place = match.end()
        self.kind = match.lastgroup or ""
        self.value = match[self.kind]

    def fail(self, what: str) -> NoReturn:
        example = 'Write for example "score>=3" or "lang==ko and not draft".'
        raise UserError(f"The filter '{self.text[:200]}' cannot be read: {what}. {example}")

    def parse_or(self) -> Predicate:
        tests = [self.parse_and()]
        while (self.kind, self.value) == ("word", "or"):
            self.advance()
            tests.append(self.parse_and())
        return tests[0] if len(tests) == 1 else lambda record: any(test(record) for test in tests)

    def parse_and(self) -> Predicate:
        tests = [self.parse_condition()]
        while (self.kind, self.value) == ("word", "and"):
            self.advance()
            tests.append(self.parse_condition())
        return tests[0] if len(tests) == 1 else lambda record: all(test(record) for test in tests)

    def parse_condition(self) -> Predicate:
        if (self.kind, self.value) == ("word", "not"):
            self.advance()
            inner = self.parse_condition()
            return lambda record: not inner(record)
        if (self.kind, self.value) == ("symbol", "("):
            self.advance()
            test = self.parse_or()
            if (self.kind, self.value) != ("symbol", ")"):
                self.fail("a bracket is not closed")
            self.advance()
            return test
        if self.kind not in ("word", "text") or (self.kind == "word" and self.value in ("and", "or", "contains")):
            self.fail(f"a field's name is missing{f' before {self.value!r}' if self.value else ' at the end'}")
        field = _unquote(self.value) if self.kind == "text" else self.value
        self.fields.append(field)
        self.advance()
        if self.kind == "symbol" and self.value in (*COMPARISONS, "="):
            name = "==" if self.value == "=" else self.value
            self.advance()
            return _build_comparison(field, COMPARISONS[name], name, self.parse_literal())
        if (self.kind, self.value) == ("word", "contains"):
            self.advance()
            part = self.parse_part()
            return lambda record: part in _as_text(get_field(record, field) or "")
        return lambda record: _is_true(get_field(record, field))

    def parse_literal(self) -> Literal:
        kind, value = self.kind, self.value
        if kind not in ("number", "text", "word"):
            self.fail("a value is missing after the operator")
        self.advance()
        if kind == "number":
            return float(value)
        return normalize_nfc(_unquote(value)) if kind == "text" else CONSTANTS.get(value, normalize_nfc(value))

    def parse_part(self) -> str:
        """Return a value as it is written: 2020 is looked for in a text as these four letters, not as a number."""
        kind, value = self.kind, self.value
        self.parse_literal()
        return normalize_nfc(_unquote(value) if kind == "text" else value)


def _unquote(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1])


def _build_comparison(field: str, compare: Comparison, name: str, literal: Literal) -> Predicate:
    equality = name in ("==", "!=")

    def test(record: Record) -> bool:
        value = get_field(record, field)
        if literal is None or value is None:
            return equality and compare(value, literal) if literal is None or name == "!=" else False
        if isinstance(literal, bool):
            return equality and compare(_as_bool(value), literal)
        if isinstance(literal, float):
            number = _as_number(value)
            return name == "!=" if number is None else compare(number, literal)
        return compare(_as_text(value), literal)

    return test


def _as_text(value: object) -> str:
    """Return a value as text in NFC, so that Hangul typed as jamo and as syllables is the same word."""
    return normalize_nfc(str(value))


def _as_number(value: object) -> float | None:
    try:
        return float(value) if isinstance(value, (int, float, str)) else None
    except ValueError:
        return None
    except OverflowError:  # of an integer that no float reaches
        return float(str(value))


def _is_true(value: object) -> bool:
    """Whether a field alone selects a record; a text does unless it is empty or says no, as the `false` of a CSV."""
    return value.strip().lower() not in FALSE_WORDS if isinstance(value, str) else bool(value)


def _as_bool(value: object) -> bool:
    return value.strip().lower() in ("true", "1", "yes") if isinstance(value, str) else bool(value)
