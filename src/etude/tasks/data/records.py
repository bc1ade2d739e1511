"""Records of labelled files: one set of named fields at a time, with its place (file and line).

    .jsonl   one JSON object a line; a line ends at \\n only, since texts may hold U+2028 and its kind
    .csv     RFC 4180: fields may be quoted and then hold commas, line ends and doubled quotes
    .tsv     one record a line, nothing is quoted: a quotation mark is a letter, as in the files of GLUE and NSMC
    .txt     the same, where the first line has tabs: NSMC (ratings_train.txt) and MRPC are published so
    .json    a list of objects (KLUE), or SQuAD's articles, paragraphs and questions (SQuAD, KorQuAD, KLUE's MRC),
             one record a question: id title context question answers is_impossible
    .parquet one row a record, its place its number from 1 on; needs pyarrow

Each but the last also compressed (.gz, .xz, .zst); endings count in any case (.CSV). An error message names the line of
the file and what to do.
"""

from __future__ import annotations

import base64
import csv
import gzip
import json
import lzma
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from etude.errors import UserError, explain_no_file
from etude.extras import require
from etude.tasks.data.decoding import EncodingError, advise_encoding, recode
from etude.tasks.data.examples import Record, short
from etude.text.line_ends import has_return_ends
from etude.text.prepare.table_rows import strings_as_bytes
from etude.text.prepare.zstd_stream import open_zstd
from etude.text.table_hint import suggest_table

FILES = (".jsonl", ".csv", ".tsv", ".json", ".parquet")
COMPRESSED = (".gz", ".xz", ".zst")
READ_ERRORS = (OSError, EOFError, lzma.LZMAError, zlib.error)  # what damaged files raise
MAX_LINE_BYTES = 1 << 26
COLA = ["source", "label", "star", "text"]  # the columns of CoLA's files, which have no header

Records = Iterator[tuple[str, Record | UserError]]


def records(path: str | Path) -> Records:
    """(place, fields) of every record, in order, one in memory at a time.

    What is wrong with one record comes as a UserError in its place, so that a reader may go on behind it; what
    is wrong with the whole file is raised.
    """
    path = Path(path)
    if path.is_dir():
        raise UserError(explain_no_file(path))
    kind = file_kind(path)
    if kind not in (*FILES, ".txt"):
        raise UserError(
            f"{path}: examples are read from {', '.join(FILES)} (also {', '.join(COMPRESSED)}), not from "
            f"'{kind or path.name}'. Rename or convert the file."
        )
    parse = {
        ".jsonl": _json_lines, ".csv": _comma_separated, ".tsv": _tab_separated, ".json": _json_whole,
        ".parquet": _parquet_rows, ".txt": _tab_separated,
    }[kind]  # fmt: skip
    try:
        if kind == ".txt":
            _require_tabs(path)
        with open_file(path) as file:
            yield from parse(path, file)
    except FileNotFoundError:
        raise UserError(f"There is no file {path}.") from None
    except READ_ERRORS as problem:
        raise UserError(f"{path} cannot be read: {problem}. Is it whole, and is its name right?") from None


def file_kind(path: Path) -> str:
    """Return the ending that says what a file holds, in lower case: ".csv" of reviews.CSV.gz; "" where it has none."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if len(suffixes) > 1 and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def _require_tabs(path: Path) -> None:
    """Refuse a text file that is no table: it has no columns to find labels in."""
    with open_file(path) as file:
        if b"\t" not in file.readline(MAX_LINE_BYTES):
            raise UserError(
                f"{path}: examples are read from {', '.join(FILES)} (also {', '.join(COMPRESSED)}), and from .txt "
                "files whose first line has tabs, a header. Convert the file."
            )


def open_file(path: Path) -> BinaryIO:
    """Open a file for its bytes, decompressed by its last suffix; text of another encoding comes as UTF-8."""
    compression = path.suffix.lower()
    if compression == ".gz":
        return recode(path, cast(BinaryIO, gzip.open(path, "rb")))
    if compression == ".xz":
        return recode(path, cast(BinaryIO, lzma.open(path, "rb")))
    if compression == ".zst":
        return recode(path, open_zstd(open(path, "rb")))
    return open(path, "rb") if compression == ".parquet" else recode(path, open(path, "rb"))


def read_lines(path: Path, file: BinaryIO) -> Iterator[tuple[int, str | UserError]]:
    """(number, text) of each line, its end included; a line ends at \\n, where there is none at \\r."""
    for number, line in enumerate(_cut_lines(file), 1):
        if len(line) > MAX_LINE_BYTES:
            raise UserError(f"{path}:{number}: the line is longer than {MAX_LINE_BYTES >> 20} MB. Is it a record?")
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")  # a byte order mark, as spreadsheets write it
        try:
            yield number, line.decode()
        except UnicodeDecodeError as problem:
            place = f"{path}:{number}: not UTF-8 at byte {problem.start} of the line."
            yield number, EncodingError(place + advise_encoding(path))


def _cut_lines(file: BinaryIO) -> Iterator[bytes]:
    first = file.readline(MAX_LINE_BYTES + 1)
    if has_return_ends(first) and len(first) <= MAX_LINE_BYTES:  # the whole file
        yield from first.splitlines(keepends=True)
    elif first:
        yield first
    yield from iter(lambda: file.readline(MAX_LINE_BYTES + 1), b"")


def _json_lines(path: Path, file: BinaryIO) -> Records:
    for number, line in read_lines(path, file):
        where = f"{path}:{number}"
        if isinstance(line, UserError):
            yield where, line
        elif line.strip():
            yield where, json_record(line, where)


def _parquet_rows(path: Path, file: BinaryIO) -> Records:
    require("pyarrow", f"Reading {path}")
    import pyarrow
    import pyarrow.parquet

    if path.suffix.lower() in COMPRESSED:
        raise UserError(f"{path}: Parquet is compressed inside already, and read from both ends. Unpack it.")
    try:
        number = 0
        for batch in pyarrow.parquet.ParquetFile(file).iter_batches(batch_size=256, use_threads=False):
            for record in strings_as_bytes(batch).to_pylist():
                number += 1
                yield f"{path}:{number}", {name: _plain(value) for name, value in record.items()}
    except pyarrow.ArrowException as problem:
        raise UserError(f"{path} cannot be read as Parquet: {problem}.") from None


def _plain(value: object) -> object:
    """A value as JSON has it: bytes as text in UTF-8, dates written out. Other bytes stay: not every column is read."""
    if isinstance(value, bytes):  # also of columns that say they are strings (table_rows.py)
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return value
    if isinstance(value, list | tuple):  # a map comes as a list of tuples
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value if value is None or isinstance(value, str | int | float) else str(value)


def json_record(line: str, where: str) -> Record | UserError:
    """The fields of one JSON object."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as problem:
        return UserError(f"{where}: not JSON: {problem}. Every line must be one object.{suggest_table(line)}")
    return record if isinstance(record, dict) else UserError(f"{where}: {short(record)} is not an object with fields.")


