"""Triples and entities in columns: tab-separated lines, and .csv with its quotation marks."""

from __future__ import annotations

import csv
from collections.abc import Iterator

from etude.errors import UserError, suggest_name
from etude.graph.readers.base import (
    BREAKS,
    Columns,
    EntityRow,
    ReadSettings,
    SkipCounts,
    TripleBlock,
    check_name,
    parse_weight,
)
from etude.graph.readers.lines import FileWatch, read_lines
from etude.text.prepare.sources import SourceFile

TRIPLE_ROLES = ("head", "relation", "tail", "weight")
ENTITY_ROLES = ("id", "label", "aliases", "description")
HEADERS = {  # names of columns in published files
    "head": ("head", "subject"), "relation": ("relation", "predicate"), "tail": ("tail", "object"),
    "weight": ("weight",), "id": ("id", "entity", "key", "name"), "label": ("label",), "aliases": ("aliases", "alias"),
    "description": ("description",),
}  # fmt: skip
ALIAS_MARK = "|"  # between the aliases of a column

Places = dict[str, int]  # role -> column
RowBlocks = Iterator[tuple[list[int], list[list[str]]]]  # line of each row, its fields


def read_triple_table(
    file: SourceFile, settings: ReadSettings, counts: SkipCounts, watch: FileWatch | None = None
) -> Iterator[TripleBlock]:
    """Yield the triples of a .tsv or .csv file."""
    places: Places | None = None
    width = 0
    for lines, rows in _read_rows(file, watch):
        if places is None:
            places, width, has_header = _find_triple_columns(file.path, rows[0], settings.columns)
            if has_header:
                lines, rows = lines[1:], rows[1:]
        _check_width(file.path, lines, rows, width)
        if not rows:
            continue
        columns = list(zip(*rows, strict=False))
        heads, relations, tails = (
            _check_names(file.path, lines, role, columns[places[role]]) for role in ("head", "relation", "tail")
        )
        weights = None
        if "weight" in places:
            texts = columns[places["weight"]]
            weights = [parse_weight(file.path, line, text) for line, text in zip(lines, texts, strict=True)]
        yield TripleBlock(heads, relations, tails, lines, weights)


def find_triple_columns(file: SourceFile) -> Columns | None:
    """Return the columns of a table without a header whose rows go on behind the tail; None where it has no such."""
    row = next((rows[0] for _, rows in _read_rows(file, None)), [])
    if len(row) <= 3 or _match_header(row, TRIPLE_ROLES, ("head", "relation", "tail")):
        return None
    return Columns(order=("head", "relation", "tail", *["-"] * (len(row) - 3)))


def read_entity_table(
    file: SourceFile, columns: Columns | None, watch: FileWatch | None = None
) -> Iterator[list[EntityRow]]:
    """Yield what each row of a .tsv or .csv file says of an entity."""
    places: Places | None = None
    width = 0
    for lines, rows in _read_rows(file, watch):
        if places is None:
            places, width, has_header = _find_entity_columns(file.path, rows[0], columns)
            if has_header:
                lines, rows = lines[1:], rows[1:]
        rest = columns is not None and columns.rest
        _check_width(file.path, lines, rows, width, at_least=rest, may_lack=1 if rest else 0)
        block = []
        for line, row in zip(lines, rows, strict=True):
            entity = EntityRow(check_name(file.path, line, "id", row[places["id"]]), line=line)
            if "label" in places:
                entity.label = _clean(row[places["label"]])
            if "description" in places:
                entity.description = _clean(row[places["description"]])
            if "aliases" in places:
                place = places["aliases"]
                fields = row[place:] if rest else row[place].split(ALIAS_MARK)
                entity.aliases = [alias for alias in map(_clean, fields) if alias]
            block.append(entity)
        yield block


def _check_names(path: str, lines: list[int], role: str, texts: tuple[str, ...]) -> list[str]:
    """Return the names of a column; `check_name` of each, but quicker."""
    names = [text.strip() for text in texts]
    together = " ".join(names)
    if "" in names or any(mark in together for mark in BREAKS):
        for line, name in zip(lines, names, strict=True):
            check_name(path, line, role, name)
    return names


