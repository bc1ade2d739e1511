"""The first pass over the text: finds every problem and stores a hash of each document.

By the hash duplicates are found, validation documents selected (equal texts always fall into the same split) and the
tokenizer's sample drawn. All of it depends on the texts and the seed alone, not on the order of work, and memory does
not grow with the text: hashes lie in a file.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import compress, pairwise
from pathlib import Path

import numpy as np

from etude.chance import fold, random_bits
from etude.errors import UserError
from etude.text.checked_files import format_manifest, parse_manifest, write_atomically
from etude.text.corpus.manifest import SourceFileEntry
from etude.text.prepare import messages
from etude.text.prepare.readers import Block, Position, ReadSettings, read_blocks
from etude.text.prepare.record_filter import RecordFilter
from etude.text.prepare.sources import Source
from etude.text.prepare.work_folder import START_AGAIN
from etude.text.prepare.worker import build_request
from etude.text.prepare.worker_pool import Pool

log = logging.getLogger("etude")

HASHES, DUPLICATES, SCAN = "hashes.u64", "duplicates.u8", "scan.json"
SAMPLE, SAMPLE_SIZES = "sample.utf8", "sample-sizes.npy"
CHUNK = 1 << 22  # hashes in memory at a time: 32 MB
MIN_DOCUMENTS = 10  # distinct documents from which on at least one is held out: it is a tenth of the text at most


@dataclass
class ScanResult:
    """What is known of the text after the first pass."""

    documents: int = 0
    bytes: int = 0
    duplicates: int = 0  # documents whose text came before
    filtered: int = 0
    empty: int = 0
    cut: int = 0
    valid_limit: int = 0  # documents drawn below it are in the validation split
    sample_documents: int = 0
    sample_bytes: int = 0
    files: list[list[SourceFileEntry]] = field(default_factory=list)  # of each source: path, bytes, sha256
    blocks: list[list[int]] = field(default_factory=list)  # of each source: documents of each block

    def save(self, work: Path) -> None:
        write_atomically(work / SCAN, format_manifest(asdict(self)))

    @classmethod
    def load(cls, work: Path) -> ScanResult:
        return cls(**parse_manifest(work / SCAN, (work / SCAN).read_bytes(), START_AGAIN))


class TokenizerSample:
    """The documents with the smallest draws that fit into `limit` bytes, whatever the order they come in."""

    def __init__(self, limit: int, unique: bool) -> None:
        self.limit, self.unique = limit, unique
        self.draws = np.zeros(0, np.uint64)  # (documents,)
        self.numbers = np.zeros(0, np.int64)  # (documents,) in the order of reading
        self.texts: list[bytes] = []
        self.bytes = 0
        self.below = 1 << 64 if limit else 0  # larger draws cannot be in the sample any more
        self.added: list[tuple[np.ndarray, np.ndarray]] = []  # draws and numbers of texts since the last sorting

    def add(self, draws: np.ndarray, numbers: np.ndarray, texts: Sequence[bytes]) -> None:
        """Add documents."""
        is_below = draws <= np.uint64(self.below - 1) if self.below else np.zeros(len(draws), bool)
        self.added.append((draws[is_below], numbers[is_below]))
        chosen = list(compress(texts, is_below))
        self.texts += chosen
        self.bytes += sum(map(len, chosen))
        if 4 * self.bytes > 5 * self.limit:  # some slack, so that sorting is rare
            self.trim()

    def trim(self) -> None:
        """Sort the documents by draw and keep those that fit."""
        draws, numbers = (
            np.concatenate([kept, *(added[place] for added in self.added)])
            for place, kept in enumerate((self.draws, self.numbers))
        )
        self.added = []
        order = np.lexsort((numbers, draws))
        if self.unique:
            order = order[np.diff(draws[order], prepend=~draws[order[:1]]) != 0]
        totals = np.cumsum([len(self.texts[place]) for place in order.tolist()])
        count = max(1, int(np.searchsorted(totals, self.limit, "right")))  # one at least, however long
        if count < len(order):
            self.below = int(draws[order[count]])
        order = order[:count]
        self.draws, self.numbers = draws[order], numbers[order]
        self.texts = [self.texts[place] for place in order.tolist()]
        self.bytes = int(totals[count - 1]) if len(order) else 0


def scan(
    sources: list[Source], settings: ReadSettings, record_filter: RecordFilter | None, pool: Pool, work: Path,
    seed: int, valid: float, sample_bytes: int, unique: bool, progress: Callable[[int, int, int], None],
) -> ScanResult:  # fmt: skip
    """Read everything once. `progress` gets bytes read from disk, bytes of text, and documents."""
    result = ScanResult(files=[[{"path": f.path, "bytes": f.size, "sha256": ""} for f in s.files] for s in sources])
    result.blocks = [[] for _ in sources]
    sample = TokenizerSample(sample_bytes, unique)
    draw_key = fold(seed, "sample")
    seen: set[str] = set()
    in_flight: deque[tuple[int, int]] = deque()

    def requests() -> Iterator[messages.Message]:
        before = 0
        for number, source in enumerate(sources):

            def record_hash(file: int, digest: str, number: int = number) -> None:
                result.files[number][file]["sha256"] = digest

            block: Block
            for block in read_blocks(source.files, settings, Position(), record_hash):
                in_flight.append((number, before + block.disk))
                yield build_request("scan", block, {"sample": str(sample.below)})
            before += sum(file.size for file in source.files)

    with (work / HASHES).open("wb") as file:
        for facts, arrays in pool.map(requests()):
            source, disk = in_flight.popleft()
            hashes = arrays["hashes"]
            file.write(hashes.tobytes())
            if len(arrays["sampled"]):
                ends = np.cumsum(arrays["sizes"][arrays["sampled"]], dtype=np.int64).tolist()
                data = arrays["texts"].tobytes()
                texts = [data[start:end] for start, end in pairwise([0, *ends])]
                draws = random_bits(draw_key, hashes[arrays["sampled"]])
                sample.add(draws, result.documents + arrays["sampled"], texts)
            result.blocks[source].append(len(hashes))
            result.documents += len(hashes)
            result.bytes += int(arrays["sizes"].sum())
            for name in ("filtered", "empty", "cut"):
                setattr(result, name, getattr(result, name) + facts[name])
            seen.update(facts["seen"])
            progress(disk, result.bytes, result.documents)
    if not result.documents:
        raise _build_empty_error(result, record_filter, seen)
    if record_filter is not None:
        for name in record_filter.fields:
            if name not in seen:  # a mistyped name: `not drfat` selects everything
                log.warning("no record has a field '%s', which the filter '%s' asks for", name, record_filter.text)
    result.duplicates = mark_duplicates(work, result.documents)
    result.valid_limit = _choose_valid_limit(work, result, seed, valid)
    sample.trim()
    if sample_bytes:
        _save_sample(sample, result, work, seed)
    result.save(work)
    return result


def _build_empty_error(result: ScanResult, record_filter: RecordFilter | None, seen: set[str]) -> UserError:
    if result.filtered and record_filter is not None:
        unseen = [name for name in record_filter.fields if name not in seen]
        if unseen:
            return UserError(f"The filter '{record_filter.text}' left nothing: no record has a field '{unseen[0]}'.")
        return UserError(f"The filter '{record_filter.text}' left out all {result.filtered} records.")
    return UserError("The corpus is empty: no document with any text was found in what was given.")


def mark_duplicates(work: Path, count: int) -> int:
    """Write a byte a document, 1 if its hash came before; return how many.

    By ranges of hashes, so that memory stays bounded.
    """
    hashes = np.memmap(work / HASHES, "<u8", "r")
    with (work / DUPLICATES).open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, count)  # on a full disk a write to mapped memory would end the process
    marks = np.memmap(work / DUPLICATES, np.uint8, "r+", shape=(count,))
    ranges = -(-count // CHUNK)
    total = 0
    for number in range(ranges):
        first, last = (number << 64) // ranges, ((number + 1) << 64) // ranges - 1
        range_hashes, places = [], []
        for start in range(0, count, CHUNK):
            chunk = np.asarray(hashes[start : start + CHUNK])
            inside = np.flatnonzero((chunk >= np.uint64(first)) & (chunk <= np.uint64(last)))
            range_hashes.append(chunk[inside])
            places.append(inside + start)
        values, numbers = np.concatenate(range_hashes), np.concatenate(places)
        is_duplicate = np.ones(len(values), bool)
        is_duplicate[np.unique(values, return_index=True)[1]] = False  # the first of each
        marks[numbers[is_duplicate]] = 1
        total += int(is_duplicate.sum())
    marks.flush()
    return total


def _choose_valid_limit(work: Path, result: ScanResult, seed: int, valid: float) -> int:
    """Return the limit of draws that selects a share of `valid`.

    If that selects no document, it is just above the smallest draw.
    """
    if not valid:
        return 0
    limit = int(valid * 2**64)
    hashes = np.memmap(work / HASHES, "<u8", "r")
    key = fold(seed, "valid")
    least = min(
        int(random_bits(key, np.asarray(hashes[start : start + CHUNK])).min()) for start in range(0, len(hashes), CHUNK)
    )
    if least >= limit and result.documents - result.duplicates >= MIN_DOCUMENTS:
        limit = least + 1
    return limit


def _save_sample(sample: TokenizerSample, result: ScanResult, work: Path, seed: int) -> None:
    """Write the sample without validation documents, unless there are no others."""
    key = fold(seed, "valid")
    hashes = np.memmap(work / HASHES, "<u8", "r")
    is_valid = random_bits(key, np.asarray(hashes[sample.numbers])) < np.uint64(min(result.valid_limit, (1 << 64) - 1))
    texts = sample.texts if is_valid.all() else list(compress(sample.texts, ~is_valid))
    result.sample_documents, result.sample_bytes = len(texts), sum(map(len, texts))
    (work / SAMPLE).write_bytes(b"".join(texts))
    np.save(work / SAMPLE_SIZES, np.array([len(text) for text in texts], np.int64), allow_pickle=False)
