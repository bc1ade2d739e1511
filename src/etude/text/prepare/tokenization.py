"""The second pass over the text: encodes the blocks of all sources, mixed by weight, into shards.

Its state is committed every few seconds: lengths of files, positions in sources. An interrupted pass continues from the
last commit, and ends with the same bytes as one that was not interrupted.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from etude.errors import UserError
from etude.text.checked_files import format_manifest, hash_file, load_array, parse_manifest, write_atomically
from etude.text.corpus.manifest import SPLITS, SplitEntry
from etude.text.corpus.shard import Shard
from etude.text.corpus.split_writer import SplitWriter
from etude.text.prepare import corpus_report
from etude.text.prepare.freed_memory import return_freed_memory
from etude.text.prepare.linking import Linking
from etude.text.prepare.messages import Arrays, Head, Message, bytes_to_array
from etude.text.prepare.open_readers import OpenReaders
from etude.text.prepare.readers import Block, Position, ReadSettings
from etude.text.prepare.scan import DUPLICATES, HASHES, ScanResult
from etude.text.prepare.sources import Source
from etude.text.prepare.work_folder import CORPUS, LINKING, START_AGAIN, STATE, WorkFolder
from etude.text.prepare.worker import build_request
from etude.text.prepare.worker_pool import Pool
from etude.text.tokenizer.tokenizer import Tokenizer

START = Position()


@dataclass(frozen=True)
class EncodingResult:
    """The encoded corpus on disk."""

    splits: dict[str, SplitEntry]
    counts: np.ndarray  # (V,) of all parts together
    report_counts: corpus_report.ReportCounts


def encode_sources(
    sources: list[Source], settings: ReadSettings, scan_result: ScanResult, tokenizer: Tokenizer, setup: Head,
    pool: Pool, work: WorkFolder, unique: bool, id_dtype: np.dtype, shard_tokens: int, commit_seconds: float,
    progress: Callable[[int, int, int, int], None], linking: Linking | None = None,
) -> EncodingResult:  # fmt: skip
    """Write the shards. `progress` gets bytes read from disk, of how many, bytes of text, and documents."""
    return_freed_memory()  # what the scan needed
    corpus = work.path(CORPUS)
    corpus.mkdir(exist_ok=True)
    tokenizer.save(corpus)
    writers = {
        split: SplitWriter(
            corpus / split,
            tokenizer.largest_vocab,
            id_dtype,
            tokenizer.word_level,
            shard_tokens,
            linking is not None,
            work.upload,
        )
        for split in SPLITS
    }
    streams = _build_streams(sources, scan_result)
    state = _EncodingState(work, writers, streams)
    report_counts, text, documents = state.restore()
    head = {
        **setup,
        "memory": _choose_cache_bytes(max(1, pool.workers)),
        "valid": str(scan_result.valid_limit),
        "token_type": id_dtype.str,
    }
    if linking is not None:
        folder = work.path(LINKING)
        linking.save(folder)
        head["linking"] = [linking.module, str(folder.absolute())]
    contents = {"tokenizer": bytes_to_array(tokenizer.content.encode())}
    if tokenizer.target is not tokenizer:
        contents["target"] = bytes_to_array(tokenizer.target.content.encode())
    pool.broadcast((head, contents))
    total = sum(sum(file.size for file in stream.source.files) for stream in streams)
    disk = sum(stream.disk for stream in streams)
    last_commit = time.monotonic()
    in_flight: deque[tuple[_Stream, Block, int]] = deque()
    consistent = True  # whether the writers hold all of a result, or nothing of it
    try:
        for facts, arrays in pool.map(_build_requests(streams, settings, work, in_flight, unique)):
            stream, block, count = in_flight.popleft()
            if "changed" in facts:
                raise UserError(f"{facts['changed']} changed while it was read. Run the command again.")
            consistent = False
            for split, writer in writers.items():
                if split in facts:
                    writer.append(_build_shard(split, arrays), facts[split]["bytes"])
            report_counts.add(facts, SPLITS)
            disk += block.disk - stream.disk
            stream.done, stream.position, stream.disk = stream.done + 1, block.after, block.disk
            documents += count
            text += len(block.payload)
            consistent = True
            progress(disk, total, text, documents)
            if time.monotonic() - last_commit > commit_seconds:
                state.commit(report_counts, text, documents)
                last_commit = time.monotonic()
        counts = writers["train"].counts + writers["valid"].counts
        consistent = False
        return EncodingResult({split: writer.finish() for split, writer in writers.items()}, counts, report_counts)
    except KeyboardInterrupt:
        if consistent:
            state.commit(report_counts, text, documents)
        raise
    finally:
        for writer in writers.values():
            writer.close()


def _build_requests(
    streams: list[_Stream],
    settings: ReadSettings,
    work: WorkFolder,
    in_flight: deque[tuple[_Stream, Block, int]],
    unique: bool,
) -> Iterator[Message]:
    """Yield requests for the blocks of all streams, mixed.

    The next is always of the stream of which the smallest share was sent.
    """
    sent_blocks = [stream.done for stream in streams]
    readers = OpenReaders(
        [stream.source.files for stream in streams], settings, [stream.position for stream in streams]
    )
    # a heap: a pattern that the shell expands is as many streams as files
    shares = [
        (sent / len(stream.counts), number)
        for number, (stream, sent) in enumerate(zip(streams, sent_blocks, strict=True))
        if sent < len(stream.counts)
    ]
    heapq.heapify(shares)
    while shares:
        number = shares[0][1]
        stream = streams[number]
        block = readers.read(number)
        if block is None:
            raise UserError(f"{stream.source.name} changed while it was read. Run the command again.")
        first, count = stream.first[sent_blocks[number]], stream.counts[sent_blocks[number]]
        sent_blocks[number] += 1
        if sent_blocks[number] < len(stream.counts):
            heapq.heapreplace(shares, (sent_blocks[number] / len(stream.counts), number))
        else:
            heapq.heappop(shares)
            readers.close(number)
        # read, not mapped: the pages of a map would count as memory of this process, 8 bytes a document
        arrays = {"hashes": np.fromfile(work.path(HASHES), "<u8", count, offset=8 * first)}
        if unique:
            arrays["duplicates"] = np.fromfile(work.path(DUPLICATES), np.uint8, count, offset=first)
        in_flight.append((stream, block, count))
        yield build_request("encode", block, {"share": str(stream.share), "copy": stream.copy}, arrays)


@dataclass
class _Stream:
    """One pass over one source: a source of weight 2.5 has three, the last for half of its documents."""

    source: Source
    copy: int
    share: int  # of 2^64: documents drawn below it are used
    counts: list[int]  # documents of each block
    first: list[int]  # number of the first document of each block
    done: int = 0
    position: Position = START
    disk: int = 0


def _build_streams(sources: list[Source], scan_result: ScanResult) -> list[_Stream]:
    streams, before = [], 0
    for source, counts in zip(sources, scan_result.blocks, strict=True):
        first = [before + int(n) for n in np.cumsum([0, *counts])[:-1]]
        before += sum(counts)
        copy = 0
        while source.weight > copy:
            share = min(1 << 64, int((source.weight - copy) * 2**64))
            streams.append(_Stream(source, copy, share, counts, first))
            copy += 1
    return streams


class _EncodingState:
    """The state on disk from which an interrupted encoding continues."""

    def __init__(self, work: WorkFolder, writers: dict[str, SplitWriter], streams: list[_Stream]) -> None:
        self.work, self.writers, self.streams = work, writers, streams
        self.number = 0

    def commit(self, report_counts: corpus_report.ReportCounts, text: int, documents: int) -> None:
        """Write the state; everything that it describes is on disk before it replaces the last one."""
        self.number += 1
        arrays = self._build_arrays()
        for name, array in arrays.items():
            np.save(self._array_path(name, self.number), array, allow_pickle=False)
        state = {
            "number": self.number, "text": text, "documents": documents, "sums": report_counts.as_dict(),
            "writers": {split: writer.commit() for split, writer in self.writers.items()},
            "arrays": {name: hash_file(self._array_path(name, self.number)) for name in arrays},
        }  # fmt: skip
        write_atomically(self.work.path(STATE), format_manifest(state))
        for name in arrays:
            self._array_path(name, self.number - 1).unlink(missing_ok=True)
        if self.work.upload is not None:
            self.work.upload.release()

    def restore(self) -> tuple[corpus_report.ReportCounts, int, int]:
        """Restore writers and streams; return the report's counts, bytes of text and documents so far."""
        path = self.work.path(STATE)
        if not path.exists():
            for writer in self.writers.values():  # files without a state are those of a dead process
                for left in writer.folder.iterdir():
                    left.unlink()
            return corpus_report.ReportCounts(), 0, 0
        state = parse_manifest(path, path.read_bytes(), START_AGAIN)
        self.number = state["number"]
        arrays = {name: self._load_array(name, digest) for name, digest in state["arrays"].items()}
        for split, writer in self.writers.items():
            writer.restore(state["writers"][split], arrays[f"counts-{split}"])
        for stream, (done, disk, *position) in zip(self.streams, arrays["streams"].tolist(), strict=True):
            stream.done, stream.disk, stream.position = done, disk, Position(*position)
        return corpus_report.ReportCounts(**state["sums"]), state["text"], state["documents"]

    def _build_arrays(self) -> dict[str, np.ndarray]:
        """The arrays of the state by name; a pattern that the shell expands is as many streams as files."""
        streams = [(s.done, s.disk, s.position.file, s.position.offset, s.position.line) for s in self.streams]
        counts = {f"counts-{split}": writer.counts for split, writer in self.writers.items()}
        return {"streams": np.array(streams, np.int64), **counts}

    def _load_array(self, name: str, digest: str) -> np.ndarray:
        path = self._array_path(name, self.number)
        array = load_array(path, START_AGAIN)
        if hash_file(path) != digest:
            raise UserError(f"{path} was altered. {START_AGAIN}")
        return array

    def _array_path(self, name: str, number: int) -> Path:
        return self.work.path(f"{name}-{number}.npy")


def _build_shard(split: str, arrays: Arrays) -> Shard:
    names = ("tokens", "documents", "sentences", "words", "surfaces", "letters", "entities")
    return Shard(**{name: arrays[f"{split}.{name}"] for name in names if f"{split}.{name}" in arrays})


def _choose_cache_bytes(workers: int) -> int:
    """Return the size of a worker's word cache.

    All processes together stay under 600 MB + 50 MB a worker. Measured: this process takes 150 MB, a worker 75 MB with
    an empty cache. A cache of more than 24 MB is of little use.
    """
    room = (600 + 50 * workers - 150) / workers - 75
    return int(min(max(room, 4), 24) * 1e6)
