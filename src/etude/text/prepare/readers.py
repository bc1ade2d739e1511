"""Readers of source files: each is read once, in order, in blocks that end where documents end.

A piece of a file depends on the bytes from its first one on and on nothing before, so a reader started in the middle
gives the same pieces as one that started at the beginning: that is how an interrupted preparation continues. Small
pieces of many files share a block; workers parse documents out of blocks (documents.py).
"""

from __future__ import annotations

import csv
import re
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate, zip_longest
from typing import BinaryIO

import numpy as np

from etude.errors import UserError, suggest_name
from etude.extras import require
from etude.text.encodings import suggest_encoding
from etude.text.prepare.decompression import InputFile, explain_damage
from etude.text.prepare.record_filter import find_name
from etude.text.prepare.sources import HUB, SOURCE_SIDE, TARGET_SIDE, SourceFile, refuse_binary
from etude.text.prepare.table_rows import Row, strings_as_bytes, write_row
from etude.text.prepare.tmx import read_units
from etude.text.remote.urls import is_url

BLOCK_BYTES = 1 << 19  # of text for a worker at a time: large enough to share its overhead, small enough for memory
MAX_DOCUMENT_BYTES = 1 << 20  # a longer document is cut at a line end, so that memory stays bounded
MAX_LINE_BYTES = 1 << 26  # of JSON
# white space in UTF-8, as documents.py has it between documents: web pages leave U+00A0, Korean text U+3000
WHITE = rb"[\t\v\f\r\x1c-\x1f ]|\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2(?:\x80[\x80-\x8a\xa8\xa9\xaf]|\x81\x9f)|\xe3\x80\x80"
BLANK_LINE = re.compile(rb"\n(?:" + WHITE + rb")*\n")
NEWLINE = ord("\n")
BOM = b"\xef\xbb\xbf"
TEXT_FORMATS = ("text", "jsonl", "csv", "tsv", SOURCE_SIDE, TARGET_SIDE)  # that may be in another encoding


@dataclass(frozen=True)
class Position:
    """The start of the next piece: file of the source, bytes (or rows) into it, line for messages."""

    file: int = 0
    offset: int = 0
    line: int = 1


@dataclass(frozen=True)
class BlockPart:
    """A span of a block's payload that comes from one file."""

    file: str
    kind: str  # text: documents between blank lines; file: one document; lines, rows: one JSON record a line
    offset: int
    line: int
    length: int
    cut: bool  # does a document end here only because it is too long?


@dataclass
class Block:
    """Text for one worker: pieces of one or more files."""

    parts: list[BlockPart] = field(default_factory=list)
    payload: bytes = b""
    after: Position = Position()
    disk: int = 0  # bytes of the source's files read up to here, for progress


@dataclass(frozen=True)
class ReadSettings:
    """Which fields of records to read, and how to read text."""

    text_field: str = "text"
    fields: tuple[str, ...] = ()  # that a filter looks at
    one_document: bool = False  # a text file is one document, whatever blank lines it has
    errors: str = "strict"  # or "replace": invalid UTF-8 becomes U+FFFD
    pairs: tuple[str, str] | None = None  # fields of source and target: a record is a pair (text/prepare/pairs.py)
    encoding: str | None = None  # of text, where that is not UTF-8
    anchors: str | None = None  # format of mentions that the text brings along (text/prepare/anchors.py)

    def as_dict(self) -> dict[str, object]:
        """The settings as JSON; without what a corpus has not, as in corpora that were made before there was any."""
        optional = ("anchors", "encoding")
        return {name: value for name, value in asdict(self).items() if name not in optional or value is not None}

    @property
    def text_fields(self) -> tuple[str, ...]:
        """The fields that text is read from."""
        return self.pairs or (self.text_field,)


@dataclass
class _Piece:
    """A span of one file, and where the next one starts."""

    payload: bytes
    offset: int
    line: int
    next_offset: int
    next_line: int
    cut: bool = False