def _tab_separated(path: Path, file: BinaryIO) -> Records:
    header: list[str] | None = None
    for number, line in read_lines(path, file):
        if isinstance(line, UserError):
            if header is None:
                raise line
            yield f"{path}:{number}", line
            continue
        fields = line.removesuffix("\n").removesuffix("\r").split("\t")
        if header is None:
            headless = len(fields) == 4 and fields[1] in ("0", "1") and fields[2] in ("", "*")
            header = COLA if headless else _header(fields, path)
            if not headless:
                continue
        if fields != [""]:
            yield f"{path}:{number}", _fields(header, fields, f"{path}:{number}")


def _comma_separated(path: Path, file: BinaryIO) -> Records:
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # the default refuses texts of more than 128 KB

    def lines() -> Iterator[str]:
        for _, line in read_lines(path, file):
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
            yield f"{path}:{start}", _fields(header, fields, f"{path}:{start}")


def _header(fields: list[str], path: Path) -> list[str]:
    header = [name.strip() for name in fields]
    twice = {name for name in header if header.count(name) > 1}
    if twice:
        raise UserError(f"{path}:1: the header names '{min(twice)}' twice. Give every column a name of its own.")
    return header


def _fields(header: list[str], fields: list[str], where: str) -> Record | UserError:
    if len(fields) != len(header):
        return UserError(
            f"{where}: {len(fields)} fields, and the header names {len(header)} ({', '.join(header)}). "
            "Is a separator missing, or one too many?"
        )
    return dict(zip(header, fields, strict=True))


# --- records as lines ---------------------------------------------------------------------------------


def dump_record(record: Record, sort_keys: bool = False) -> str:
    """One line of JSON that `records` reads, whatever stands in the columns that nobody reads.

    There bytes of a Parquet file that are no text become base64, and half a surrogate pair stays escaped.
    """
    text = json.dumps(record, ensure_ascii=False, sort_keys=sort_keys, default=_encode_bytes)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(record, sort_keys=sort_keys, default=_encode_bytes)
    return text


def _encode_bytes(value: object) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


# --- JSON files that are one value ------------------------------------------------------------------


def _json_whole(path: Path, file: BinaryIO) -> Records:
    try:
        content = json.loads(file.read())
    except (ValueError, RecursionError) as problem:
        raise UserError(f"{path}: not JSON: {problem}. Lines of one object each belong into a .jsonl file.") from None
    if isinstance(content, dict) and isinstance(content.get("data"), list):
        yield from _questions(path, content["data"])
    elif isinstance(content, list):
        for number, record in enumerate(content, 1):
            where = f"{path}: item {number}"
            fit = isinstance(record, dict)
            yield where, record if fit else UserError(f"{where}: {short(record)} is not an object with fields.")
    else:
        raise UserError(f"{path}: neither a list of objects nor a file of SQuAD's form (an object with 'data').")


def _questions(path: Path, articles: list[Any]) -> Records:
    for number, article in enumerate(articles, 1):
        where = f"{path}: article {number}"
        try:
            for place, paragraph in enumerate(article["paragraphs"], 1):
                where = f"{path}: article {number}, paragraph {place}"
                for question in paragraph["qas"]:
                    record = {"title": article.get("title", ""), "context": paragraph["context"], **question}
                    yield f"{path}: question {record.get('id', '?')}", record
        except (KeyError, TypeError, AttributeError) as problem:
            yield where, UserError(f"{where} is not of SQuAD's form: {problem!r} is missing or of the wrong kind.")