def _clean(text: str) -> str:
    """Return a text on one line, with single spaces."""
    return " ".join(text.split())


def _read_rows(file: SourceFile, watch: FileWatch | None) -> RowBlocks:
    """Yield rows that are not blank; never an empty block."""
    if file.format == "csv":
        yield from _read_csv(file, watch)
        return
    for first, texts in read_lines(file, watch):
        lines = [number for number, text in enumerate(texts, first) if text and not text.isspace()]
        rows = [texts[number - first].split("\t") for number in lines]
        if rows:
            yield lines, rows


def _read_csv(file: SourceFile, watch: FileWatch | None) -> RowBlocks:
    texts = (text + "\n" for _, block in read_lines(file, watch) for text in block)
    reader = csv.reader(texts, strict=True)
    lines: list[int] = []
    rows: list[list[str]] = []
    try:
        for row in reader:
            if row:
                lines.append(reader.line_num)
                rows.append(row)
            if len(rows) >= 1 << 15:
                yield lines, rows
                lines, rows = [], []
    except csv.Error as problem:
        raise UserError(f"{file.path}:{reader.line_num}: not readable as CSV: {problem}.") from None
    if rows:
        yield lines, rows


def _match_header(row: list[str], roles: tuple[str, ...], required: tuple[str, ...]) -> Places | None:
    """Return the columns by the names of a header; None where the row is none."""
    names = [name.strip().lower() for name in row]
    places: Places = {}
    for role in roles:
        place = next((names.index(name) for name in HEADERS[role] if name in names), None)
        if place is not None:
            places[role] = place
    return places if all(role in places for role in required) else None


def _find_triple_columns(path: str, row: list[str], columns: Columns | None) -> tuple[Places, int, bool]:
    """Return role -> column, the number of columns, and whether the first row is a header."""
    if columns is not None:
        return _match_columns(path, row, columns, "--triple-columns")
    places = _match_header(row, TRIPLE_ROLES, ("head", "relation", "tail"))
    if places is not None:
        return places, len(row), True
    if len(row) != 3:
        hint = (
            "Are its columns separated by tabs?"
            if len(row) < 3
            else "Say which they are, with - for those not to be read: --triple-columns head,relation,tail"
            + ",-" * (len(row) - 3)
            + "."
        )
        raise UserError(f"{path}:1: {_count(len(row))}, not head, relation and tail. {hint}")
    return {"head": 0, "relation": 1, "tail": 2}, 3, False


def _find_entity_columns(path: str, row: list[str], columns: Columns | None) -> tuple[Places, int, bool]:
    if columns is not None:
        return _match_columns(path, row, columns, "--entity-columns")
    places = _match_header(row, ENTITY_ROLES, ("id", "label"))
    if places is not None:
        return places, len(row), True
    if len(row) != 2:
        hint = "Are its columns separated by tabs?" if len(row) < 2 else ""
        hint = hint or "Say which they are, with - for those not to be read: --entity-columns id,label,description."
        raise UserError(f"{path}:1: {_count(len(row))} without a header that names id and label. {hint}")
    return {"id": 0, "label": 1}, 2, False


def _match_columns(path: str, row: list[str], columns: Columns, option: str) -> tuple[Places, int, bool]:
    if columns.order:
        return {role: place for place, role in enumerate(columns.order) if role != "-"}, len(columns.order), False
    names = [name.strip() for name in row]
    for role, name in columns.names:
        if name not in names:
            raise UserError(f"{path}:1: no column '{name}' for {role} ({option}).{suggest_name(name, names)}")
    return {role: names.index(name) for role, name in columns.names}, len(row), True


def _count(columns: int) -> str:
    return "1 column" if columns == 1 else f"{columns} columns"


def _check_width(
    path: str, lines: list[int], rows: list[list[str]], width: int, at_least: bool = False, may_lack: int = 0
) -> None:
    """Raise UserError at the first row of another number of columns."""
    for line, row in zip(lines, rows, strict=True):
        if len(row) != width and not (at_least and len(row) >= width - may_lack):
            hint = "A tab inside a name, or one missing?" if len(row) > width else "Is a tab missing?"
            raise UserError(f"{path}:{line}: {_count(len(row))}, not {width}. {hint}")