def read_blocks(
    files: Sequence[SourceFile],
    settings: ReadSettings,
    start: Position,
    on_hash: Callable[[int, str], None] | None = None,
) -> Generator[Block]:
    """Yield all blocks of a source from `start` on.

    `on_hash` gets the SHA-256 of each file that was read in full.
    """
    before = [0, *accumulate(file.size for file in files)]  # bytes of the files before each
    block = Block()
    for number in range(start.file, len(files)):
        file = files[number]
        offset, line = (start.offset, start.line) if number == start.file else (0, 1)
        kind = {"text": "file" if settings.one_document else "text", "jsonl": "lines"}.get(file.format, "rows")
        encoding = settings.encoding if file.format in TEXT_FORMATS else None
        input_file = InputFile(file, on_hash is not None and offset == 0, encoding, settings.errors)
        try:
            with explain_damage(file.path):
                for piece in _read_pieces(input_file, kind, settings, offset, line):
                    part = BlockPart(file.path, kind, piece.offset, piece.line, len(piece.payload), piece.cut)
                    block.parts.append(part)
                    block.payload += piece.payload
                    block.after = Position(number, piece.next_offset, piece.next_line)
                    block.disk = before[number] + input_file.position()
                    if 4 * len(block.payload) >= 3 * BLOCK_BYTES:
                        yield block
                        block = Block()
                digest = input_file.finish()
        finally:
            input_file.close()
        if on_hash is not None and digest is not None:
            on_hash(number, digest)
        if block.parts:
            block.after = Position(number + 1, 0, 1)
    if block.parts:
        yield block


def _read_pieces(input_file: InputFile, kind: str, settings: ReadSettings, offset: int, line: int) -> Iterator[_Piece]:
    if kind != "rows":
        return _read_spans(input_file, kind, offset, line)
    if input_file.file.format == TARGET_SIDE:
        return iter(())  # read together with its source side, and hashed here
    rows = {
        "csv": _read_csv, "tsv": _read_csv, "parquet": _read_parquet, "hub": _read_hub, SOURCE_SIDE: _read_sides,
        "tmx": _read_tmx,
    }[input_file.file.format]  # fmt: skip
    return _group_rows(rows(input_file, settings, offset), offset, settings, input_file.file.path)


def _read_spans(input_file: InputFile, kind: str, offset: int, line: int) -> Iterator[_Piece]:
    """Yield spans of bytes that end where a document, or for records a line, ends."""
    input_file.skip(offset)
    buffer, at_end = b"", False
    window = BLOCK_BYTES
    while True:
        if len(buffer) < window and not at_end:
            more = input_file.read(window - len(buffer))
            at_end = len(buffer) + len(more) < window
            if offset == 0 and not buffer:
                refuse_binary(input_file.file.path, more[: 1 << 16])
            buffer += more
        if not buffer:
            return
        place, cuts_document = _find_cut(buffer, kind, at_end)
        if not place:
            if kind == "lines" and window >= MAX_LINE_BYTES:
                raise UserError(
                    f"{input_file.file.path}, line {line}: longer than {MAX_LINE_BYTES >> 20} MB. Is it JSON lines?"
                )
            window = min(2 * window, MAX_DOCUMENT_BYTES if kind != "lines" else MAX_LINE_BYTES)
            continue
        payload, buffer, window = buffer[:place], buffer[place:], BLOCK_BYTES
        lines = int(np.count_nonzero(np.frombuffer(payload, np.uint8) == NEWLINE))  # bytes.count is slow for so many
        bom = len(BOM) if offset == 0 and payload.startswith(BOM) else 0
        yield _Piece(payload[bom:], offset + bom, line, offset + place, line + lines, cuts_document)
        offset, line = offset + place, line + lines


