"""A small language to choose records by their fields: `score>=3 and (lang==ko or not draft)`.

    choice     = both ("or" both)*
    both       = one ("and" one)*
    one        = "not" one | "(" choice ")" | field | field operator value
    operator   = == != < <= > >= contains
    value      = number | "text" | 'text' | true | false | null | a bare word

A field may be reached through objects (`meta.lang`). A field that a record lacks is null, and null compares as false
with everything but null. Text is compared with a number as a number (CSV has nothing but text). Parsed, not
evaluated: no Python code in it is ever run.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from etude.errors import UserError

Test = Callable[[dict[str, Any]], bool]

TOKEN = re.compile(
    r"\s*(?:(?P<symbol>==|!=|<=|>=|<|>|=|\(|\))"
    r"|(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w.]))"
    r"""|(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
    r"|(?P<word>[\w.\-/]+))"
)
COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
WORDS = {"true": True, "false": False, "null": None}


@dataclass(frozen=True)
class Where:
    text: str
    test: Test
    fields: tuple[str, ...]  # in the order they are named


def parse(text: str) -> Where:
    reader = _Reader(text)
    test = reader.choice()
    if reader.kind:
        reader.fail(f"'{reader.value}' is unexpected")
    return Where(text, test, tuple(dict.fromkeys(reader.fields)))


def look_up(record: dict[str, Any], field: str) -> Any:
    """The value of a field; dots reach into objects unless the record has the dotted name itself."""
    if field in record:
        return record[field]
    value: Any = record
    for name in field.split("."):
        if not isinstance(value, dict) or name not in value:
            return None
        value = value[name]
    return value


class _Reader:
    """Recursive descent over the tokens of the text."""

    def __init__(self, text: str) -> None:
        self.text, self.place = text, 0
        self.fields: list[str] = []
        self.step()

    def step(self) -> None:
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
        raise UserError(f"The filter '{self.text}' cannot be read: {what}. {example}")

    def choice(self) -> Test:
        tests = [self.both()]
        while (self.kind, self.value) == ("word", "or"):
            self.step()
            tests.append(self.both())
        return tests[0] if len(tests) == 1 else lambda record: any(test(record) for test in tests)

    def both(self) -> Test:
        tests = [self.one()]
        while (self.kind, self.value) == ("word", "and"):
            self.step()
            tests.append(self.one())
        return tests[0] if len(tests) == 1 else lambda record: all(test(record) for test in tests)

    def one(self) -> Test:
        if (self.kind, self.value) == ("word", "not"):
            self.step()
            inner = self.one()
            return lambda record: not inner(record)
        if (self.kind, self.value) == ("symbol", "("):
            self.step()
            test = self.choice()
            if (self.kind, self.value) != ("symbol", ")"):
                self.fail("a bracket is not closed")
            self.step()
            return test
        if self.kind not in ("word", "text") or (self.kind == "word" and self.value in ("and", "or", "contains")):
            self.fail(f"a field's name is missing{f' before {self.value!r}' if self.value else ' at the end'}")
        field = _unquote(self.value) if self.kind == "text" else self.value
        self.fields.append(field)
        self.step()
        if self.kind == "symbol" and self.value in (*COMPARE, "="):
            name = "==" if self.value == "=" else self.value
            self.step()
            return _comparison(field, COMPARE[name], name, self.literal())
        if (self.kind, self.value) == ("word", "contains"):
            self.step()
            part = str(self.literal())
            return lambda record: part in str(look_up(record, field) or "")
        return lambda record: bool(look_up(record, field))

    def literal(self) -> Any:
        kind, value = self.kind, self.value
        if kind not in ("number", "text", "word"):
            self.fail("a value is missing after the operator")
        self.step()
        if kind == "number":
            return float(value)
        return _unquote(value) if kind == "text" else WORDS.get(value, value)


def _unquote(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1])


def _comparison(field: str, compare: Callable[[Any, Any], bool], name: str, literal: Any) -> Test:
    equality = name in ("==", "!=")

    def test(record: dict[str, Any]) -> bool:
        value = look_up(record, field)
        if literal is None or value is None:
            return equality and compare(value, literal) if literal is None or name == "!=" else False
        if isinstance(literal, bool):
            return equality and compare(_as_bool(value), literal)
        if isinstance(literal, float):
            number = _as_number(value)
            return name == "!=" if number is None else compare(number, literal)
        return compare(str(value), literal)

    return test


def _as_number(value: Any) -> float | None:
    if isinstance(value, (int, float)):
        return float(value)
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _as_bool(value: Any) -> bool:
    return value.strip().lower() in ("true", "1", "yes") if isinstance(value, str) else bool(value)
