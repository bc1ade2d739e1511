"""Parsing of documents from blocks: decoding, records, blank lines, filters, NFC.

Errors name file and line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice

import numpy as np

from etude.errors import UserError, suggest_name
from etude.text.prepare.anchors import Anchor, AnchoredText, read_entities, read_ernie_record, remove_wiki_links
from etude.text.prepare.pairs import join_pair
from etude.text.prepare.readers import MAX_DOCUMENT_BYTES, BlockPart, ReadSettings, build_utf8_error
from etude.text.prepare.record_filter import RecordFilter, find_name, get_field
from etude.text.table_hint import suggest_table
from etude.text.tokenizer.tokenizer import Tokenizer

BLANK_LINES = re.compile(r"\n\s*\n")


@dataclass
class Origin:
    """Where documents in a row come from: one part of a block."""

    file: str
    line: int  # at which the part starts
    count: int = 0  # documents
    text: str = ""  # of which they are the spans between blank lines, where `lines` is empty
    lines: list[int] = field(default_factory=list)  # at which each document starts

    def find_line(self, number: int) -> int:
        """Return the line at which a document of this part starts."""
        if self.lines:
            return self.lines[number]
        starts = (start for start, end in _split_at_blank_lines(self.text) if self.text[start:end].strip())
        return self.line + self.text.count("\n", 0, next(islice(starts, number, None)))


@dataclass
class Documents:
    """The documents of a block, in order."""

    texts: list[str] = field(default_factory=list)  # NFC
    encoded: list[bytes] = field(default_factory=list)  # the same as UTF-8
    anchors: list[list[Anchor]] = field(default_factory=list)  # of each text; nothing without a format of anchors
    filtered: int = 0  # records the filter left out
    empty: int = 0  # records without text
    cut: int = 0  # documents cut for their length
    seen: set[str] = field(default_factory=set)  # fields of the filter that any record had
    origins: list[Origin] = field(default_factory=list)

    @property
    def hashes(self) -> np.ndarray:
        """Hashes of the texts, (documents,) uint64; any two of n texts collide with a chance of n^2 / 2^65."""
        digests = [blake2b(data, digest_size=8).digest() for data in self.encoded]
        return np.frombuffer(b"".join(digests), "<u8")

    def find_place(self, number: int) -> tuple[str, int]:
        """Return file and line at which a document starts. Few are ever asked for, so none is kept."""
        for origin in self.origins:
            if number < origin.count:
                return origin.file, origin.find_line(number)
            number -= origin.count
        raise IndexError(number)

    def add(self, text: str, line: int, anchors: list[Anchor] | None = None) -> None:
        """Add a document of the last origin."""
        self.texts.append(text)
        self.encoded.append(text.encode())
        self.origins[-1].lines.append(line)
        self.origins[-1].count += 1
        if anchors is not None:
            self.anchors.append(anchors)


def parse_documents(
    parts: Sequence[BlockPart], payload: bytes, settings: ReadSettings, record_filter: RecordFilter | None
) -> Documents:
    """Parse the documents of a block's payload."""
    documents = Documents()
    start = 0
    for part in parts:
        data = payload[start : start + part.length]
        start += part.length
        documents.cut += part.cut
        text = _decode(part, data, settings.errors)
        if part.kind in ("lines", "rows"):
            _parse_records(part, text, settings, record_filter, documents)
        else:
            _parse_text(part, text, settings, documents)
    return documents


def _decode(part: BlockPart, data: bytes, errors: str) -> str:
    try:
        text = data.decode("utf-8", errors)
    except UnicodeDecodeError as problem:
        line = part.line + data.count(b"\n", 0, problem.start)
        raise build_utf8_error(part.file, line, part.offset + problem.start) from None
    if "\0" in text:
        if errors == "strict":
            place = data.index(b"\0")
            line = part.line + data.count(b"\n", 0, place)
            hint = "Leave the file out, or go on with --errors replace."
            raise UserError(f"{part.file}, line {line}, is binary or damaged: byte {part.offset + place} is 0. {hint}")
        text = text.replace("\0", "\ufffd")
    return text


def _parse_text(part: BlockPart, text: str, settings: ReadSettings, documents: Documents) -> None:
    if "\r" in text:
        text = text.replace("\r\n", "\n")
    text = Tokenizer.normalise(text)
    if settings.anchors == "wiki":
        _parse_wiki_text(part, text, documents)
        return
    spans = BLANK_LINES.split(text) if part.kind == "text" else [text]
    texts = [document for span in spans if (document := span.strip())]
    documents.texts += texts
    documents.encoded += [document.encode() for document in texts]
    if part.kind == "text":
        documents.origins.append(Origin(part.file, part.line, len(texts), text))
    else:
        documents.origins.append(Origin(part.file, part.line, len(texts), lines=[part.line]))


def _parse_wiki_text(part: BlockPart, text: str, documents: Documents) -> None:
    documents.origins.append(Origin(part.file, part.line))
    line, counted = part.line, 0
    for start, end in _split_at_blank_lines(text) if part.kind == "text" else [(0, len(text))]:
        anchored = remove_wiki_links(text[start:end].strip()).normalise().strip()
        if anchored.text:
            line += text.count("\n", counted, start)
            counted = start
            documents.add(anchored.text, line, anchored.anchors)


