"""Triples and entities as JSON objects, one a line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from etude.errors import UserError, suggest_name
from etude.graph.readers.base import Columns, EntityRow, ReadSettings, SkipCounts, TripleBlock, check_name, parse_weight
from etude.graph.readers.lines import FileWatch, read_lines
from etude.graph.readers.tables import ENTITY_ROLES, HEADERS, TRIPLE_ROLES
from etude.text.prepare.sources import SourceFile

Fields = dict[str, str]  # role -> field


def read_triple_json(
    file: SourceFile, settings: ReadSettings, counts: SkipCounts, watch: FileWatch | None = None
) -> Iterator[TripleBlock]:
    """Yield the triples of a .jsonl file: {"head": ..., "relation": ..., "tail": ...}."""
    fields: Fields | None = None
    for records in _read_records(file, watch):
        block = TripleBlock()
        for line, record in records:
            if fields is None:
                fields = _find_fields(
                    file.path, line, record, settings.columns, TRIPLE_ROLES, ("head", "relation", "tail"),
                    "--triple-columns",
                )  # fmt: skip
            for role, column in (("head", block.heads), ("relation", block.relations), ("tail", block.tails)):
                column.append(check_name(file.path, line, role, _text(file.path, line, record, fields[role])))
            if "weight" in fields:
                block.weights = block.weights or []
                block.weights.append(parse_weight(file.path, line, record.get(fields["weight"], 1.0)))
            block.lines.append(line)
        yield block


def read_entity_json(
    file: SourceFile, columns: Columns | None, watch: FileWatch | None = None
) -> Iterator[list[EntityRow]]:
    """Yield what each object of a .jsonl file says of an entity; aliases are a list."""
    fields: Fields | None = None
    for records in _read_records(file, watch):
        block = []
        for line, record in records:
            if fields is None:
                fields = _find_fields(file.path, line, record, columns, ENTITY_ROLES, ("id",), "--entity-columns")
            row = EntityRow(check_name(file.path, line, "id", _text(file.path, line, record, fields["id"])), line=line)
            if "label" in fields:
                row.label = _one_line(record.get(fields["label"]), file.path, line)
            if "description" in fields:
                row.description = _one_line(record.get(fields["description"]), file.path, line)
            aliases = record.get(fields["aliases"], []) if "aliases" in fields else []
            if not isinstance(aliases, list):
                raise UserError(f"{file.path}:{line}: the aliases are not a list.")
            row.aliases = [alias for alias in (_one_line(alias, file.path, line) for alias in aliases) if alias]
            block.append(row)
        yield block


def _read_records(file: SourceFile, watch: FileWatch | None) -> Iterator[list[tuple[int, Mapping[str, object]]]]:
    for first, texts in read_lines(file, watch):
        records: list[tuple[int, Mapping[str, object]]] = []
        for line, text in enumerate(texts, first):
            if not text or text.isspace():
                continue
            try:
                record = json.loads(text)
            except (ValueError, RecursionError) as problem:
                raise UserError(f"{file.path}:{line}: not JSON: {problem}.") from None
            if not isinstance(record, dict):
                raise UserError(f"{file.path}:{line}: not a JSON object with fields.")
            records.append((line, record))
        if records:
            yield records


def _find_fields(
    path: str, line: int, record: Mapping[str, object], columns: Columns | None, roles: tuple[str, ...],
    required: tuple[str, ...], option: str,
) -> Fields:  # fmt: skip
    """Return role -> field, by what the first object has or by what the option names."""
    if columns is not None and columns.order:
        names = ",".join(f"{role}=NAME" for role in required)
        raise UserError(f"{path} is JSON, whose fields have names and no order: write {option} {names}.")
    if columns is not None:
        return dict(columns.names)
    fields = {role: name for role in roles for name in reversed(HEADERS[role]) if name in record}
    missing = [role for role in required if role not in fields]
    if missing:
        raise UserError(
            f"{path}:{line}: no field '{missing[0]}'. Say what it is called: {option} "
            + ",".join(f"{role}={fields.get(role, 'NAME')}" for role in required)
            + "."
        )
    return fields


def _text(path: str, line: int, record: Mapping[str, object], field: str) -> str:
    value = record.get(field)
    if value is None:
        raise UserError(f"{path}:{line}: no field '{field}'.{suggest_name(field, record)}")
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise UserError(f"{path}:{line}: the field '{field}' is {json.dumps(value)[:40]}, not a name.")
    return _encodable(path, line, str(value))


def _one_line(value: object, path: str, line: int) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UserError(f"{path}:{line}: {json.dumps(value)[:40]} is not a text.")
    return _encodable(path, line, " ".join(value.split()))


def _encodable(path: str, line: int, text: str) -> str:
    """JSON may name half a character ("\\ud800"), which no UTF-8 file can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{path}:{line}: {text!r} holds half a surrogate pair, which is no character.") from None
    return text
