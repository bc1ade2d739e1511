"""Files of remote corpora on this machine: named by their SHA-256, checked when they come, the oldest removed first.

Several processes may use one folder: a file is fetched by one of them while the others wait for it, room is made under
a lock, and a file that another process has mapped stays readable after it was removed. What a process that died was
fetching is removed by the next one that needs room; what a living one is fetching is waited for, where both do not fit.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from etude.errors import UserError, explain_write_failure
from etude.text.checked_files import FileEntry, hash_file

PARTIAL = ".partial"
ROOM_LOCK = ".lock-room"  # held by whoever adds a file, renames one, or removes some to make room
LOCKS = 64  # files that stand for all names: one lock a file would never be removed
Fetch = Callable[[int, int], bytes]  # the bytes start..stop
CHUNK = 1 << 23  # bytes a request


class ShardCache:
    """A folder of at most `limit` bytes."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit
        with explain_write_failure(folder, UserError):
            folder.mkdir(parents=True, exist_ok=True)

    def get(self, entry: FileEntry, url: str, fetch: Fetch, verify: bool = False) -> Path:
        """Return the path of a file with this hash, fetched if it is not here; UserError where it is another one.

        It may be removed by another process before it is opened: then ask again.
        """
        path = self.folder / entry["sha256"]
        if self._is_here(path, entry, verify):
            return path
        number = int(entry["sha256"][:8], 16) % LOCKS
        with self._lock(f".lock-{number}"):
            if self._is_here(path, entry, verify):  # another process had the lock before
                return path
            for is_last in (False, True):
                digest = self._fetch(path, entry["bytes"], fetch)
                if digest == entry["sha256"]:
                    return path
                if is_last:
                    raise UserError(
                        f"{url} was altered: its SHA-256 is not the one in the manifest. Prepare the corpus again."
                    )
        raise AssertionError("the last try returns or raises")

    def has(self, entry: FileEntry) -> bool:
        return (self.folder / entry["sha256"]).exists()

    def free_bytes(self) -> int:
        """How much fits before something has to go."""
        return self.limit - sum(size for _, size, _ in self._list())

    def _is_here(self, path: Path, entry: FileEntry, verify: bool) -> bool:
        try:
            is_whole = path.stat().st_size == entry["bytes"] and not (verify and hash_file(path) != entry["sha256"])
            if is_whole:
                os.utime(path)  # the last to be removed
            else:
                path.unlink()  # damaged on this disk
        except FileNotFoundError:
            return False
        return is_whole

    def _fetch(self, path: Path, size: int, fetch: Fetch) -> str:
        """Fetch a file; return its hash. It gets its name only if that is the hash."""
        partial = path.with_name(f"{path.name}-{os.getpid()}-{time.monotonic_ns()}{PARTIAL}")
        digest = hashlib.sha256()
        with explain_write_failure(partial):
            try:
                with contextlib.ExitStack() as stack:
                    with self._lock_room(size):  # whoever makes room sees the file with its mark, or not at all
                        file = stack.enter_context(partial.open("wb"))
                        stack.enter_context(_hold(file, fcntl.LOCK_EX))  # the mark of a living process
                        if size:
                            os.posix_fallocate(file.fileno(), 0, size)
                    for start in range(0, size, CHUNK):
                        data = fetch(start, min(size, start + CHUNK))
                        digest.update(data)
                        file.write(data)
                    file.flush()
                    if digest.hexdigest() == path.name:
                        os.fsync(file.fileno())  # its name says that it was checked, also when the power fails
                        with self._lock(ROOM_LOCK):  # so that no list of files misses it under both its names
                            partial.rename(path)
            finally:
                partial.unlink(missing_ok=True)
        return digest.hexdigest()

    @contextlib.contextmanager
    def _lock_room(self, size: int) -> Iterator[None]:
        """Hold the lock of the folder, with room for `size` bytes more."""
        while True:
            with self._lock(ROOM_LOCK):
                in_flight = self._make_room(size)
                if in_flight is None:
                    yield
                    return
            _wait_for(in_flight)

    def _make_room(self, size: int) -> Path | None:
        """Remove files until `size` bytes more fit: first what died processes left, then the longest unused.

        What is being fetched cannot be removed: where it leaves too little, return one of these files to wait for.
        """
        entries = self._list()
        in_flight = [entry for entry in entries if entry[2].name.endswith(PARTIAL) and _is_locked(entry[2])]
        if in_flight and sum(length for _, length, _ in in_flight) + size > self.limit:
            return in_flight[0][2]
        total = sum(length for _, length, _ in entries)
        for entry in sorted(entries, key=lambda entry: (not entry[2].name.endswith(PARTIAL), entry[0])):
            _, length, path = entry
            if entry not in in_flight and (path.name.endswith(PARTIAL) or total + size > self.limit):
                path.unlink(missing_ok=True)
                total -= length
        return None

    def _list(self) -> list[tuple[float, int, Path]]:
        """(time of last use, bytes, path) of each file."""
        entries = []
        with os.scandir(self.folder) as files:
            for entry in files:
                if not entry.name.startswith("."):
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat()
                        entries.append((status.st_mtime, status.st_size, Path(entry.path)))
        return entries

    @contextlib.contextmanager
    def _lock(self, name: str) -> Iterator[None]:
        path = self.folder / name
        with explain_write_failure(self.folder), path.open("w") as file, _hold(file, fcntl.LOCK_EX):
            yield


@contextlib.contextmanager
def _hold(file: IO[Any], operation: int) -> Iterator[None]:
    """Hold the lock of an open file, and give it up for all that have the file open by inheritance.

    To close it would not: a process that was forked meanwhile (those that build batches are) would hold it to its end.
    """
    fcntl.flock(file, operation)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


def _is_locked(path: Path) -> bool:
    """Whether the process that fetches a file is alive."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _wait_for(path: Path) -> None:
    """Wait until a file was fetched: whoever fetches it holds its lock, until it is renamed or given up."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file, _hold(file, fcntl.LOCK_SH):
        pass
