"""Labels, aliases and descriptions joined to entities: both sorted by name, read side by side."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from etude.graph.array_writer import TextsWriter
from etude.graph.names import Texts
from etude.graph.prepare.name_merge import read_texts
from etude.graph.prepare.spill import LINE_BITS
from etude.graph.readers.base import EntityRow
from etude.text.checked_files import FileEntry

MAX_LETTERS = 1 << 26  # of rows that are sorted at a time
SEPARATOR = "\n"
Row = tuple[bytes, int, str, list[str], str]  # name, place, label, aliases, description


@dataclass
class JoinedTexts:
    """What came of the join."""

    rows: int = 0
    labelled: int = 0  # entities with a label
    dangling: int = 0  # rows of no entity of any triple
    dangling_first: int = -1  # place of the one that came first
    dangling_name: str = ""
    files: dict[str, FileEntry] = field(default_factory=dict)


class EntitySpill:
    """Rows of entity files, sorted by name in pieces on disk."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.rows: list[Row] = []
        self.letters = 0
        self.pieces = 0
        self.total = 0

    def add(self, rows: list[EntityRow], file: int) -> None:
        """Add what a file says of entities."""
        for row in rows:
            self.rows.append((row.name.encode(), row.line | file << LINE_BITS, row.label, row.aliases, row.description))
            self.letters += 200 + len(row.label) + len(row.description) + sum(map(len, row.aliases))
        self.total += len(rows)
        if self.letters >= MAX_LETTERS:
            self.flush()

    def flush(self) -> None:
        """Write the rows in memory as a sorted piece."""
        if not self.rows:
            return
        self.rows.sort(key=lambda row: row[:2])
        with (self.folder / f"{self.pieces:05}.jsonl").open("w", encoding="utf-8") as file:
            for name, *rest in self.rows:
                file.write(json.dumps([name.decode(), *rest], ensure_ascii=False) + "\n")
        self.pieces += 1
        self.rows, self.letters = [], 0

    def read(self) -> Iterator[Row]:
        """Yield all rows by name, those of one name as they came."""
        self.flush()
        return heapq.merge(*(self._read_piece(piece) for piece in range(self.pieces)), key=lambda row: row[:2])

    def _read_piece(self, piece: int) -> Iterator[Row]:
        with (self.folder / f"{piece:05}.jsonl").open(encoding="utf-8") as file:
            for line in file:
                name, place, label, aliases, description = json.loads(line)
                yield name.encode(), place, label, aliases, description


def join_texts(spill: EntitySpill, entities: Texts, out: Path) -> JoinedTexts:
    """Write labels, aliases and descriptions of sorted entities; a kind that nobody has gets no file."""
    result = JoinedTexts(rows=spill.total)
    writers = {kind: TextsWriter(out, kind) for kind in ("labels", "aliases", "descriptions")}
    rows = spill.read()
    row = next(rows, None)
    for name in read_texts(entities):
        label, description = "", ""
        aliases: dict[str, None] = {}
        while row is not None and row[0] <= name:
            if row[0] < name:
                _count_dangling(result, row)
            else:
                label = label or row[2]
                description = description or row[4]
                aliases |= dict.fromkeys([row[2], *row[3]])
            row = next(rows, None)
        for text in ("", label):
            aliases.pop(text, None)
        result.labelled += bool(label)
        writers["labels"].write(label.encode())
        writers["aliases"].write(SEPARATOR.join(aliases).encode())
        writers["descriptions"].write(description.encode())
    while row is not None:
        _count_dangling(result, row)
        row = next(rows, None)
    for writer in writers.values():
        files = writer.close()
        if writer.letters.count:
            result.files |= files
        else:
            writer.letters.path.unlink()
            writer.bounds.path.unlink()
    return result


def _count_dangling(result: JoinedTexts, row: Row) -> None:
    result.dangling += 1
    if result.dangling_first < 0 or row[1] < result.dangling_first:
        result.dangling_first, result.dangling_name = row[1], row[0].decode()
