"""Labelled examples in memory, and the fields they are parsed from; errors name the place.

Columns have roles. Published files name them differently (`sentence` in SST-2, `document` in NSMC, `title` in
KLUE's topics), so a role has several usual names; a name that a person gives counts before them.
"""

from __future__ import annotations

import difflib
import json
import math
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
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
    for where, record in records if skip_bad else check_columns(records, parse):
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
    """There is no column for some roles. `examples` has, by role, a column of the records that may be meant.

    The advice is that of verbs with the option -c; what names columns elsewhere (a prompt file) gives its own.
    """

    def __init__(
        self, where: str, missing: Mapping[str, str], examples: Mapping[str, str], names: Iterable[str]
    ) -> None:
        """missing: the name that was looked for, by role; names: of the columns there are."""
        *others, last = missing.values()
        listed = f"are no columns {', '.join(map(repr, others))} and" if others else "is no column"
        message = f"{where}: there {listed} '{last}'.{suggest_name('' if others else last, names)}"
        options = " ".join("-c " + shlex.quote(f"{role}={example}") for role, example in examples.items())
        whose = "their roles" if others else "its role"
        super().__init__(message, f"Name yours by {whose}, as in {options}; 'etude tasks TASK' lists the roles.")
        self.missing, self.examples = missing, examples

    @property
    def setting(self) -> str:
        """The likely columns as the setting of a file."""
        return f"columns: {{{', '.join(f'{role}: {name}' for role, name in self.examples.items())}}}"


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
        example = _find_example([dict(record)], column, role, ())
        raise MissingColumnError(where, {role: str(column)}, {role: example}, map(str, record))
    return record[column]


SAMPLE = 100  # records by which columns are judged


def check_columns(
    records: Iterable[tuple[str, Record | UserError]], parse: Callable[[Record, str], object]
) -> Iterator[tuple[str, Record | UserError]]:
    """Yield the records; where none of the first has a column that `parse` needs, raise one error for all such columns.

    The header is wrong there, and each line would say so. A single record without a column is left to the reader.
    """
    rows = iter(records)
    ahead: list[tuple[str, Record | UserError]] = []
    lacking: list[tuple[str, Record]] = []
    for where, record in rows:
        ahead.append((where, record))
        if not isinstance(record, UserError):
            if not _lacks_column(record, where, parse):
                lacking = []
                break
            lacking.append((where, record))
        if len(ahead) == SAMPLE:
            break
    if lacking:
        raise _name_missing(lacking[0][0], [record for _, record in lacking], parse)
    yield from chain(ahead, rows)


def _lacks_column(record: Record, where: str, parse: Callable[[Record, str], object]) -> bool:
    try:
        parse(record, where)
    except MissingColumnError:
        return True
    except UserError:
        pass
    return False


class _ReadRecord(dict[str, Any]):
    """A record that notes which of its columns were read."""

    def __init__(self, record: Record) -> None:
        super().__init__(record)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)


def _name_missing(where: str, sample: Sequence[Record], parse: Callable[[Record, str], object]) -> MissingColumnError:
    """Find all columns that are missing: parse the first record, with a likely column for each one that was missed."""
    record = _ReadRecord(sample[0])
    missing: dict[str, str] = {}
    examples: dict[str, str] = {}
    while True:
        try:
            parse(record, where)
        except MissingColumnError as error:
            ((role, column),) = error.missing.items()
            if role not in missing:
                missing[role] = column
                examples[role] = _find_example(sample, column, role, {*record.read, *examples.values()})
                record[column] = sample[0].get(examples[role], examples[role])
                continue
        except UserError:  # the likely column does not hold what is needed: what else is missing stays unknown
            pass
        return MissingColumnError(where, missing, examples, map(str, sample[0]))


TEXT_ROLES = ("text", "first", "second", "question", "context", "query", "candidate", "source", "target", "tokens")
LABEL_ROLES = ("label", "labels", "tags", "value", "answer", "answers", "choices", "candidates", "entities")
# columns that number records and say nothing of them
NUMBERING = ("id", "idx", "guid", "index", "number", "no", "num", "row", "unnamed: 0", "", "번호", "순번", "연번")
NUMBERING_ENDS = ("_id", "_no", "_idx", "번호")


def _find_example(sample: Sequence[Record], column: str, role: str, used: Collection[str]) -> str:
    """Return a column that may be meant: the nearest by name, else that of long texts or few labels; else "COLUMN".

    A column that has the name of a role has that role: a text is not proposed as the label that is missing. Nor is one
    that is `used` as another, or that numbers the records.
    """
    values = {
        str(name): ["" if record.get(name) is None else str(record.get(name)) for record in sample]
        for name in sample[0]
        if name not in used
    }
    values = {name: texts for name, texts in values.items() if not _numbers_records(name, texts)}
    near = difflib.get_close_matches(column, values, n=1, cutoff=0.5)
    if near:
        return near[0]
    free = [name for name in values if name.casefold() not in (*TEXT_ROLES, *LABEL_ROLES)]
    lengths = {name: sum(map(len, values[name])) for name in free}
    if role in TEXT_ROLES:
        return max(free, key=lengths.__getitem__, default="COLUMN")
    distinct = {name: len(set(values[name])) for name in free}
    return min(reversed(free), key=lambda name: (distinct[name] == 1, distinct[name], lengths[name]), default="COLUMN")


def _numbers_records(name: str, texts: Sequence[str]) -> bool:
    """Whether a column is an id by its name, or counts up by one."""
    plain = name.casefold().strip(" .#")
    if plain in NUMBERING or plain.endswith(NUMBERING_ENDS):
        return True
    numbers = [parse_whole(text) for text in texts]
    steps = [None if a is None or b is None else b - a for a, b in pairwise(numbers)]
    return len(steps) > 1 and set(steps) == {1}


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
