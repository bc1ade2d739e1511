"""Documents out of blocks: decoding, records, blank lines, filters, NFC. Problems are told with file and line."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from etude.errors import UserError, suggest_name
from etude.text.prepare.readers import LONGEST, Part, Reading, invalid_utf8
from etude.text.prepare.record_filter import Where, look_up
from etude.text.tokenizer.tokenizer import Tokenizer

BLANK_LINES = re.compile(r"\n\s*\n")


@dataclass
class Documents:
    """The documents of a block, in order."""

    texts: list[str] = field(default_factory=list)  # NFC
    encoded: list[bytes] = field(default_factory=list)  # the same as UTF-8
    places: list[tuple[str, int]] = field(default_factory=list)  # file and line each starts at
    filtered: int = 0  # records the filter left out
    empty: int = 0  # records without text
    cut: int = 0  # documents cut for their length
    seen: set[str] = field(default_factory=set)  # which of the filter's fields any record had

    @property
    def hashes(self) -> np.ndarray:
        """(documents,) uint64. Two different texts share one with a chance of n^2 / 2^65: 3e-6 for ten million."""
        digests = (hashlib.blake2b(data, digest_size=8).digest() for data in self.encoded)
        return np.frombuffer(b"".join(digests), "<u8")

    def add(self, text: str, file: str, line: int) -> None:
        self.texts.append(text)
        self.encoded.append(text.encode())
        self.places.append((file, line))


def parse(parts: Sequence[Part], payload: bytes, reading: Reading, where: Where | None) -> Documents:
    documents = Documents()
    start = 0
    for part in parts:
        data = payload[start : start + part.length]
        start += part.length
        documents.cut += part.cut
        text = _decode(part, data, reading.errors)
        if part.kind in ("lines", "rows"):
            _records(part, text, reading, where, documents)
        else:
            _plain(part, text, documents)
    return documents


def _decode(part: Part, data: bytes, errors: str) -> str:
    try:
        text = data.decode("utf-8", errors)
    except UnicodeDecodeError as problem:
        raise invalid_utf8(part.file, part.offset + problem.start) from None
    if "\0" in text:
        if errors == "strict":
            place = part.offset + data.index(b"\0")
            hint = "Leave the file out, or go on with --errors replace."
            raise UserError(f"{part.file} is binary or damaged: byte {place} is 0. {hint}")
        text = text.replace("\0", "\ufffd")
    return text


def _plain(part: Part, text: str, documents: Documents) -> None:
    if "\r" in text:
        text = text.replace("\r\n", "\n")
    text = Tokenizer.normalise(text)
    line, counted = part.line, 0
    for start, end in _spans(text) if part.kind == "text" else [(0, len(text))]:
        document = text[start:end].strip()
        if document:
            line += text.count("\n", counted, start)
            counted = start
            documents.add(document, part.file, line)


def _spans(text: str) -> Iterator[tuple[int, int]]:
    start = 0
    for match in BLANK_LINES.finditer(text):
        yield start, match.start()
        start = match.end()
    yield start, len(text)


def _records(part: Part, text: str, reading: Reading, where: Where | None, documents: Documents) -> None:
    unit = "row" if part.kind == "rows" else "line"
    for number, line in enumerate(text.split("\n"), start=part.line):
        if not line or line.isspace():
            continue
        place = f"{part.file}, {unit} {number}"
        try:
            record = json.loads(line)
        except ValueError as problem:
            raise UserError(f"{place}: not JSON ({problem}). A .jsonl file has one JSON object a line.") from None
        if not isinstance(record, dict):
            raise UserError(f"{place}: a JSON object is expected, not {line[:40]!r}.")
        if where is not None:
            documents.seen.update(name for name in where.fields if look_up(record, name) is not None)
            if not where.test(record):
                documents.filtered += 1
                continue
        if not (words := _text_of(record, reading, place)).strip():
            documents.empty += 1
            continue
        words = Tokenizer.normalise(words)
        pieces = _cut(words) if 4 * len(words) > LONGEST else [words]
        documents.cut += len(pieces) - 1
        for piece in pieces:
            documents.add(piece, part.file, number)


def _text_of(record: dict[str, Any], reading: Reading, place: str) -> str:
    name = reading.text_field
    if name not in record:
        raise UserError(f"{place}: no field '{name}' to read text from (--text-field).{suggest_name(name, record)}")
    text = record[name]
    if not isinstance(text, str):
        raise UserError(f"{place}: the field '{name}' is {json.dumps(text)[:40]}, not text.")
    try:
        text.encode()
    except UnicodeEncodeError as problem:  # a lone surrogate, possible through JSON's \u escapes
        if reading.errors == "strict":
            raise UserError(
                f"{place}: character {problem.start} of '{name}' is half of a surrogate pair, not text. "
                "Go on with --errors replace to put U+FFFD in its place."
            ) from None
        # a pair of halves is one character; what is left alone becomes U+FFFD
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _cut(text: str) -> list[str]:
    """A text of any length as pieces of at most LONGEST bytes, cut after a line, else after a space, else anywhere."""
    data = text.encode()
    pieces = []
    while len(data) > LONGEST:
        ends = (data.rfind(mark, LONGEST // 2, LONGEST) + 1 for mark in (b"\n", b" "))
        place = next(filter(None, ends), LONGEST)
        while data[place] & 0xC0 == 0x80:
            place -= 1
        pieces.append(data[:place].decode())
        data = data[place:]
    return [*pieces, data.decode()]
