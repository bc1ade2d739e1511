"""Readers of many sources in turn, of which only so many are open at once.

The sources of a mix are read side by side, and `books/*.txt` is as many sources as there are books: more than a process
may have open files. The reader that was asked least lately is closed, and goes on where it stopped when it is asked
again: a block depends on nothing before it (readers.py).
"""

from __future__ import annotations

import resource
from collections.abc import Generator, Sequence

from etude.text.prepare.readers import Block, Position, ReadSettings, read_blocks
from etude.text.prepare.sources import SOURCE_SIDE, SourceFile

OTHER_FILES = 128  # open files that are left to shards, pipes of workers, and whatever else the process does
LEAST_READERS = 4


def count_open_readers(sources: Sequence[Sequence[SourceFile]]) -> int:
    """Return how many readers may be open at once under the limit of this process."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return max(LEAST_READERS, len(sources))
    formats = {file.format for files in sources for file in files}
    each = 2 if formats & {SOURCE_SIDE, "parquet"} else 1  # files that a reader has open
    return max(LEAST_READERS, (limit - OTHER_FILES) // each)


class OpenReaders:
    """The blocks of several sources, asked for in any order of the sources."""

    def __init__(
        self, sources: Sequence[Sequence[SourceFile]], settings: ReadSettings, positions: Sequence[Position]
    ) -> None:
        """`positions`: where each source begins."""
        self.sources, self.settings, self.positions = sources, settings, list(positions)
        self.most_open = count_open_readers(sources)
        self.readers: dict[int, Generator[Block]] = {}  # those that are open; the one that was asked last is the last

    def read(self, number: int) -> Block | None:
        """Return the next block of a source; None at its end."""
        reader = self.readers.pop(number, None)
        if reader is None:
            reader = read_blocks(self.sources[number], self.settings, self.positions[number])
        block = next(reader, None)
        if block is not None:
            self.positions[number] = block.after
            self.readers[number] = reader
            if len(self.readers) > self.most_open:
                self.close(next(iter(self.readers)))
        return block

    def close(self, number: int) -> None:
        """Close the files of a source; it may be asked again."""
        self.readers.pop(number).close()
