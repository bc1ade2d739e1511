"""Triples and entities as JSON objects, one a line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from etude.errors import UserError, suggest_name
from etude.graph.readers.base import Columns, EntityRow, ReadSettings, SkipCounts, TripleBlock, check_name, parse_weight
from etude.graph.readers.lines import FileWatch, read_lines
from etude.graph.readers.tables import ENTITY_ROLES, HEADERS, TRIPLE_ROLES
from etude.text.prepare.sources import SourceFile
from etude.text.table_hint import suggest_table

Fields = dict[str, str]  # role -> field


def read_triple_json(
    file: SourceFile, settings: ReadSettings, counts: SkipCounts, watch: FileWatch | None = None
) -> Iterator[TripleBlock]:
    """Yield the triples of a .jsonl file: {"head": ..., "relation": ..., "tail": ...}."""
    finder = _FieldFinder(file.path, settings.columns, TRIPLE_ROLES, TRIPLE_ROLES[:3], "--triple-columns")
    for records in _read_records(file, watch):
        block = TripleBlock()
        for line, record in records:
            fields = finder.find(line, record)
            for role, column in (("head", block.heads), ("relation", block.relations), ("tail", block.tails)):
                column.append(check_name(file.path, line, role, _text(file.path, line, record, fields[role])))
            if "weight" in fields:
                if block.weights is None:
                    block.weights = [1.0] * len(block.lines)
                block.weights.append(parse_weight(file.path, line, record.get(fields["weight"], 1.0)))
            block.lines.append(line)
        yield block
    finder.check_named()


def read_entity_json(
    file: SourceFile, columns: Columns | None, watch: FileWatch | None = None
) -> Iterator[list[EntityRow]]:
    """Yield what each object of a .jsonl file says of an entity; aliases are a list."""
    finder = _FieldFinder(file.path, columns, ENTITY_ROLES, ("id",), "--entity-columns")
    for records in _read_records(file, watch):
        block = []
        for line, record in records:
            fields = finder.find(line, record)
            row = EntityRow(check_name(file.path, line, "id", _text(file.path, line, record, fields["id"])), line=line)
            if "label" in fields:
                row.label = _one_line(record.get(fields["label"]), file.path, line)
            if "description" in fields:
                row.description = _one_line(record.get(fields["description"]), file.path, line)
            aliases = record.get(fields["aliases"]) if "aliases" in fields else None
            aliases = [] if aliases is None else aliases
            if not isinstance(aliases, list):
                raise UserError(f"{file.path}:{line}: the aliases are not a list.")
            row.aliases = [alias for alias in (_one_line(alias, file.path, line) for alias in aliases) if alias]
            block.append(row)
        yield block
    finder.check_named()


def _read_records(file: SourceFile, watch: FileWatch | None) -> Iterator[list[tuple[int, Mapping[str, object]]]]:
    for first, texts in read_lines(file, watch):
        records: list[tuple[int, Mapping[str, object]]] = []
        for line, text in enumerate(texts, first):
            if not text or text.isspace():
                continue
            try:
                record = json.loads(text)
            except (ValueError, RecursionError) as problem:
                raise UserError(f"{file.path}:{line}: not JSON: {problem}.{suggest_table(text)}") from None
            if not isinstance(record, dict):
                raise UserError(f"{file.path}:{line}: not a JSON object with fields.")
            records.append((line, record))
        if records:
            yield records


class _FieldFinder:
    """The field of each role: as an option names it, else the first known name that an object has.

    An object may leave out what it has nothing for, so a field that is not required may come in any line.
    """

    def __init__(
        self, path: str, columns: Columns | None, roles: tuple[str, ...], required: tuple[str, ...], option: str
    ) -> None:
        if columns is not None and columns.order:
            names = ",".join(f"{role}=NAME" for role in required)
            raise UserError(f"{path} is JSON, whose fields have names and no order: write {option} {names}.")
        self.path, self.required, self.option = path, required, option
        self.fields: Fields = {} if columns is None else dict(columns.names)
        self.open_roles = list(roles) if columns is None else []  # no object had a field of theirs so far
        self.unseen = {role: name for role, name in self.fields.items() if role not in required}

    def find(self, line: int, record: Mapping[str, object]) -> Fields:
        """Return role -> field of one object."""
        if self.open_roles:
            for role in self.open_roles:
                name = next((name for name in HEADERS[role] if name in record), None)
                if name is not None:
                    self.fields[role] = name
            self.open_roles = [role for role in self.open_roles if role not in self.fields]
            missing = [role for role in self.required if role not in self.fields]
            if missing:
                fields = ",".join(f"{role}={self.fields.get(role, 'NAME')}" for role in self.required)
                raise UserError(
                    f"{self.path}:{line}: no field '{missing[0]}'. Say what it is called: {self.option} {fields}."
                )
        if self.unseen:
            self.unseen = {role: name for role, name in self.unseen.items() if name not in record}
        return self.fields

    def check_named(self) -> None:
        """Raise UserError where the option names a field that no object has."""
        if self.unseen:
            role, name = next(iter(self.unseen.items()))
            raise UserError(f"{self.path}: no object has the field '{name}' for {role} ({self.option}).")


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
