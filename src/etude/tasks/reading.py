"""Labelled examples from files with named columns: .jsonl, .csv, .tsv, each also .gz, .xz or .zst.

    .jsonl   one object a line; a line ends at \\n only, as texts may hold U+2028 or U+0085
    .csv     a header line; quoted as RFC 4180 has it, so a field may hold line ends
    .tsv     a header line; no quoting at all: a quotation mark is a letter, as in the files of GLUE and NSMC

Whatever is wrong with a file is told with its line, and what to do. `records` gives the fields of each record
to any reader; `read` takes a text and a label from them.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import zstandard

from etude.errors import UserError, nearest

KINDS = (".jsonl", ".csv", ".tsv")
SQUEEZED = (".gz", ".xz", ".zst")
BROKEN = (OSError, EOFError, lzma.LZMAError, zlib.error, zstandard.ZstdError)  # what damaged files raise


@dataclass
class Examples:
    """Texts, their labels, and where each was found."""

    texts: list[str]
    labels: list[str] | None  # None: read without labels
    source: str  # the file, for messages
    lines: list[int]  # where each example starts
    bad: list[str] = field(default_factory=list)  # messages about examples left out

    def __len__(self) -> int:
        return len(self.texts)

    def place(self, number: int) -> str:
        return f"{self.source}:{self.lines[number]}"

    @property
    def names(self) -> list[str]:
        """The distinct labels, as numbers if all are, else as words: the same whatever the order of the file."""
        return label_names(self._labels())

    def numbers(self, names: Sequence[str]) -> np.ndarray:
        """(examples,) int64: the place of each label in `names`."""
        known = {name: number for number, name in enumerate(names)}
        found = np.empty(len(self), dtype=np.int64)
        for number, label in enumerate(self._labels()):
            if label not in known:
                raise UserError(
                    f"{self.place(number)}: the label '{label}' is not one the model knows.{nearest(label, names)} "
                    "Correct it, or leave the example out."
                )
            found[number] = known[label]
        return found

    def _labels(self) -> list[str]:
        if self.labels is None:
            raise UserError(f"{self.source} was read without labels. Name the column that holds them.")
        return self.labels


def read(
    path: str | Path,
    *,
    text: str = "text",
    label: str | None = "label",
    labels: Sequence[str] | None = None,
    skip_bad: bool = False,
) -> Examples:
    """All examples of a file; `text` and `label` name columns, `label` None reads texts alone.

    With `labels` any other label is an error. `skip_bad` leaves bad examples out and counts them in `bad`.
    """
    path = Path(path)
    found = Examples([], None if label is None else [], str(path), [])
    for line, record in records(path):
        try:
            if isinstance(record, UserError):
                raise record
            where = f"{path}:{line}"
            words = text_of(record, text, where)
            name = None if label is None else label_of(record, label, where, labels)
        except UserError as problem:
            if not skip_bad:
                raise
            found.bad.append(str(problem))
            continue
        found.texts.append(words)
        found.lines.append(line)
        if found.labels is not None and name is not None:
            found.labels.append(name)
    if not found.texts:
        left_out = f" ({len(found.bad)} bad ones were left out; the first: {found.bad[0]})" if found.bad else ""
        raise UserError(f"{path} holds no examples{left_out}. Give a file with at least one.")
    return found


def label_names(labels: Sequence[str]) -> list[str]:
    """Distinct labels, in the order of numbers where all are whole numbers, else of letters."""
    distinct = set(labels)
    try:
        return sorted(distinct, key=lambda name: (int(name), name))
    except ValueError:
        return sorted(distinct)


# --- fields -----------------------------------------------------------------------------------------


def text_of(record: dict[str, Any], column: str, where: str) -> str:
    """A text that has something in it."""
    value = _value(record, column, where)
    if not isinstance(value, str):
        raise UserError(f"{where}: the column '{column}' holds {_short(value)}, not a text.")
    if not value.strip():
        raise UserError(f"{where}: the text in the column '{column}' is empty. Fill it, or remove the line.")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            message = f"{where}: the text in '{column}' holds half a surrogate pair, which is no character. "
            raise UserError(message + "Write it out whole, or remove the line.") from None
    return value


def label_of(record: dict[str, Any], column: str, where: str, known: Sequence[str] | None = None) -> str:
    """A label as a word; 1, true and "1" of a JSON file are labels too."""
    value = _value(record, column, where)
    if isinstance(value, bool):
        value = json.dumps(value)
    if not isinstance(value, (str, int, float)):
        raise UserError(f"{where}: the column '{column}' holds {_short(value)}, which is no label.")
    name = str(value).strip()
    if not name:
        raise UserError(f"{where}: the label in the column '{column}' is empty. Fill it, or remove the line.")
    if known is not None and name not in known:
        raise UserError(f"{where}: the label '{name}' is not one of those known.{nearest(name, known)}")
    return name


def _value(record: dict[str, Any], column: str, where: str) -> Any:
    if column not in record:
        raise UserError(f"{where}: there is no column '{column}'.{nearest(column, map(str, record))}")
    return record[column]


def _short(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)[:40]


# --- records ----------------------------------------------------------------------------------------


def records(path: str | Path) -> Iterator[tuple[int, dict[str, Any] | UserError]]:
    """(line, fields) of every record, in order, one in memory at a time.

    What is wrong with one record comes as a UserError in its place, so that a reader may go on behind it; what
    is wrong with the whole file is raised.
    """
    path = Path(path)
    suffixes = path.suffixes
    kind = suffixes[-2] if suffixes and suffixes[-1] in SQUEEZED and len(suffixes) > 1 else path.suffix
    if kind not in KINDS:
        raise UserError(
            f"{path}: examples are read from {', '.join(KINDS)} (also {', '.join(SQUEEZED)}), not from "
            f"'{kind or path.name}'. Rename or convert the file."
        )
    parse = {".jsonl": _json_lines, ".csv": _comma_separated, ".tsv": _tab_separated}[kind]
    try:
        with _open(path) as file:
            yield from parse(path, file)
    except FileNotFoundError:
        raise UserError(f"There is no file {path}.") from None
    except BROKEN as problem:
        raise UserError(f"{path} cannot be read: {problem}. Is it whole, and is its name right?") from None


def _open(path: Path) -> BinaryIO:
    """The bytes of a file, un-squeezed by its last suffix."""
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(path, "rb"))
    if path.suffix == ".xz":
        return cast(BinaryIO, lzma.open(path, "rb"))
    if path.suffix == ".zst":
        return cast(BinaryIO, io.BufferedReader(zstandard.open(path, "rb")))  # its own reader has no lines
    return open(path, "rb")


def _lines(path: Path, file: BinaryIO) -> Iterator[tuple[int, str | UserError]]:
    """(number, text) of each line, its end included; a line ends at \\n only."""
    for number, line in enumerate(file, 1):
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")  # a byte order mark, as spreadsheets write it
        try:
            yield number, line.decode()
        except UnicodeDecodeError as problem:
            yield (
                number,
                UserError(f"{path}:{number}: not UTF-8 at byte {problem.start} of the line. Convert the file."),
            )


def _json_lines(path: Path, file: BinaryIO) -> Iterator[tuple[int, dict[str, Any] | UserError]]:
    for number, line in _lines(path, file):
        if isinstance(line, UserError):
            yield number, line
        elif line.strip():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as problem:
                yield number, UserError(f"{path}:{number}: not JSON: {problem}. Every line must be one object.")
                continue
            fit = isinstance(record, dict)
            yield (
                number,
                record if fit else UserError(f"{path}:{number}: {_short(record)} is not an object with fields."),
            )


def _tab_separated(path: Path, file: BinaryIO) -> Iterator[tuple[int, dict[str, Any] | UserError]]:
    header: list[str] | None = None
    for number, line in _lines(path, file):
        if isinstance(line, UserError):
            if header is None:
                raise line
            yield number, line
            continue
        line = line.removesuffix("\n").removesuffix("\r")
        if header is None:
            header = _header(line.split("\t"), path)
        elif line:
            yield number, _fields(header, line.split("\t"), f"{path}:{number}")


def _comma_separated(path: Path, file: BinaryIO) -> Iterator[tuple[int, dict[str, Any] | UserError]]:
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # the default refuses texts of more than 128 KB

    def lines() -> Iterator[str]:
        for _, line in _lines(path, file):
            if isinstance(line, UserError):
                raise line  # quotes may span lines: nothing behind it can be trusted
            yield line

    reader = csv.reader(lines(), strict=True)
    header: list[str] | None = None
    while True:
        start = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as problem:
            raise UserError(f"{path}:{start}: not CSV: {problem}. Quote fields that hold commas, quotes or line ends, "
                            "and double the quotes inside.") from None  # fmt: skip
        if header is None:
            header = _header(fields, path)
        elif fields:
            yield start, _fields(header, fields, f"{path}:{start}")


def _header(fields: list[str], path: Path) -> list[str]:
    header = [name.strip() for name in fields]
    twice = {name for name in header if header.count(name) > 1}
    if twice:
        raise UserError(f"{path}:1: the header names '{min(twice)}' twice. Give every column a name of its own.")
    return header


def _fields(header: list[str], fields: list[str], where: str) -> dict[str, Any] | UserError:
    if len(fields) != len(header):
        return UserError(
            f"{where}: {len(fields)} fields, and the header names {len(header)} ({', '.join(header)}). "
            "Is a separator missing, or one too many?"
        )
    return dict(zip(header, fields, strict=True))
