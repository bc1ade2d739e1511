"""Raw text in blocks: each file is read once, in order, in pieces that end where documents end.

A piece depends on the bytes from its first one on and on nothing before, so a reader started in the middle gives the
same pieces as one that came there on its own: that is how an interrupted preparation goes on. Small pieces of many
files share a block; documents are parsed out of blocks by the workers (text/prepare/documents.py).
"""

from __future__ import annotations

import csv
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from etude.errors import UserError, suggest_name
from etude.extras import require
from etude.text.prepare.decompression import DAMAGE, Opened
from etude.text.prepare.sources import HUB, File, refuse_binary

BLOCK = 1 << 19  # bytes of text for a worker at a time: large enough to share its overhead, small enough for memory
LONGEST = 1 << 20  # bytes of one document; a longer one is cut at a line end, so that memory stays bounded
LONGEST_LINE = 1 << 26  # bytes of one line of JSON
BLANK_LINE = re.compile(rb"\n[ \t\r\f\v]*\n")
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Position:
    """Where the next piece starts: a file of the source, bytes (or rows) into it, and the line for messages."""

    file: int = 0
    offset: int = 0
    line: int = 1


@dataclass(frozen=True)
class Part:
    """A span of a block's payload that comes from one file."""

    file: str
    kind: str  # text: documents between blank lines; file: one document; lines, rows: one JSON record a line
    offset: int
    line: int
    length: int
    cut: bool  # does a document end here only because it is too long?


@dataclass
class Block:
    parts: list[Part] = field(default_factory=list)
    payload: bytes = b""
    after: Position = Position()
    disk: int = 0  # bytes of the source's files read up to here, for progress


@dataclass(frozen=True)
class Reading:
    """What to read out of records, and how to read text."""

    text_field: str = "text"
    fields: tuple[str, ...] = ()  # that a filter looks at
    one_document: bool = False  # a text file is one document, whatever blank lines it has
    errors: str = "strict"  # or "replace": invalid UTF-8 becomes U+FFFD


@dataclass
class _Piece:
    payload: bytes
    offset: int
    line: int
    next_offset: int
    next_line: int
    cut: bool = False


def blocks(
    files: Sequence[File], reading: Reading, start: Position, hashed: Callable[[int, str], None] | None = None
) -> Iterator[Block]:
    """All blocks of a source from `start` on. `hashed` is told the SHA-256 of each file that was read in full."""
    before = [sum(file.size for file in files[:number]) for number in range(len(files))]
    block = Block()
    for number in range(start.file, len(files)):
        file = files[number]
        offset, line = (start.offset, start.line) if number == start.file else (0, 1)
        kind = {"text": "file" if reading.one_document else "text", "jsonl": "lines"}.get(file.format, "rows")
        opened = Opened(file, hashing=hashed is not None and offset == 0)
        try:
            for piece in _pieces(opened, kind, reading, offset, line):
                part = Part(file.path, kind, piece.offset, piece.line, len(piece.payload), piece.cut)
                block.parts.append(part)
                block.payload += piece.payload
                block.after = Position(number, piece.next_offset, piece.next_line)
                block.disk = before[number] + opened.position()
                if 4 * len(block.payload) >= 3 * BLOCK:
                    yield block
                    block = Block()
            digest = opened.finish()
        except DAMAGE as problem:
            raise UserError(f"{file.path} is damaged and cannot be unpacked: {problem}.") from None
        except OSError as problem:
            raise UserError(f"{file.path} cannot be read: {problem.strerror or problem}.") from None
        finally:
            opened.close()
        if hashed is not None and digest is not None:
            hashed(number, digest)
        if block.parts:
            block.after = Position(number + 1, 0, 1)
    if block.parts:
        yield block


def _pieces(opened: Opened, kind: str, reading: Reading, offset: int, line: int) -> Iterator[_Piece]:
    if kind != "rows":
        return _spans(opened, kind, offset, line)
    rows = {"csv": _csv_rows, "tsv": _csv_rows, "parquet": _parquet_rows, "hub": _hub_rows}[opened.file.format]
    return _grouped(rows(opened, reading, offset), offset)


def _spans(opened: Opened, kind: str, offset: int, line: int) -> Iterator[_Piece]:
    """Spans of bytes that end where a document, or for records a line, ends."""
    opened.skip(offset)
    buffer, ended = b"", False
    window = BLOCK
    while True:
        if len(buffer) < window and not ended:
            more = opened.read(window - len(buffer))
            ended = len(buffer) + len(more) < window
            if offset == 0 and not buffer:
                refuse_binary(opened.file.path, more[: 1 << 16])
            buffer += more
        if not buffer:
            return
        place, forced = _cut_place(buffer, kind, ended)
        if not place:
            if kind == "lines" and window >= LONGEST_LINE:
                raise UserError(
                    f"{opened.file.path}, line {line}: longer than {LONGEST_LINE >> 20} MB. Is it JSON lines?"
                )
            window = min(2 * window, LONGEST if kind != "lines" else LONGEST_LINE)
            continue
        payload, buffer, window = buffer[:place], buffer[place:], BLOCK
        lines = payload.count(b"\n")
        bom = len(BOM) if offset == 0 and payload.startswith(BOM) else 0
        yield _Piece(payload[bom:], offset + bom, line, offset + place, line + lines, forced)
        offset, line = offset + place, line + lines


