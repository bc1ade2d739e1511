"""A remote file as a stream of bytes: fetched in blocks, the next one in a thread while this one is read."""

from __future__ import annotations

import io
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from etude.text.remote.storage import Storage

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

BLOCK = 1 << 22  # bytes a request: its round trip is a small part of its time
LEAST_BLOCK = 1 << 18
ALL_BLOCKS = 1 << 25  # bytes: sources of a mix are open at once, and share this in smaller and smaller requests


class RemoteFile(io.RawIOBase):
    """Reads a file of a store; seeks cost nothing until something is read."""

    def __init__(self, url: str, size: int, storage: Storage | None = None) -> None:
        self.url, self.size = url, size
        self.storage = storage or Storage(url)
        self.block_bytes = _choose_block()
        _open_files.add(self)
        self.place = 0
        self.number, self.block = -1, b""
        self.ahead: dict[int, Future[bytes]] = {}
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="etude-remote-file")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.place = max(0, {io.SEEK_SET: 0, io.SEEK_CUR: self.place, io.SEEK_END: self.size}[whence] + offset)
        return self.place

    def readinto(self, buffer: WriteableBuffer) -> int:
        target = memoryview(buffer).cast("B")
        if self.place >= self.size or not len(target):
            return 0
        number, inside = divmod(self.place, self.block_bytes)
        if number != self.number:
            self.block, self.number = self._load(number), number
        count = min(len(target), len(self.block) - inside)
        target[:count] = self.block[inside : inside + count]
        self.place += count
        return count

    def _load(self, number: int) -> bytes:
        is_sequential = number in (self.number + 1, 0)
        pending = self.ahead.pop(number, None)
        for other in self.ahead.values():
            other.cancel()
        self.ahead.clear()
        if is_sequential and (number + 1) * self.block_bytes < self.size:
            if pending is None:  # the first block comes before the second
                pending = self.thread.submit(self._fetch, number)
            self.ahead[number + 1] = self.thread.submit(self._fetch, number + 1)
        return pending.result() if pending is not None else self._fetch(number)

    def _fetch(self, number: int) -> bytes:
        return self.storage.read(self.url, number * self.block_bytes, min(self.size, (number + 1) * self.block_bytes))

    def close(self) -> None:
        if not self.closed:
            self.thread.shutdown(wait=False, cancel_futures=True)
            _open_files.discard(self)
            self.block = b""
        super().close()


_open_files: weakref.WeakSet[RemoteFile] = weakref.WeakSet()


def _choose_block() -> int:
    return max(min(LEAST_BLOCK, BLOCK), min(BLOCK, ALL_BLOCKS // (1 + len(_open_files))))
