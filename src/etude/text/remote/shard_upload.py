"""The shards of a corpus on their way to a store: sent in a thread while the next ones are written.

A file of a full shard is removed from this machine when it has arrived and a commit says that it is complete: so a
process may die at any moment, and the disk never holds more than a few shards.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from etude.text.checked_files import MANIFEST
from etude.text.remote.storage import Storage
from etude.text.remote.urls import join_url

PENDING_SHARDS = 2  # that wait to be sent: a store slower than the work slows it down


class ShardUpload:
    """Sends the files of full shards of all splits to the folder `url`."""

    def __init__(self, url: str, corpus: Path) -> None:
        self.url, self.corpus, self.storage = url, corpus, Storage(url)
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="etude-upload")
        self.slots = threading.BoundedSemaphore(PENDING_SHARDS)
        self.pending: list[tuple[list[Path], Future[None]]] = []
        self.is_begun = False

    def add(self, paths: Sequence[Path]) -> None:
        """Begin to send the files of a full shard; waits while too many are on their way."""
        self._raise_failure()
        files = [path for path in paths if path.exists()]  # what is not here was sent before the process died
        if not files:
            return
        self.slots.acquire()
        self.pending.append((files, self.thread.submit(self._send, files)))

    def release(self) -> None:
        """Remove the files that have arrived; the state on disk must know their shards."""
        self._raise_failure()
        for files, future in [entry for entry in self.pending if entry[1].done()]:
            future.result()
            for path in files:
                if ".entities." not in path.name:  # mentions are counted when all of them are there
                    path.unlink()
            self.pending.remove((files, future))

    def wait(self) -> None:
        """Wait until everything has arrived."""
        for _, future in self.pending:
            future.result()

    def send(self, path: Path) -> None:
        """Send one file now."""
        self._begin()
        self.storage.upload(path, self._url_of(path))

    def close(self) -> None:
        self.thread.shutdown(wait=False, cancel_futures=True)

    def _send(self, files: list[Path]) -> None:
        try:
            self._begin()
            for path in files:
                self.storage.upload(path, self._url_of(path))
        finally:
            self.slots.release()

    def _begin(self) -> None:
        """Remove the manifest of a corpus that is replaced: from now on it is absent until it is complete."""
        if not self.is_begun:
            self.storage.remove([join_url(self.url, MANIFEST)])
            self.is_begun = True

    def _url_of(self, path: Path) -> str:
        return join_url(self.url, *path.relative_to(self.corpus).parts)

    def _raise_failure(self) -> None:
        for _, future in self.pending:
            if future.done():
                future.result()
