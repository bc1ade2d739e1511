"""Labelled examples in memory, and the fields they are parsed from; errors name the place.

Columns have roles. Published files name them differently (`sentence` in SST-2, `document` in NSMC, `title` in
KLUE's topics), so a role has several usual names; a name that a person gives counts before them.
"""

from __future__ import annotations

import difflib
import json
import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from etude.errors import UserError, suggest_name
from etude.text.tokenizer.normalization import normalize_nfc

E = TypeVar("E")
Record = dict[str, Any]


@dataclass
class Examples(Generic[E]):
    items: list[E]
    source: str  # the file, for messages
    places: list[str]  # "file:line" of each example
    bad: list[str] = field(default_factory=list)  # messages about examples left out

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[E]:
        return iter(self.items)

    def __getitem__(self, number: int) -> E:
        return self.items[number]

    def part(self, numbers: Iterable[int]) -> Examples[E]:
        """Some of them, in the order given."""
        chosen = list(numbers)
        return Examples([self.items[n] for n in chosen], self.source, [self.places[n] for n in chosen])


def gather(
    records: Iterable[tuple[str, Record | UserError]],
    parse: Callable[[Record, str], E],
    source: str | Path,
    skip_bad: bool = False,
) -> Examples[E]:
    """All examples of some records; `skip_bad` leaves bad ones out and keeps what was wrong with them in `bad`."""
    examples: Examples[E] = Examples([], str(source), [])
    for where, record in records:
        try:
            if isinstance(record, UserError):
                raise record
            examples.items.append(parse(record, where))
            examples.places.append(where)
        except UserError as problem:
            if not skip_bad:
                raise
            examples.bad.append(str(problem))
    if not examples.items:
        left_out = (
            f" ({len(examples.bad)} bad ones were left out; the first: {examples.bad[0]})" if examples.bad else ""
        )
        raise UserError(f"{source} holds no examples{left_out}. Give a file with at least one.")
    return examples


MOST_DIGITS = 18  # of a number of 64 bits; Python refuses to convert some thousands
REMEDY = "Fill it, or leave such lines out with --skip-bad."


# --- fields -----------------------------------------------------------------------------------------


class MissingColumnError(UserError):
    """There is no column for a role. `example` is a column of the record that may be meant.

    The advice is that of verbs with the option -c; what names columns elsewhere (a prompt file) gives its own.
    """

    def __init__(self, message: str, role: str, example: str) -> None:
        option = "-c " + shlex.quote(f"{role}={example}")
        super().__init__(message, f"Name yours by its role, as in {option}; 'etude tasks TASK' lists the roles.")
        self.role, self.example = role, example


class ColumnName(str):
    """The name of a column, and its role: a message about it names the option that gives another."""

    role: str

    def __new__(cls, name: str, role: str) -> ColumnName:
        column = super().__new__(cls, name)
        column.role = role
        return column


def column_of(record: Mapping[str, Any], role: str, columns: Mapping[str, str], usual: Sequence[str]) -> ColumnName:
    """The column of a role: the one named by `columns`, else the first usual name that the record has, in any case."""
    return ColumnName(_find_column(record, role, columns, usual), role)


def _find_column(record: Mapping[str, Any], role: str, columns: Mapping[str, str], usual: Sequence[str]) -> str:
    if role in columns:
        name = columns[role]
        if name in record or name.isascii():
            return name
        composed = normalize_nfc(name)  # the same letters, however a header has composed them
        return next((each for each in record if normalize_nfc(str(each)) == composed), name)
    exact = next((name for name in usual if name in record), None)
    if exact is not None:
        return exact
    folded = {str(name).casefold(): name for name in reversed(list(record))}
    return next((folded[name.casefold()] for name in usual if name.casefold() in folded), usual[0])


def value_of(record: Mapping[str, Any], column: str, where: str) -> Any:
    if column not in record:
        only = str(next(iter(record))) if len(record) == 1 else ""
        for mark, name, remedy in ((";", "semicolons", "commas between them"), ("\t", "tabs", "the ending .tsv")):
            if mark in only and column in only.split(mark):
                raise UserError(f"{where}: its columns are divided by {name} ({only!r}). Save it with {remedy}.")
        role = column.role if isinstance(column, ColumnName) else "text"
        message = f"{where}: there is no column '{column}'.{suggest_name(column, map(str, record))}"
        raise MissingColumnError(message, role, _find_example(record, column, role))
    return record[column]


