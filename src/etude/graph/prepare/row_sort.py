"""Triples sorted into rows (CSR) by an external bucket sort.

Records are scattered to files, each for a range of entities that has at most BUCKET of them (a single range of the
histogram may have more), and every file is sorted in memory. Sorted by head, duplicates are neighbours: they are
dropped there, the largest weight staying; then the train triples go the same way by tail.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from etude.graph.array_writer import ArrayWriter
from etude.graph.prepare.spill import TRAIN, Finding
from etude.text.checked_files import FileEntry

BUCKET = 1 << 21  # records sorted at a time: some 200 MB with what sorting needs
BINS = 1 << 16  # of the histogram that ranges are chosen by
SPLITS = ("train", "valid", "test")
RECORD = np.dtype([
    ("row", "<i4"), ("relation", "<i4"), ("neighbour", "<i4"), ("weight", "<f4"), ("place", "<i8"), ("split", "u1"),
])  # fmt: skip


class Histogram:
    """How many records fall into each of many equal ranges of entities."""

    def __init__(self, entities: int) -> None:
        self.entities = entities
        self.width = max(1, -(-entities // BINS))
        self.counts = np.zeros(-(-entities // self.width), np.int64)

    def add(self, rows: np.ndarray) -> None:
        """Count the entities of some records."""
        self.counts += np.bincount(rows // self.width, minlength=len(self.counts))

    def cut(self) -> list[int]:
        """Return the borders of ranges with at most BUCKET records each: 0, ..., the number of entities."""
        borders, filled = [0], 0
        for number, count in enumerate(self.counts.tolist()):
            if filled and filled + count > BUCKET:
                borders.append(number * self.width)
                filled = 0
            filled += count
        return [*borders, self.entities]


class Buckets:
    """Files of records, one a range of entities."""

    def __init__(self, folder: Path, borders: list[int]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.borders = folder, borders

    def scatter(self, records: np.ndarray) -> None:
        """Append records to the files of their rows, in their order."""
        numbers = np.searchsorted(self.borders, records["row"], side="right") - 1
        order = np.argsort(numbers, kind="stable")
        ends = np.cumsum(np.bincount(numbers, minlength=len(self.borders) - 1)).tolist()
        start = 0
        for number, end in enumerate(ends):
            if end > start:
                with (self.folder / f"{number:06}").open("ab") as file:
                    records[order[start:end]].tofile(file)
            start = end

    def sorted(self) -> Iterator[tuple[int, int, np.ndarray]]:
        """Yield each range with its records by (row, neighbour, relation, split), then as they came; once."""
        for number, (first, end) in enumerate(zip(self.borders[:-1], self.borders[1:], strict=True)):
            path = self.folder / f"{number:06}"
            if not path.exists():
                yield first, end, np.zeros(0, RECORD)
                continue
            records = np.fromfile(path, RECORD)
            path.unlink()
            pairs = records["row"].astype(np.int64) << 32 | records["neighbour"]
            keys = [records["relation"], pairs]
            if records["split"].any():
                keys.insert(0, records["split"])
            yield first, end, records[np.lexsort(keys)]


@dataclass
class SortedTriples:
    """What came of the sort."""

    counts: dict[str, int]  # of triples by split
    duplicates: Finding = field(default_factory=Finding)
    leaks: Finding = field(default_factory=Finding)  # held out, and in train too
    relation_counts: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # (R,) of train triples
    max_degree: int = 0
    max_degree_entity: int = 0
    files: dict[str, FileEntry] = field(default_factory=dict)


def write_rows(
    heads: Buckets, tails: Buckets, out: Path, relations: int, splits: tuple[str, ...], has_weights: bool
) -> SortedTriples:
    """Sort records into the triples of all splits and the rows of both directions."""
    result = SortedTriples(dict.fromkeys(splits, 0), relation_counts=np.zeros(relations, np.int64))
    triple_files = {split: ArrayWriter(out, f"{split}.triples", "<i4") for split in splits}
    weight_files = {split: ArrayWriter(out, f"{split}.weights", "<f4") for split in splits} if has_weights else {}
    degrees = ArrayWriter(heads.folder.parent, "degrees", "<i8")
    outgoing, incoming = _RowWriter(out, "outgoing"), _RowWriter(out, "incoming")
    for first, end, records in heads.sorted():
        records = _drop_duplicates(records, result)
        for number, split in enumerate(SPLITS):
            if split not in splits:
                continue
            chosen = records[records["split"] == number]
            columns = [chosen[name] for name in ("row", "relation", "neighbour")]
            triple_files[split].write(np.stack(columns, 1))
            if has_weights:
                weight_files[split].write(chosen["weight"])
            result.counts[split] += len(chosen)
        train = records[records["split"] == TRAIN]
        result.relation_counts += np.bincount(train["relation"], minlength=relations)
        degrees.write(outgoing.write(first, end, train))
        turned = train.copy()
        turned["row"], turned["neighbour"] = train["neighbour"], train["row"]
        tails.scatter(turned)
    degrees.close()
    counts = np.memmap(degrees.path, np.int64, "r") if degrees.count else np.zeros(0, np.int64)
    for first, end, records in tails.sorted():
        both = incoming.write(first, end, records) + counts[first:end]
        if len(both) and int(both.max()) > result.max_degree:
            result.max_degree, result.max_degree_entity = int(both.max()), first + int(both.argmax())
    for writer in (*triple_files.values(), *weight_files.values()):
        result.files |= writer.close()
    result.files |= outgoing.close() | incoming.close()
    return result


def _drop_duplicates(records: np.ndarray, result: SortedTriples) -> np.ndarray:
    """Keep one record a triple and split, with the largest weight; count what is dropped and what leaks."""
    if not len(records):
        return records
    is_new = np.ones(len(records), bool)  # another triple than the record before
    is_new[1:] = records[1:][["row", "relation", "neighbour"]] != records[:-1][["row", "relation", "neighbour"]]
    is_first = is_new.copy()  # of its triple and split
    is_first[1:] |= records["split"][1:] != records["split"][:-1]
    result.duplicates.add(records["place"][~is_first])
    leading = records["split"][np.flatnonzero(is_new)[np.cumsum(is_new) - 1]]  # the first split of each triple
    result.leaks.add(records["place"][is_first & (records["split"] != TRAIN) & (leading == TRAIN)])
    starts = np.flatnonzero(is_first)
    weights = np.maximum.reduceat(records["weight"], starts)
    records = records[starts]
    records["weight"] = weights
    return records


class _RowWriter:
    """The rows of one direction."""

    def __init__(self, out: Path, name: str) -> None:
        self.bounds = ArrayWriter(out, f"{name}.bounds", "<i8")
        self.neighbours = ArrayWriter(out, f"{name}.neighbours", "<i4")
        self.relations = ArrayWriter(out, f"{name}.relations", "<i4")
        self.bounds.write(np.zeros(1, np.int64))

    def write(self, first: int, end: int, records: np.ndarray) -> np.ndarray:
        """Append the rows of entities first..end; return how many entries each has, int64."""
        counts = np.bincount(records["row"] - first, minlength=end - first)
        self.bounds.write(self.neighbours.count + np.cumsum(counts, dtype=np.int64))
        self.neighbours.write(records["neighbour"])
        self.relations.write(records["relation"])
        return counts

    def close(self) -> dict[str, FileEntry]:
        return self.bounds.close() | self.neighbours.close() | self.relations.close()
