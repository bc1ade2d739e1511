"""Append-only writers of a graph's arrays: hashed while they are written, so that nothing is read twice."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from etude.graph.graph_files import SUFFIXES
from etude.text.checked_files import FileEntry

BUFFERED = 1 << 15  # texts that are joined before they are written


class ArrayWriter:
    """One array of a graph, written piece by piece."""

    def __init__(self, folder: Path, name: str, dtype: str) -> None:
        self.dtype = np.dtype(dtype)
        self.path = folder / f"{name}.{SUFFIXES[self.dtype]}"
        self.file = self.path.open("wb")
        self.digest = hashlib.sha256()
        self.count = 0  # of values

    def write(self, values: np.ndarray) -> None:
        """Append values, of any shape, row by row."""
        data = np.ascontiguousarray(values, self.dtype).tobytes()
        self.file.write(data)
        self.digest.update(data)
        self.count += values.size

    def close(self) -> dict[str, FileEntry]:
        """Flush to disk; return the file's entry in the manifest."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        return {self.path.name: {"bytes": self.count * self.dtype.itemsize, "sha256": self.digest.hexdigest()}}


class TextsWriter:
    """Texts end to end with their bounds (graph/names.py)."""

    def __init__(self, folder: Path, name: str) -> None:
        self.letters = ArrayWriter(folder, f"{name}.letters", "u1")
        self.bounds = ArrayWriter(folder, f"{name}.bounds", "<i8")
        self.bounds.write(np.zeros(1, np.int64))
        self.texts: list[bytes] = []

    def write(self, text: bytes) -> None:
        """Append one text in UTF-8."""
        self.texts.append(text)
        if len(self.texts) >= BUFFERED:
            self._flush()

    def _flush(self) -> None:
        start = self.letters.count
        self.letters.write(np.frombuffer(b"".join(self.texts), np.uint8))
        self.bounds.write(start + np.cumsum([len(text) for text in self.texts], dtype=np.int64))
        self.texts = []

    def close(self) -> dict[str, FileEntry]:
        """Flush to disk; return the entries of both files."""
        if self.texts:
            self._flush()
        return self.letters.close() | self.bounds.close()

    def discard(self) -> None:
        """Close and remove both files."""
        for writer in (self.letters, self.bounds):
            writer.file.close()
            writer.path.unlink()


def write_arrays(folder: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, FileEntry]:
    """Write whole arrays by name; return their entries in the manifest."""
    entries: dict[str, FileEntry] = {}
    for name, array in arrays.items():
        writer = ArrayWriter(folder, name, array.dtype.newbyteorder("<").str)
        writer.write(array)
        entries |= writer.close()
    return entries