def _find_cut(buffer: bytes, kind: str, at_end: bool) -> tuple[int, bool]:
    """Return where the next piece ends (0: more must be read first), and whether that cuts a document."""
    if kind == "lines":
        return (len(buffer) if at_end else buffer.rfind(b"\n") + 1), False
    if at_end and len(buffer) <= MAX_DOCUMENT_BYTES:
        return len(buffer), False
    if kind == "text":
        place = buffer.rfind(b"\n\n", 0, MAX_DOCUMENT_BYTES)
        if place >= 0:
            return place + 2, False
        last = 0
        for match in BLANK_LINE.finditer(buffer, 0, MAX_DOCUMENT_BYTES):
            last = match.end()
        if last:
            return last, False
    if len(buffer) < MAX_DOCUMENT_BYTES:
        return 0, False
    for mark in (b"\n", b" "):
        place = buffer.rfind(mark, MAX_DOCUMENT_BYTES // 2, MAX_DOCUMENT_BYTES)
        if place >= 0:
            return place + 1, True
    place = MAX_DOCUMENT_BYTES - 1
    while place > MAX_DOCUMENT_BYTES - 5 and buffer[place] & 0xC0 == 0x80:
        place -= 1  # to the first byte of a character of UTF-8
    return place, True


def _group_rows(rows: Iterator[Row], offset: int, settings: ReadSettings, path: str) -> Iterator[_Piece]:
    """Yield rows as lines of JSON, about a block at a time."""
    lines: list[bytes] = []
    size, first = 0, offset
    for row in rows:
        lines.append(write_row(row, settings.text_fields, settings.errors, f"{path}, row {offset + 1}"))
        size += len(lines[-1])
        offset += 1
        if size >= BLOCK_BYTES:
            yield _Piece(b"\n".join(lines), first, first + 1, offset, offset + 1)
            lines, size, first = [], 0, offset
    if lines:
        yield _Piece(b"\n".join(lines), first, first + 1, offset, offset + 1)


def _read_csv(input_file: InputFile, settings: ReadSettings, skip: int) -> Iterator[Row]:
    path = input_file.file.path
    csv.field_size_limit(MAX_LINE_BYTES)
    is_tsv = input_file.file.format == "tsv"
    reader = csv.reader(
        _decode_lines(input_file, settings.errors),
        delimiter="\t" if is_tsv else ",",
        # a line of a pair file is a pair: a quotation mark at its start is part of the text
        quoting=csv.QUOTE_NONE if is_tsv and settings.pairs else csv.QUOTE_MINIMAL,
        strict=True,  # otherwise a mark that is never closed makes one text of all lines behind it
    )
    start = 1  # line of the row
    try:
        header = next(reader, None)
        if header is None:
            return
        _require_columns(path, settings, header, "column", has_objects=False)
        found = {name: find_name(name, header) for name in _list_columns(settings)}
        columns = {name: header.index(column) for name, column in found.items() if column is not None}
        while True:
            start = reader.line_num + 1
            row = next(reader, None)
            if row is None:
                return
            if not row:
                continue  # an empty line is no row
            if skip:
                skip -= 1
                continue
            missing = [name for name in settings.text_fields if len(row) <= columns[name]]
            if missing:
                raise UserError(
                    f"{path}, line {reader.line_num}: the row has {len(row)} of {len(header)} columns, "
                    f"'{missing[0]}' is missing."
                )
            if settings.pairs and len(row) > len(header):
                raise UserError(
                    f"{path}, line {reader.line_num}: the row has {len(row)} columns, the header {len(header)}. "
                    "A separator inside a text? Remove it, or quote the text in a .csv file."
                )
            yield {name: row[place] if place < len(row) else None for name, place in columns.items()}
    except csv.Error as problem:
        raise UserError(
            f"{path}, line {start}: not readable as {input_file.file.format.upper()}: {problem}. A text that begins "
            "with a quotation mark ends with one, and marks inside of it are doubled."
        ) from None


def _read_sides(input_file: InputFile, settings: ReadSettings, skip: int) -> Iterator[Row]:
    """Yield line i of the source side and line i of the target side as one record."""
    target = input_file.file.target_side
    assert target is not None and settings.pairs is not None
    with explain_damage(target.path):
        target_file = InputFile(target, hashing=False, encoding=settings.encoding, errors=settings.errors)

    def read_targets() -> Iterator[str]:
        with explain_damage(target.path):  # it is this file then, not the one that its source side is read from
            yield from _decode_lines(target_file, settings.errors)

    try:
        sides = _decode_lines(input_file, settings.errors), read_targets()
        for number, lines in enumerate(zip_longest(*sides), start=1):
            if None in lines:
                shorter, longer = (target, input_file.file) if lines[1] is None else (input_file.file, target)
                raise UserError(
                    f"{shorter.path} ends after line {number - 1}, and {longer.path} goes on: line i of the one must "
                    "be the translation of line i of the other."
                )
            if number > skip:
                yield dict(zip(settings.pairs, lines, strict=True))
    finally:
        target_file.close()


def _read_tmx(input_file: InputFile, settings: ReadSettings, skip: int) -> Iterator[Row]:
    path = input_file.file.path
    if settings.pairs is None:
        raise UserError(f"{path} holds pairs of translations: name their languages, as in --pairs en,ko.")
    for number, unit in enumerate(read_units(path, input_file.read, settings.pairs)):
        if number >= skip:
            yield dict(unit)


def _decode_lines(input_file: InputFile, errors: str) -> Iterator[str]:
    """Yield lines as text, with their line ends; \\n alone ends a line."""
    for piece in _read_spans(input_file, "lines", 0, 1):
        try:
            text = piece.payload.decode("utf-8", errors)
        except UnicodeDecodeError as problem:
            line = piece.line + piece.payload.count(b"\n", 0, problem.start)
            raise build_utf8_error(input_file.file.path, line, piece.offset + problem.start) from None
        lines = text.split("\n")
        last = lines.pop()
        yield from (line + "\n" for line in lines)
        if last:
            yield last


def _read_parquet(input_file: InputFile, settings: ReadSettings, skip: int) -> Iterator[Row]:
    path = input_file.file.path
    require("pyarrow", f"Reading {path}")
    import pyarrow
    import pyarrow.parquet

    source: str | BinaryIO = input_file.raw if input_file.raw is not None and is_url(path) else path
    with tempfile.TemporaryFile() as decompressed:
        if input_file.file.compression:  # Parquet is read from both ends
            while chunk := input_file.read(1 << 20):
                decompressed.write(chunk)
            decompressed.seek(0)
            source = decompressed
        try:
            # a small buffer and no read-ahead keep memory flat whatever the size of row groups
            file = pyarrow.parquet.ParquetFile(source, buffer_size=1 << 20, pre_buffer=False)
            _require_columns(path, settings, file.schema_arrow.names, "column")
            found = {find_name(name, file.schema_arrow.names): name for name in _list_columns(settings)}
            columns = [name for name in found if name is not None]
            seen = 0
            for batch in file.iter_batches(batch_size=256, columns=columns, use_threads=False):
                if seen + len(batch) > skip:
                    rows = strings_as_bytes(batch).to_pylist()[max(0, skip - seen) :]
                    yield from ({found.get(column, column): value for column, value in row.items()} for row in rows)
                seen += len(batch)
        except pyarrow.ArrowException as problem:
            raise UserError(f"{path} cannot be read as Parquet: {problem}.") from None
    if source is input_file.raw:
        input_file.raw.seek(0)  # read in any order so far; its hash is that of all its bytes


def _read_hub(input_file: InputFile, settings: ReadSettings, skip: int) -> Iterator[Row]:
    name, _, rest = input_file.file.path.removeprefix(HUB).partition(":")
    configuration, _, split = rest.partition(":")
    require("datasets", f"Reading {input_file.file.path}")
    import datasets

    try:
        rows = datasets.load_dataset(name, configuration or None, split=split or "train", streaming=True)
        for number, row in enumerate(rows.skip(skip)):
            if number == 0:
                _require_columns(input_file.file.path, settings, list(row), "field")
            found = {field: find_name(field, row) for field in _list_columns(settings)}
            # without those it has not: a dotted name reaches into an object then
            yield {field: row[name] for field, name in found.items() if name is not None}
    except UserError:
        raise
    except Exception as problem:  # network, names, formats: the library raises everything there is
        first = str(problem).strip().split("\n")[0]
        raise UserError(f"{input_file.file.path} cannot be read: {type(problem).__name__}: {first}") from None


def _list_columns(settings: ReadSettings) -> list[str]:
    """Return the columns to read: the text, and those of the filter (of a dotted name its head, too)."""
    names = (*settings.text_fields, *settings.fields)
    return list(dict.fromkeys([*names, *(name.split(".")[0] for name in names)]))


def _require_columns(path: str, settings: ReadSettings, names: list[str], what: str, has_objects: bool = True) -> None:
    option = "--pairs" if settings.pairs else "--text-field"
    for name in settings.text_fields:
        head, dot, _ = name.partition(".")
        is_inside = has_objects and bool(dot) and find_name(head, names) is not None
        if find_name(name, names) is None and not is_inside:
            raise UserError(f"{path} has no {what} '{name}' to read text from ({option}).{suggest_name(name, names)}")


def build_utf8_error(path: str, line: int, offset: int) -> UserError:
    """The message on invalid UTF-8: what the file looks like, and the options to go on."""
    hint = suggest_encoding(path) or " etude prepare reads other encodings with --encoding, such as --encoding cp1252."
    return UserError(
        f"{path}, line {line}, is not UTF-8: byte {offset} is invalid.{hint} Or go on with --errors replace, which "
        "puts U+FFFD in its place."
    )
