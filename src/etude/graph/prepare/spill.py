"""Triples by name, spilled to disk in chunks with numbers of their own.

A chunk holds about MAX_NAMES different names and MAX_TRIPLES triples at most: that bounds the memory. Its names are
sorted, so that all chunks can be merged in one pass (name_merge.py); its triples count in that order.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from etude.graph.names import Texts, pack_texts
from etude.graph.readers.base import TripleBlock

MAX_NAMES, MAX_TRIPLES = 1 << 20, 1 << 22
TRAIN, VALID, TEST = 0, 1, 2
LINE_BITS = 40  # a place is the number of a file and of a line in it
KINDS = ("entities", "relations")
COLUMNS = ("triples", "weights", "places", "splits")


@dataclass
class Finding:
    """Something to report: how often, and the first file and line."""

    count: int = 0
    first: int = -1  # a place

    def add(self, places: np.ndarray) -> None:
        """Count the places of some triples."""
        if len(places):
            self.count += len(places)
            first = int(places.min())
            self.first = first if self.first < 0 else min(self.first, first)


@dataclass(frozen=True)
class Shares:
    """How much of the train files is held out, drawn by a hash of the triple: equal triples fall into one split."""

    valid: float = 0.0
    test: float = 0.0
    seed: int = 0

    def draw(self, block: TripleBlock) -> np.ndarray:
        """Return the split of each triple, (T,) uint8."""
        if not self.valid and not self.test:
            return np.zeros(len(block.heads), np.uint8)
        key = self.seed.to_bytes(8, "little", signed=True)
        names = zip(block.heads, block.relations, block.tails, strict=True)
        digests = [hashlib.blake2b("\t".join(triple).encode(), digest_size=8, key=key).digest() for triple in names]
        draws = np.frombuffer(b"".join(digests), "<u8") / 2.0**64
        return np.where(draws < self.valid, VALID, np.where(draws < self.valid + self.test, TEST, TRAIN)).astype("u1")


class TripleSpill:
    """The chunks of one preparation."""

    def __init__(self, folder: Path, drop_self_loops: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.drop_self_loops = folder, drop_self_loops
        self.self_loops = Finding()
        self.has_weights = False
        self.chunks = 0
        self.triples = 0  # spilled or about to be
        self._clear()

    def _clear(self) -> None:
        self.names: dict[str, dict[str, int]] = {kind: {} for kind in KINDS}
        self.columns: dict[str, list[np.ndarray]] = {name: [] for name in COLUMNS}
        self.count = 0

    def add(self, block: TripleBlock, file: int, splits: np.ndarray) -> None:
        """Add triples of a file, with the split of each."""
        if not block.heads:
            return
        places = np.array(block.lines, np.int64) | (file << LINE_BITS)
        entities, relations = self.names["entities"], self.names["relations"]
        heads, tails = (_number(entities, names) for names in (block.heads, block.tails))
        triples = np.stack([heads, _number(relations, block.relations), tails], 1)  # (T, 3)
        self.has_weights |= block.weights is not None
        weights = np.ones(len(triples), np.float32) if block.weights is None else np.array(block.weights, np.float32)
        loops = heads == tails
        self.self_loops.add(places[loops])
        chosen = ~loops if self.drop_self_loops else slice(None)
        for name, values in zip(COLUMNS, (triples, weights, places, splits), strict=True):
            self.columns[name].append(values[chosen])
        added = len(self.columns["triples"][-1])
        self.count += added
        self.triples += added
        if self.count >= MAX_TRIPLES or len(entities) + len(relations) >= MAX_NAMES:
            self.flush()

    def flush(self) -> None:
        """Write what was added since the last time as a chunk."""
        if not self.count:
            return
        columns = {name: np.concatenate(pieces) for name, pieces in self.columns.items()}
        triples, in_train = columns["triples"], columns["splits"] == TRAIN
        for kind, numbers in (("entities", triples[:, ::2]), ("relations", triples[:, 1:2])):
            names = self.names[kind]
            uses = np.zeros(len(names), bool)  # dropped self loops may leave names without a triple
            uses[numbers] = True
            train = np.zeros(len(names), bool)
            train[numbers[in_train]] = True
            ordered = sorted(names)
            order = np.fromiter((names[name] for name in ordered), np.int64, len(ordered))
            order = order[uses[order]]
            ranks = np.full(len(names), -1, np.int32)
            ranks[order] = np.arange(len(order), dtype=np.int32)
            numbers[:] = ranks[numbers]
            if len(order) < len(ordered):
                ordered = [name for name in ordered if uses[names[name]]]
            letters, bounds = pack_texts(ordered)
            for part, values in (("letters", letters), ("bounds", bounds), ("train", train[order])):
                np.save(self._path(self.chunks, f"{kind}.{part}"), values, allow_pickle=False)
        for name, values in columns.items():
            np.save(self._path(self.chunks, name), values, allow_pickle=False)
        self.chunks += 1
        self._clear()

    def _path(self, chunk: int, name: str) -> Path:
        return self.folder / f"{chunk:05}.{name}.npy"

    def load(self, chunk: int, name: str) -> np.ndarray:
        """Return an array of a chunk."""
        return np.load(self._path(chunk, name), allow_pickle=False)

    def map_names(self, chunk: int, kind: str) -> Texts:
        """Return the sorted names of a chunk, not read yet."""
        paths = (self._path(chunk, f"{kind}.{part}") for part in ("letters", "bounds"))
        letters, bounds = (np.asarray(np.load(path, mmap_mode="r", allow_pickle=False)) for path in paths)
        return Texts(letters, bounds)


def _number(names: dict[str, int], texts: list[str]) -> np.ndarray:
    """Return the number of each name, new names numbered on, (T,) int32."""
    for text in dict.fromkeys(texts):
        if text not in names:
            names[text] = len(names)
    return np.fromiter(map(names.__getitem__, texts), np.int32, len(texts))
