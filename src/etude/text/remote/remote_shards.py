"""The shards of a corpus that stays in a store: fetched when first read, into a cache of bounded size, and ahead.

What is read is what a local corpus holds, bit for bit: each file is checked against the SHA-256 of the manifest when it
comes. Ahead of the reader, threads fetch the shards behind the last one that was missing: all of them as long as the
cache has room, since rows are drawn from everywhere; one where it is full and shards are read in order.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import numpy as np

from etude.errors import UserError
from etude.text.checked_files import FileEntry
from etude.text.corpus.manifest import ShardEntry
from etude.text.corpus.shard import Shard, build_shard, map_file
from etude.text.remote.cache_folder import LIMIT, cache_bytes, cache_folder
from etude.text.remote.shard_cache import ShardCache
from etude.text.remote.storage import Storage
from etude.text.remote.urls import join_url

THREADS = 4
TRIES = 5  # to open a file that another process removes as soon as it is here
log = logging.getLogger(__name__)


class RemoteFiles:
    """The files of a corpus at a URL, through the cache of this machine."""

    def __init__(self, url: str) -> None:
        self.url, self.storage = url.rstrip("/"), Storage(url)
        self.cache = ShardCache(cache_folder() / "corpora", cache_bytes())

    def fetch(self, name: str, entry: FileEntry, verify: bool = False) -> Path:
        """Return the local path of a file of the corpus, such as train/00000.tokens.u16."""
        url = join_url(self.url, name)
        return self.cache.get(entry, url, lambda start, stop: self.storage.read(url, start, stop), verify)


class RemoteShards:
    """The shards of one split, each mapped into memory when first read."""

    def __init__(self, files: RemoteFiles, split: str, entries: list[ShardEntry], vocab: int) -> None:
        self.files, self.split, self.entries, self.vocab = files, split, entries, vocab
        self.sizes = [sum(file["bytes"] for file in entry["files"].values()) for entry in entries]
        limit = files.cache.limit
        if max(self.sizes) > limit:
            raise UserError(
                f"The cache of {limit / 1e9:g} GB cannot hold one shard of {files.url}: the largest has "
                f"{max(self.sizes) / 1e9:.2f} GB. Raise {LIMIT}."
            )
        if sum(self.sizes) > limit:
            log.warning(
                "%s/%s has %.1f GB and the cache holds %.1f: a training that draws rows from everywhere fetches shards "
                "again and again. Raise %s if the disk allows it.",
                files.url, split, sum(self.sizes) / 1e9, limit / 1e9, LIMIT,
            )  # fmt: skip
        self._start(os.getpid())

    def _start(self, process: int) -> None:
        """Begin without threads, as in a new process: those of another one do not survive a fork."""
        self.process = process
        self.lock = threading.Lock()
        self.mapped: dict[int, Shard] = {}
        self.uses: dict[int, int] = {}
        self.clock = itertools.count()
        self.pending: dict[int, Future[Shard]] = {}
        self.threads: _DaemonThreads | None = None
        self.missed = -2  # the last shard that was not here

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, number: int) -> Shard:
        if self.process != os.getpid():
            self._start(os.getpid())
        shard = self.mapped.get(number)
        if shard is None:
            with self.lock:
                future = self._request(number)
                self._read_ahead(number)
                self.missed = number
            shard = future.result()
        self.uses[number] = next(self.clock)
        return shard

    def _request(self, number: int) -> Future[Shard]:
        """Begin to fetch a shard, or return the fetching under way."""
        if self.threads is None:
            self.threads = _DaemonThreads(THREADS)
        future = self.pending.get(number)
        if future is None or (future.done() and number not in self.mapped):
            future = self.pending[number] = self.threads.submit(self._load, number)
        return future

    def _read_ahead(self, number: int) -> None:
        """Fetch what is likely to be read next, as far as nothing has to go for it."""
        cache = self.files.cache
        under_way = [other for other, future in self.pending.items() if not future.done()]
        wanted = sum(self.sizes[other] for other in {number, *under_way})  # nothing may go for what is only likely
        room, waiting = cache.free_bytes() - wanted, len(under_way)
        count = len(self.entries)
        for step in range(1, count):
            following = (number + step) % count
            if following in self.mapped or following in self.pending:
                continue
            size = self.sizes[following]
            is_next = step == 1 and number == self.missed + 1 and following == number + 1
            may_replace = is_next and wanted + size <= cache.limit  # files that were read, not those on their way
            if waiting >= 2 * THREADS or not (room >= size or may_replace):
                return
            room -= size
            wanted += size
            waiting += 1
            self._request(following)

    def _load(self, number: int) -> Shard:
        entry = self.entries[number]
        files = {name: self._map(name, entry) for name in entry["files"]}
        shard = build_shard(files, entry, self.vocab, f"Shard {number} of {join_url(self.files.url, self.split)}")
        with self.lock:
            self.mapped[number] = shard
            self.uses.setdefault(number, next(self.clock))
            self._unmap(number)
            self.pending.pop(number, None)
        return shard

    def _map(self, name: str, entry: ShardEntry) -> np.ndarray:
        """Fetch a file and map it at once: from then on it may be removed."""
        for _ in range(TRIES):
            with contextlib.suppress(FileNotFoundError):  # removed by another process that needed the room
                return map_file(name, self.files.fetch(f"{self.split}/{name}", entry["files"][name]), entry)
        raise UserError(
            f"The cache of {self.files.cache.limit / 1e9:g} GB is too small for all processes that read "
            f"{self.files.url}. Raise {LIMIT}."
        )

    def _unmap(self, newest: int) -> None:
        """Let go of shards whose files are gone, and of the longest unused beyond the limit: they take up the disk."""
        for number in [number for number in self.mapped if number != newest]:
            if not all(self.files.cache.has(file) for file in self.entries[number]["files"].values()):
                del self.mapped[number]
        total = sum(self.sizes[number] for number in self.mapped)
        for number in sorted(self.mapped, key=lambda number: self.uses.get(number, 0)):
            if total > self.files.cache.limit and number != newest:
                del self.mapped[number]
                total -= self.sizes[number]


class _DaemonThreads:
    """Threads that a process does not wait for when it ends: what they read ahead is of no use then."""

    def __init__(self, count: int) -> None:
        self.tasks: queue.SimpleQueue[tuple[Future[Shard], Callable[[int], Shard], int]] = queue.SimpleQueue()
        for number in range(count):
            threading.Thread(target=self._work, daemon=True, name=f"etude-shards-{number}").start()

    def submit(self, load: Callable[[int], Shard], number: int) -> Future[Shard]:
        future: Future[Shard] = Future()
        self.tasks.put((future, load, number))
        return future

    def _work(self) -> None:
        while True:
            future, load, number = self.tasks.get()
            try:
                future.set_result(load(number))
            except BaseException as error:
                future.set_exception(error)
