"""The arrays of a shard, in memory or mapped from files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from etude.errors import UserError
from etude.text.corpus.entities import is_well_formed
from etude.text.corpus.manifest import ShardEntry, ShardSize


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

    def __init__(self, folder: Path, entries: list[ShardEntry], vocab: int) -> None:
        self.folder, self.entries, self.vocab = folder, entries, vocab
        self.shards: dict[int, Shard] = {}

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, number: int) -> Shard:
        shard = self.shards.get(number)
        if shard is None:
            entry = self.entries[number]
            paths = {name: self.folder / name for name in entry["files"]}
            shard = self.shards[number] = map_shard(paths, entry, self.vocab, f"Shard {number} of {self.folder}")
        return shard


def map_shard(paths: Mapping[str, Path], entry: ShardEntry, vocab: int, place: str) -> Shard:
    """Map the files of a shard into memory, named as in its entry, and check what they hold."""
    return build_shard({name: map_file(name, path, entry) for name, path in paths.items()}, entry, vocab, place)


def map_file(name: str, path: Path, entry: ShardEntry) -> np.ndarray:
    """Map a file of a shard into memory, by its name in the entry; it stays readable after the file was removed."""
    dtype = {"u16": "<u2", "u32": "<u4", "i32": "<i4", "bits": "u1", "utf8": "u1"}[name.split(".")[2]]
    if entry["files"][name]["bytes"] == 0:  # numpy cannot map it; a shard of unknown-free, letterless tokens has one
        return np.zeros(0, dtype)
    # as a plain array: every slice of a memmap object costs several times as much
    return np.asarray(np.memmap(path, dtype=dtype, mode="r"))


def build_shard(files: Mapping[str, np.ndarray], entry: ShardEntry, vocab: int, place: str) -> Shard:
    """Make a shard of the arrays of its files, named as in its entry, and check what they hold."""
    shard = Shard(**{name.split(".")[1]: array for name, array in files.items()})
    check_shard(shard, entry, vocab, place)
    return shard


class LazyShards(Protocol):
    """Shards that are opened when first read: mapped files, or files of a store (text/remote/remote_shards.py)."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> Shard: ...


Shards = Sequence[Shard] | LazyShards


def check_shard(shard: Shard, size: ShardSize, vocab: int, place: str) -> None:
    """Check what hashes cannot, when a shard is first read: ids below the vocabulary, bounds ascending and nested."""
    tokens = size["tokens"]
    for name, bounds, count in (
        ("document", shard.documents, size["documents"]),
        ("sentence", shard.sentences, size["sentences"]),
    ):
        if len(bounds) != count or not count or bounds[0] != 0 or bounds[-1] >= tokens or not _ascends(bounds):
            raise UserError(f"{place} has broken {name} bounds. Prepare the corpus again.")
    if (shard.sentences[np.searchsorted(shard.sentences, shard.documents)] != shard.documents).any():
        raise UserError(f"{place} has documents that start inside a sentence. Prepare the corpus again.")
    if len(shard.tokens) != tokens or int(shard.tokens.max()) >= vocab:
        raise UserError(f"{place} has ids beyond its vocabulary of {vocab}. Prepare the corpus again.")
    if shard.letters is not None and shard.surfaces is not None:
        is_inside = len(shard.letters) == tokens and int(shard.letters[-1]) <= len(shard.surfaces)
        if not is_inside or shard.letters[0] != 0 or (shard.letters[1:] < shard.letters[:-1]).any():
            raise UserError(f"{place} has broken bounds of words. Prepare the corpus again.")
    if shard.entities is not None and not is_well_formed(shard.entities, shard.sentences):
        raise UserError(f"{place} has broken mentions of entities. Prepare the corpus again.")


def _ascends(bounds: np.ndarray) -> bool:
    return bool((bounds[1:] > bounds[:-1]).all())


def choose_id_dtype(vocab: int) -> np.dtype:
    """Return the smallest unsigned type that holds every id of a vocabulary."""
    return np.dtype("<u2") if vocab <= 1 << 16 else np.dtype("<u4")
