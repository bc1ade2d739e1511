"""The first pass over the text: it finds every problem before any work is done on it, and knows all documents after.

Kept of each document is a hash: by it duplicates are found, held-out documents chosen (equal texts always fall on the
same side) and the tokenizer's sample drawn. All of it depends on the texts and the seed alone, not on the order of
work, and memory does not grow with the text: hashes lie in a file.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from etude.chance import fold, random_bits
from etude.errors import UserError
from etude.text.prepare import messages as frames
from etude.text.prepare.readers import Block, Position, Reading, blocks
from etude.text.prepare.record_filter import Where
from etude.text.prepare.sources import Source
from etude.text.prepare.worker import request
from etude.text.prepare.worker_pool import Pool

HASHES, DUPLICATES, SCAN = "hashes.u64", "duplicates.u8", "scan.json"
SAMPLE, SAMPLE_SIZES = "sample.utf8", "sample-sizes.npy"
CHUNK = 1 << 22  # hashes looked at together: 32 MB
FEWEST = 10  # distinct documents from which on at least one is held out: it is a tenth of the text at most


@dataclass
class Scanned:
    documents: int = 0
    bytes: int = 0
    duplicates: int = 0  # documents whose text came before
    filtered: int = 0
    empty: int = 0
    cut: int = 0
    valid_limit: int = 0  # documents drawn below it are held out
    sample_documents: int = 0
    sample_bytes: int = 0
    files: list[list[dict[str, Any]]] = field(default_factory=list)  # of each source: path, bytes, sha256
    blocks: list[list[int]] = field(default_factory=list)  # of each source: documents of each block

    def save(self, work: Path) -> None:
        (work / SCAN).write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, work: Path) -> Scanned:
        return cls(**json.loads((work / SCAN).read_text()))


class Sample:
    """The documents with the smallest draws that fit into `limit` bytes; which those are is no matter of order."""

    def __init__(self, limit: int, unique: bool) -> None:
        self.limit, self.unique = limit, unique
        self.held: list[tuple[int, int, bytes]] = []  # draw, number, text
        self.bytes = 0
        self.below = 1 << 64 if limit else 0  # draws from here on cannot be in it any more

    def add(self, draw: int, number: int, text: bytes) -> None:
        if draw < self.below:
            self.held.append((draw, number, text))
            self.bytes += len(text)
            if 4 * self.bytes > 5 * self.limit:  # some slack, so that sorting is rare
                self.settle()

    def settle(self) -> None:
        self.held.sort(key=lambda item: item[:2])
        if self.unique:
            self.held = [item for n, item in enumerate(self.held) if n == 0 or item[0] != self.held[n - 1][0]]
        total = 0
        for count, (draw, _, text) in enumerate(self.held):
            total += len(text)
            if total > self.limit and count:
                self.held, self.below = self.held[:count], draw
                break
        self.bytes = sum(len(text) for _, _, text in self.held)


def scan(
    sources: list[Source], reading: Reading, where: Where | None, pool: Pool, work: Path,
    seed: int, valid: float, sample_bytes: int, unique: bool, progress: Callable[[int, int, int], None],
) -> Scanned:  # fmt: skip
    """Reads everything once. `progress` is told bytes read from disk, bytes of text, and documents."""
    found = Scanned(files=[[{"path": f.path, "bytes": f.size, "sha256": ""} for f in s.files] for s in sources])
    found.blocks = [[] for _ in sources]
    sample = Sample(sample_bytes, unique)
    draw_key = fold(seed, "sample")
    seen: set[str] = set()
    waiting: deque[tuple[int, int]] = deque()

    def messages() -> Iterator[frames.Message]:
        before = 0
        for number, source in enumerate(sources):

            def hashed(file: int, digest: str, number: int = number) -> None:
                found.files[number][file]["sha256"] = digest

            block: Block
            for block in blocks(source.files, reading, Position(), hashed):
                waiting.append((number, before + block.disk))
                yield request("scan", block, {"sample": str(sample.below)})
            before += sum(file.size for file in source.files)

    with (work / HASHES).open("wb") as file:
        for facts, arrays in pool.map(messages()):
            source, disk = waiting.popleft()
            hashes = arrays["hashes"]
            file.write(hashes.tobytes())
            draws = random_bits(draw_key, hashes[arrays["sampled"]]).tolist() if len(arrays["sampled"]) else []
            sizes = arrays["sizes"][arrays["sampled"]].tolist()
            texts, place = arrays["texts"].tobytes(), 0
            for number, draw, size in zip(arrays["sampled"].tolist(), draws, sizes, strict=True):
                sample.add(draw, found.documents + number, texts[place : place + size])
                place += size
            found.blocks[source].append(len(hashes))
            found.documents += len(hashes)
            found.bytes += int(arrays["sizes"].sum())
            for name in ("filtered", "empty", "cut"):
                setattr(found, name, getattr(found, name) + facts[name])
            seen.update(facts["seen"])
            progress(disk, found.bytes, found.documents)
    if not found.documents:
        raise _nothing(found, where, seen)
    found.duplicates = mark_duplicates(work, found.documents)
    found.valid_limit = _valid_limit(work, found, seed, valid)
    sample.settle()
    if sample_bytes:
        _save_sample(sample, found, work, seed)
    found.save(work)
    return found


def _nothing(found: Scanned, where: Where | None, seen: set[str]) -> UserError:
    if found.filtered and where is not None:
        unseen = [name for name in where.fields if name not in seen]
        if unseen:
            return UserError(f"The filter '{where.text}' left nothing: no record has a field '{unseen[0]}'.")
        return UserError(f"The filter '{where.text}' left out all {found.filtered} records.")
    return UserError("The corpus is empty: no document with any text was found in what was given.")


def mark_duplicates(work: Path, count: int) -> int:
    """Writes a byte a document: 1 if its hash came before. By ranges of hashes, so that memory stays bounded."""
    hashes = np.memmap(work / HASHES, "<u8", "r")
    marks = np.memmap(work / DUPLICATES, np.uint8, "w+", shape=(count,))
    ranges = -(-count // CHUNK)
    total = 0
    for number in range(ranges):
        first, last = (number << 64) // ranges, ((number + 1) << 64) // ranges - 1
        found, places = [], []
        for start in range(0, count, CHUNK):
            chunk = np.asarray(hashes[start : start + CHUNK])
            inside = np.flatnonzero((chunk >= np.uint64(first)) & (chunk <= np.uint64(last)))
            found.append(chunk[inside])
            places.append(inside + start)
        values, where = np.concatenate(found), np.concatenate(places)
        again = np.ones(len(values), bool)
        again[np.unique(values, return_index=True)[1]] = False  # the first of each
        marks[where[again]] = 1
        total += int(again.sum())
    marks.flush()
    return total


def _valid_limit(work: Path, found: Scanned, seed: int, valid: float) -> int:
    """The share asked for, or, if by chance no document is drawn, just above the smallest draw."""
    if not valid:
        return 0
    limit = int(valid * 2**64)
    hashes = np.memmap(work / HASHES, "<u8", "r")
    key = fold(seed, "valid")
    least = min(
        int(random_bits(key, np.asarray(hashes[start : start + CHUNK])).min()) for start in range(0, len(hashes), CHUNK)
    )
    if least >= limit and found.documents - found.duplicates >= FEWEST:
        limit = least + 1
    return limit


def _save_sample(sample: Sample, found: Scanned, work: Path, seed: int) -> None:
    """What is held out is kept from the tokenizer too, unless nothing else is there."""
    key = fold(seed, "valid")
    hashes = np.memmap(work / HASHES, "<u8", "r")
    numbers = np.array([number for _, number, _ in sample.held])
    held_out = random_bits(key, np.asarray(hashes[numbers])) < np.uint64(min(found.valid_limit, (1 << 64) - 1))
    texts = [text for (_, _, text), out in zip(sample.held, held_out, strict=True) if not out or held_out.all()]
    found.sample_documents, found.sample_bytes = len(texts), sum(map(len, texts))
    (work / SAMPLE).write_bytes(b"".join(texts))
    np.save(work / SAMPLE_SIZES, np.array([len(text) for text in texts], np.int64), allow_pickle=False)