def _cut_place(buffer: bytes, kind: str, ended: bool) -> tuple[int, bool]:
    """Where the next piece ends (0: more must be read first), and whether that cuts a document."""
    if kind == "lines":
        return (len(buffer) if ended else buffer.rfind(b"\n") + 1), False
    if ended and len(buffer) <= LONGEST:
        return len(buffer), False
    if kind == "text":
        place = buffer.rfind(b"\n\n", 0, LONGEST)
        if place >= 0:
            return place + 2, False
        last = 0
        for match in BLANK_LINE.finditer(buffer, 0, LONGEST):
            last = match.end()
        if last:
            return last, False
    if len(buffer) < LONGEST:
        return 0, False
    for mark in (b"\n", b" "):
        place = buffer.rfind(mark, LONGEST // 2, LONGEST)
        if place >= 0:
            return place + 1, True
    place = LONGEST - 1
    while place > LONGEST - 5 and buffer[place] & 0xC0 == 0x80:
        place -= 1  # to the first byte of a character of UTF-8
    return place, True


def _grouped(rows: Iterator[dict[str, Any]], offset: int) -> Iterator[_Piece]:
    """Rows as lines of JSON, a block's worth at a time."""
    lines: list[bytes] = []
    size, first = 0, offset
    for row in rows:
        # lone surrogates cannot come from these formats, so every row can be written as UTF-8
        lines.append(json.dumps(row, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass"))
        size += len(lines[-1])
        offset += 1
        if size >= BLOCK:
            yield _Piece(b"\n".join(lines), first, first + 1, offset, offset + 1)
            lines, size, first = [], 0, offset
    if lines:
        yield _Piece(b"\n".join(lines), first, first + 1, offset, offset + 1)


def _csv_rows(opened: Opened, reading: Reading, skip: int) -> Iterator[dict[str, Any]]:
    path = opened.file.path
    csv.field_size_limit(LONGEST_LINE)
    reader = csv.reader(_decoded_lines(opened, reading.errors), delimiter="\t" if opened.file.format == "tsv" else ",")
    try:
        header = next(reader, None)
        if header is None:
            return
        _require(path, reading.text_field, header, "column")
        wanted = {name: header.index(name) for name in _columns(reading) if name in header}
        text_place = wanted[reading.text_field]
        for row in reader:
            if not row:
                continue  # an empty line is no row
            if skip:
                skip -= 1
                continue
            if len(row) <= text_place:
                raise UserError(
                    f"{path}, line {reader.line_num}: the row has {len(row)} of {len(header)} columns, "
                    f"'{reading.text_field}' is missing."
                )
            yield {name: row[place] if place < len(row) else None for name, place in wanted.items()}
    except csv.Error as problem:
        raise UserError(
            f"{path}, line {reader.line_num}: not readable as {opened.file.format.upper()}: {problem}."
        ) from None


def _decoded_lines(opened: Opened, errors: str) -> Iterator[str]:
    """Lines as text, with their line ends; \\n alone ends a line."""
    for piece in _spans(opened, "lines", 0, 1):
        try:
            text = piece.payload.decode("utf-8", errors)
        except UnicodeDecodeError as problem:
            raise invalid_utf8(opened.file.path, piece.offset + problem.start) from None
        lines = text.split("\n")
        last = lines.pop()
        yield from (line + "\n" for line in lines)
        if last:
            yield last


def _parquet_rows(opened: Opened, reading: Reading, skip: int) -> Iterator[dict[str, Any]]:
    path = opened.file.path
    require("pyarrow", f"Reading {path}")
    import pyarrow
    import pyarrow.parquet

    source: Any = path
    with tempfile.TemporaryFile() as unpacked:
        if opened.file.packing:  # Parquet is read from both ends
            while chunk := opened.read(1 << 20):
                unpacked.write(chunk)
            unpacked.seek(0)
            source = unpacked
        try:
            # a small buffer and no read-ahead keep memory flat whatever the size of row groups
            file = pyarrow.parquet.ParquetFile(source, buffer_size=1 << 20, pre_buffer=False)
            _require(path, reading.text_field, file.schema_arrow.names, "column")
            columns = [name for name in _columns(reading) if name in file.schema_arrow.names]
            seen = 0
            for batch in file.iter_batches(batch_size=256, columns=columns, use_threads=False):
                if seen + len(batch) > skip:
                    yield from batch.to_pylist()[max(0, skip - seen) :]
                seen += len(batch)
        except pyarrow.ArrowException as problem:
            raise UserError(f"{path} cannot be read as Parquet: {problem}.") from None


def _hub_rows(opened: Opened, reading: Reading, skip: int) -> Iterator[dict[str, Any]]:
    name, _, rest = opened.file.path.removeprefix(HUB).partition(":")
    configuration, _, split = rest.partition(":")
    require("datasets", f"Reading {opened.file.path}")
    import datasets

    try:
        rows = datasets.load_dataset(name, configuration or None, split=split or "train", streaming=True)
        for number, row in enumerate(rows.skip(skip)):
            if number == 0:
                _require(opened.file.path, reading.text_field, list(row), "field")
            yield {field: row.get(field) for field in _columns(reading)}
    except UserError:
        raise
    except Exception as problem:  # network, names, formats: the library raises everything there is
        first = str(problem).strip().split("\n")[0]
        raise UserError(f"{opened.file.path} cannot be read: {type(problem).__name__}: {first}") from None


def _columns(reading: Reading) -> list[str]:
    """The columns to read: the text, and what the filter looks at (the head of a dotted name)."""
    return list(dict.fromkeys([reading.text_field, *reading.fields, *(name.split(".")[0] for name in reading.fields)]))


def _require(path: str, name: str, names: list[str], what: str) -> None:
    if name not in names:
        raise UserError(f"{path} has no {what} '{name}' to read text from (--text-field).{suggest_name(name, names)}")


def invalid_utf8(path: str, offset: int) -> UserError:
    return UserError(
        f"{path} is not UTF-8: byte {offset} is invalid. Convert the file (iconv -f ... -t UTF-8), or go on with "
        "--errors replace, which puts U+FFFD in its place."
    )
