"""The arrays of a shard, in memory or mapped from files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from etude.text.corpus.manifest import ShardEntry


@dataclass
class Shard:
    """The arrays of one shard: memory-mapped, or plain arrays for a corpus in memory."""

    tokens: np.ndarray  # (N,) uint16 or uint32
    documents: np.ndarray  # (documents,) uint32
    sentences: np.ndarray  # (sentences,) uint32
    words: np.ndarray  # (ceil(N / 8),) uint8, packed bits
    surfaces: np.ndarray | None = None  # (bytes,) uint8
    letters: np.ndarray | None = None  # (N,) uint32
    entities: np.ndarray | None = None  # (N,) int32


class MappedShards:
    """The shards in a folder, each mapped into memory when first read."""

    def __init__(self, folder: Path, entries: list[ShardEntry]) -> None:
        self.folder, self.entries = folder, entries
        self.shards: dict[int, Shard] = {}

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, number: int) -> Shard:
        shard = self.shards.get(number)
        if shard is None:
            arrays = {}
            for name in self.entries[number]["files"]:
                _, array, suffix = name.split(".")
                dtype = {"u16": "<u2", "u32": "<u4", "i32": "<i4", "bits": "u1", "utf8": "u1"}[suffix]
                path = self.folder / name
                # numpy cannot map an empty file; a shard of unknown-free, letterless tokens may have one
                is_empty = self.entries[number]["files"][name]["bytes"] == 0
                # as a plain array: every slice of a memmap object costs several times as much
                arrays[array] = np.zeros(0, dtype) if is_empty else np.asarray(np.memmap(path, dtype=dtype, mode="r"))
            shard = self.shards[number] = Shard(**arrays)
        return shard


Shards = Sequence[Shard] | MappedShards


def choose_id_dtype(vocab: int) -> np.dtype:
    """Return the smallest unsigned type that holds every id of a vocabulary."""
    return np.dtype("<u2") if vocab <= 1 << 16 else np.dtype("<u4")
