"""The second pass over the text: blocks of all sources, mixed by weight, become tokens in shards.

Its state is committed every few seconds: lengths of files, places in sources. An interrupted pass goes on from the
last commit, and ends with the same bytes as one that was not.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from etude.errors import UserError
from etude.text.corpus.manifest import SPLITS
from etude.text.corpus.shard import Shard
from etude.text.corpus.split_writer import SplitWriter
from etude.text.prepare import corpus_report as report
from etude.text.prepare.messages import Message, as_array
from etude.text.prepare.readers import Block, Position, Reading, blocks
from etude.text.prepare.scan import DUPLICATES, HASHES, Scanned
from etude.text.prepare.sources import Source
from etude.text.prepare.work_folder import CORPUS, STATE, WorkFolder, write_whole
from etude.text.prepare.worker import request
from etude.text.prepare.worker_pool import Pool
from etude.text.tokenizer.tokenizer import Tokenizer

START = Position()


@dataclass(frozen=True)
class Written:
    parts: dict[str, Any]  # the manifest's entries
    counts: np.ndarray  # (V,) of all parts together
    sums: report.Sums


def tokenise(
    sources: list[Source], reading: Reading, scanned: Scanned, tokenizer: Tokenizer, setup: dict[str, Any], pool: Pool,
    work: WorkFolder, unique: bool, id_type: np.dtype, shard_tokens: int, commit_seconds: float,
    progress: Callable[[int, int, int, int], None],
) -> Written:  # fmt: skip
    """Writes the shards. `progress` is told bytes read from disk, of how many, bytes of text, and documents."""
    corpus = work.path(CORPUS)
    corpus.mkdir(exist_ok=True)
    tokenizer.save(corpus)
    writers = {
        part: SplitWriter(corpus / part, tokenizer.vocab, id_type, tokenizer.word_level, shard_tokens)
        for part in SPLITS
    }
    streams = _streams(sources, scanned)
    state = _State(work, writers, streams)
    sums, text, documents = state.restore()
    head = {
        **setup,
        "memory": _memory(max(1, pool.workers)),
        "valid": str(scanned.valid_limit),
        "token_type": id_type.str,
    }
    pool.tell((head, {"tokenizer": as_array(tokenizer.content.encode())}))
    total = sum(sum(file.size for file in stream.source.files) for stream in streams)
    committed = time.monotonic()
    waiting: deque[tuple[_Stream, Block, int]] = deque()
    settled = True  # is everything an answer brought written, or nothing of it?
    try:
        for facts, arrays in pool.map(_requests(streams, reading, work, waiting, unique)):
            stream, block, count = waiting.popleft()
            if "changed" in facts:
                raise UserError(f"{facts['changed']} changed while it was read. Run the command again.")
            settled = False
            for part, writer in writers.items():
                if part in facts:
                    writer.append(_shard(part, arrays), facts[part]["bytes"])
            sums.add(facts, SPLITS)
            stream.done, stream.position, stream.disk = stream.done + 1, block.after, block.disk
            documents += count
            text += len(block.payload)
            settled = True
            progress(sum(stream.disk for stream in streams), total, text, documents)
            if time.monotonic() - committed > commit_seconds:
                state.commit(sums, text, documents)
                committed = time.monotonic()
        counts = writers["train"].counts + writers["valid"].counts
        settled = False
        return Written({part: writer.finish() for part, writer in writers.items()}, counts, sums)
    except KeyboardInterrupt:
        if settled:
            state.commit(sums, text, documents)
        raise
    finally:
        for writer in writers.values():
            writer.close()


def _requests(
    streams: list[_Stream], reading: Reading, work: WorkFolder, waiting: deque[tuple[_Stream, Block, int]], unique: bool
) -> Iterator[Message]:
    """Blocks of all streams, mixed: next is always the stream that is least far through its blocks."""
    hashes = np.memmap(work.path(HASHES), "<u8", "r")
    marks = np.memmap(work.path(DUPLICATES), np.uint8, "r")
    sent = [stream.done for stream in streams]
    readers = [blocks(stream.source.files, reading, stream.position) for stream in streams]
    while open_streams := [number for number, stream in enumerate(streams) if sent[number] < len(stream.counts)]:
        number = min(open_streams, key=lambda n: (sent[n] / len(streams[n].counts), n))
        stream = streams[number]
        block = next(readers[number], None)
        if block is None:
            raise UserError(f"{stream.source.name} changed while it was read. Run the command again.")
        first, count = stream.first[sent[number]], stream.counts[sent[number]]
        sent[number] += 1
        arrays = {"hashes": np.asarray(hashes[first : first + count])}
        if unique:
            arrays["duplicates"] = np.asarray(marks[first : first + count])
        waiting.append((stream, block, count))
        yield request("encode", block, {"share": str(stream.share), "copy": stream.copy}, arrays)


@dataclass
class _Stream:
    """One pass over one source: a source of weight 2.5 has three, the last for half of its documents."""

    source: Source
    copy: int
    share: int  # of 2^64: documents drawn below it are taken
    counts: list[int]  # documents of each block
    first: list[int]  # number of the first document of each block
    done: int = 0
    position: Position = START
    disk: int = 0


def _streams(sources: list[Source], scanned: Scanned) -> list[_Stream]:
    streams, before = [], 0
    for source, counts in zip(sources, scanned.blocks, strict=True):
        first = [before + int(n) for n in np.cumsum([0, *counts])[:-1]]
        before += sum(counts)
        copy = 0
        while source.weight > copy:
            share = min(1 << 64, int((source.weight - copy) * 2**64))
            streams.append(_Stream(source, copy, share, counts, first))
            copy += 1
    return streams


class _State:
    """What an interrupted encoding needs to go on."""

    def __init__(self, work: WorkFolder, writers: dict[str, SplitWriter], streams: list[_Stream]) -> None:
        self.work, self.writers, self.streams = work, writers, streams
        self.number = 0

    def commit(self, sums: report.Sums, text: int, documents: int) -> None:
        """Everything is on disk before the state that speaks of it takes the place of the last one."""
        self.number += 1
        for part, writer in self.writers.items():
            np.save(self._counts(part, self.number), writer.counts, allow_pickle=False)
        state = {
            "number": self.number, "text": text, "documents": documents, "sums": sums.as_dict(),
            "writers": {part: writer.commit() for part, writer in self.writers.items()},
            "streams": [[stream.done, asdict(stream.position), stream.disk] for stream in self.streams],
        }  # fmt: skip
        write_whole(self.work.path(STATE), json.dumps(state))
        for part in self.writers:
            self._counts(part, self.number - 1).unlink(missing_ok=True)

    def restore(self) -> tuple[report.Sums, int, int]:
        """Puts writers and streams back to the last commit; sums, bytes of text and documents so far."""
        path = self.work.path(STATE)
        if not path.exists():
            for writer in self.writers.values():  # files without a state are what a dead process left
                for left in writer.folder.iterdir():
                    left.unlink()
            return report.Sums(), 0, 0
        state = json.loads(path.read_text())
        self.number = state["number"]
        for part, writer in self.writers.items():
            writer.restore(state["writers"][part], np.load(self._counts(part, self.number), allow_pickle=False))
        for stream, (done, position, disk) in zip(self.streams, state["streams"], strict=True):
            stream.done, stream.position, stream.disk = done, Position(**position), disk
        return report.Sums(**state["sums"]), state["text"], state["documents"]

    def _counts(self, part: str, number: int) -> Path:
        return self.work.path(f"counts-{part}-{number}.npy")


def _shard(part: str, arrays: dict[str, np.ndarray]) -> Shard:
    names = ("tokens", "documents", "sentences", "words", "surfaces", "letters")
    return Shard(**{name: arrays[f"{part}.{name}"] for name in names if f"{part}.{name}" in arrays})


def _memory(workers: int) -> int:
    """Bytes of words a worker may remember, so that all processes together stay under 600 MB + 50 MB a worker.

    Measured: this process takes 150 MB, a worker 75 MB before it remembers anything. More than 24 MB of words is of
    little use.
    """
    room = (600 + 50 * workers - 150) / workers - 75
    return int(min(max(room, 4), 24) * 1e6)