def _split_at_blank_lines(text: str) -> Iterator[tuple[int, int]]:
    start = 0
    for match in BLANK_LINES.finditer(text):
        yield start, match.start()
        start = match.end()
    yield start, len(text)


def _parse_records(
    part: BlockPart, text: str, settings: ReadSettings, record_filter: RecordFilter | None, documents: Documents
) -> None:
    unit = "row" if part.kind == "rows" else "line"
    documents.origins.append(Origin(part.file, part.line))
    for number, line in enumerate(text.split("\n"), start=part.line):
        if not line or line.isspace():
            continue
        place = f"{part.file}, {unit} {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as problem:
            expected = f"A .jsonl file has one JSON object a line.{suggest_table(line)}"
            raise UserError(f"{place}: not JSON ({problem}). {expected}") from None
        if not isinstance(record, dict):
            raise UserError(f"{place}: a JSON object is expected, not {line[:40]!r}.")
        if record_filter is not None:
            documents.seen.update(name for name in record_filter.fields if get_field(record, name) is not None)
            if not record_filter.test(record):
                documents.filtered += 1
                continue
        if settings.anchors is not None:
            _add_anchored(number, _read_anchored(record, settings, place), documents)
            continue
        sides = [_get_text(record, name, settings, place) for name in settings.text_fields]
        if not any(side.strip() for side in sides):
            documents.empty += 1
            continue
        content = Tokenizer.normalise(join_pair(sides, settings.pairs, place) if settings.pairs else sides[0])
        is_long = 4 * len(content) > MAX_DOCUMENT_BYTES and settings.pairs is None
        pieces = _cut_document(content) if is_long else [content]
        documents.cut += len(pieces) - 1
        for piece in pieces:
            documents.add(piece, number)


def _read_anchored(record: dict[str, object], settings: ReadSettings, place: str) -> AnchoredText:
    if settings.anchors == "ernie":
        anchored = read_ernie_record(record, place)
        return AnchoredText(_check_text(anchored.text, "sentences", settings, place), anchored.anchors)
    text = _get_text(record, settings.text_field, settings, place)
    if settings.anchors == "wiki":
        return remove_wiki_links(Tokenizer.normalise(text))  # links to files are known by names in NFC
    return read_entities(record, text, place)


def _add_anchored(number: int, anchored: AnchoredText, documents: Documents) -> None:
    content = anchored.normalise()
    if not content.text.strip():
        documents.empty += 1
        return
    pieces = _cut_document(content.text) if 4 * len(content.text) > MAX_DOCUMENT_BYTES else [content.text]
    documents.cut += len(pieces) - 1
    start = 0
    for piece in pieces:
        documents.add(piece, number, content.slice(start, start + len(piece)).anchors)
        start += len(piece)


def _get_text(record: dict[str, object], name: str, settings: ReadSettings, place: str) -> str:
    text = get_field(record, name)
    if text is None and find_name(name, record) is None:
        option = "--pairs" if settings.pairs else "--text-field"
        raise UserError(f"{place}: no field '{name}' to read text from ({option}).{suggest_name(name, record)}")
    if not isinstance(text, str):
        advice = f" Leave such records out with --where '{name}!=null'." if text is None else ""
        raise UserError(f"{place}: the field '{name}' is {json.dumps(text)[:40]}, not text.{advice}")
    return _check_text(text, name, settings, place)


def _check_text(text: str, name: str, settings: ReadSettings, place: str) -> str:
    """Return the text of a field; halves of surrogate pairs and U+0000 are replaced, or raise UserError."""
    try:
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError as problem:  # a lone surrogate, possible through JSON's \u escapes
        if settings.errors == "strict":
            raise UserError(
                f"{place}: character {problem.start} of '{name}' is half of a surrogate pair, not text. "
                "Go on with --errors replace to put U+FFFD in its place."
            ) from None
        # a pair of halves is one character; what is left alone becomes U+FFFD
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if "\0" in text:  # an escape of JSON, too: as a byte, `_decode` has refused it
        if settings.errors == "strict":
            raise UserError(
                f"{place}: character {text.index(chr(0))} of '{name}' is U+0000, which stands in no text. "
                "Go on with --errors replace to put U+FFFD in its place."
            )
        text = text.replace("\0", "\ufffd")
    return text


def _cut_document(text: str) -> list[str]:
    """Cut a text into pieces of at most MAX_DOCUMENT_BYTES.

    After a line, else after a space, else anywhere.
    """
    data = text.encode()
    pieces = []
    while len(data) > MAX_DOCUMENT_BYTES:
        ends = (data.rfind(mark, MAX_DOCUMENT_BYTES // 2, MAX_DOCUMENT_BYTES) + 1 for mark in (b"\n", b" "))
        place = next(filter(None, ends), MAX_DOCUMENT_BYTES)
        while data[place] & 0xC0 == 0x80:
            place -= 1
        pieces.append(data[:place].decode())
        data = data[place:]
    return [*pieces, data.decode()]
