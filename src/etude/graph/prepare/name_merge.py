"""The names of all chunks merged into one sorted list: the number of a name is its rank.

So numbers depend on the names alone, not on the order of files or the size of chunks. For each chunk a file says which
number each of its names got: the number itself, -2 - number where no train triple has the name, -1 where it is dropped.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import numpy as np

from etude.errors import UserError
from etude.graph.array_writer import ArrayWriter, TextsWriter, write_arrays
from etude.graph.names import Texts
from etude.graph.prepare.spill import TripleSpill
from etude.text.checked_files import FileEntry

WINDOW = 1 << 12  # names that are read from a file at a time
DROPPED = -1
MAX_NUMBER = (1 << 31) - 3


@dataclass
class MergedNames:
    """The result of a merge."""

    count: int
    unseen: int  # names that no train triple has
    example: str  # one of them
    files: dict[str, FileEntry]


def merge_names(spill: TripleSpill, kind: str, out: Path, drop_unseen: bool) -> MergedNames:
    """Write the sorted names of all chunks to `out`, and each chunk's numbers beside it."""
    if spill.chunks == 1 and not (drop_unseen and not spill.load(0, f"{kind}.train").all()):
        return _number_single(spill, kind, out)
    writer, order = TextsWriter(out, kind), ArrayWriter(out, f"{kind}.order", "<i4")
    numbers = [_NumberFile(number_path(spill, chunk, kind)) for chunk in range(spill.chunks)]
    flags = [spill.load(chunk, f"{kind}.train").tobytes() for chunk in range(spill.chunks)]
    positions = [0] * spill.chunks
    runs = [_read_run(spill.map_names(chunk, kind), chunk) for chunk in range(spill.chunks)]
    count = unseen = 0
    example = ""
    for name, group in groupby(heapq.merge(*runs), itemgetter(0)):
        chunks = [chunk for _, chunk in group]
        is_seen = any(flags[chunk][positions[chunk]] for chunk in chunks)
        if not is_seen:
            unseen += 1
            example = example or name.decode()
        is_dropped = drop_unseen and not is_seen
        number = DROPPED if is_dropped else count if is_seen else -2 - count
        for chunk in chunks:
            numbers[chunk].append(number)
            positions[chunk] += 1
        if not is_dropped:
            writer.write(name)
            count += 1
    if count > MAX_NUMBER:
        raise UserError(f"The graph has {count:,} {kind}; more than {MAX_NUMBER:,} cannot be numbered in 32 bits.")
    _write_order(order, count)
    for file in numbers:
        file.close()
    return MergedNames(count, unseen, example, writer.close() | order.close())


def _number_single(spill: TripleSpill, kind: str, out: Path) -> MergedNames:
    """Number the names of the only chunk: they are sorted already, and all stay."""
    names, seen = spill.map_names(0, kind), spill.load(0, f"{kind}.train")
    numbers = np.arange(len(names), dtype=np.int32)
    np.where(seen, numbers, -2 - numbers).astype(np.int32).tofile(number_path(spill, 0, kind))
    files = write_arrays(out, {f"{kind}.letters": names.letters, f"{kind}.bounds": names.bounds})
    order = ArrayWriter(out, f"{kind}.order", "<i4")
    _write_order(order, len(names))
    unseen = np.flatnonzero(~seen)
    return MergedNames(len(names), len(unseen), names[int(unseen[0])] if len(unseen) else "", files | order.close())


def _write_order(order: ArrayWriter, count: int) -> None:
    """Names are in order: numbers ascend."""
    for start in range(0, count, 1 << 20):
        order.write(np.arange(start, min(count, start + (1 << 20)), dtype=np.int32))


def number_path(spill: TripleSpill, chunk: int, kind: str) -> Path:
    """Return the file of the numbers that a chunk's names got."""
    return spill.folder / f"{chunk:05}.{kind}.numbers"


def _read_run(names: Texts, chunk: int) -> Iterator[tuple[bytes, int]]:
    """Yield the names of a chunk in order, a window at a time."""
    for name in read_texts(names):
        yield name, chunk


def read_texts(texts: Texts) -> Iterator[bytes]:
    """Yield texts in order; many times as fast as one by one."""
    for start in range(0, len(texts), WINDOW):
        bounds = texts.bounds[start : start + WINDOW + 1].tolist()
        first = bounds[0]
        block = texts.letters[first : bounds[-1]].tobytes()
        for place in range(len(bounds) - 1):
            yield block[bounds[place] - first : bounds[place + 1] - first]


class _NumberFile:
    """Numbers appended to a file, open only while they are written: there may be many chunks."""

    def __init__(self, path: Path) -> None:
        self.path, self.buffer = path, array("i")
        path.write_bytes(b"")

    def append(self, number: int) -> None:
        self.buffer.append(number)
        if len(self.buffer) >= 1 << 14:
            self.close()

    def close(self) -> None:
        """Write what is buffered."""
        with self.path.open("ab") as file:
            self.buffer.tofile(file)
        self.buffer = array("i")