TEXT_ROLES = ("text", "first", "second", "question", "context", "query", "candidate", "source", "target", "tokens")
LABEL_ROLES = ("label", "labels", "tags", "value", "answer", "answers", "choices", "candidates", "entities")
NUMBERING = ("id", "idx", "guid", "index", "number", "")  # columns that say nothing of a record


def _find_example(record: Mapping[str, Any], column: str, role: str) -> str:
    """Return a column that may be meant: the nearest by name, else the longest text or shortest label; else "COLUMN".

    A column that has the name of a role has that role: a text is not proposed as the label that is missing.
    """
    values = {str(name): "" if value is None else str(value) for name, value in record.items()}
    near = difflib.get_close_matches(column, values, n=1, cutoff=0.5)
    if near:
        return near[0]
    lengths = {
        name: len(value)
        for name, value in values.items()
        if name.casefold() not in (*TEXT_ROLES, *LABEL_ROLES, *NUMBERING)
    }
    if not lengths:
        return "COLUMN"
    return (
        max(lengths, key=lengths.__getitem__) if role in TEXT_ROLES else min(reversed(lengths), key=lengths.__getitem__)
    )


def text_of(record: Mapping[str, Any], column: str, where: str) -> str:
    """A text that has something in it."""
    return checked_text(value_of(record, column, where), column, where)


def checked_text(value: Any, column: str, where: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"{where}: the column '{column}' holds {short(value)}, not a text.")
    if not value.strip():
        raise UserError(f"{where}: the text in the column '{column}' is empty.", REMEDY)
    return whole_text(value, column, where)


def whole_text(value: str, column: str, where: str) -> str:
    """A text that can be written as UTF-8."""
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            message = f"{where}: the text in '{column}' holds half a surrogate pair, which is no character. "
            raise UserError(message + "Write it out whole, or remove the line.") from None
    return value


def label_of(record: Mapping[str, Any], column: str, where: str) -> str:
    """A label as a word; 1, true and "1" of a JSON file are labels too, and NaN is one that is missing."""
    value = value_of(record, column, where)
    if isinstance(value, bool):
        value = json.dumps(value)
    if isinstance(value, float) and math.isnan(value):  # as data frames write it
        raise UserError(f"{where}: the column '{column}' holds NaN, so there is no label.", REMEDY)
    if not isinstance(value, (str, int, float)) or (isinstance(value, float) and math.isinf(value)):
        raise UserError(f"{where}: the column '{column}' holds {short(value)}, which is no label.")
    name = normalize_nfc(str(value)).strip()  # one label, however its letters are composed
    if not name:
        raise UserError(f"{where}: the label in the column '{column}' is empty.", REMEDY)
    return checked_text(name, column, where)


def number_of(record: Mapping[str, Any], column: str, where: str) -> float:
    value = value_of(record, column, where)
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):  # the last: a whole number beyond all floats
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"{where}: the column '{column}' holds {short(value)}, which is no number.")
    return number


def parse_whole(word: str) -> int | None:
    """A word of digits as a number; None where it is another word, or has more digits than any number of a record."""
    return int(word) if len(word) <= MOST_DIGITS and word.isdecimal() else None


def short(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)[:40]  # dates inside a list of a Parquet file


# --- labels -----------------------------------------------------------------------------------------


def label_names(labels: Iterable[str]) -> list[str]:
    """Distinct labels, in the order of numbers where all are whole numbers, else of letters."""
    distinct = set(labels)
    try:
        return sorted(distinct, key=lambda name: (int(name), name))
    except ValueError:
        return sorted(distinct)


def label_numbers(labels: Iterable[str | None], names: Sequence[str], places: Sequence[str]) -> np.ndarray:
    """(examples,) int64: the place of each label in `names`."""
    known = {name: number for number, name in enumerate(names)}
    numbers = np.empty(len(places), dtype=np.int64)
    for number, (label, where) in enumerate(zip(labels, places, strict=True)):
        if label is None:
            raise UserError(f"{where}: this example has no label. Name the column that holds them.")
        if label not in known:
            raise UserError(
                f"{where}: the label '{label}' is not one the model knows.{suggest_name(label, names)} "
                "Correct it, or leave the example out."
            )
        numbers[number] = known[label]
    return numbers
