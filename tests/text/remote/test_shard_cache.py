"""The files of remote corpora on this machine: never more bytes than allowed, whoever fetches beside whom."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from etude.text.checked_files import FileEntry
from etude.text.remote import shard_cache
from etude.text.remote.shard_cache import Fetch, ShardCache


def entry_of(content: bytes) -> FileEntry:
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def put(cache: ShardCache, content: bytes) -> Path:
    return cache.get(entry_of(content), "s3://x", lambda start, stop: content[start:stop])


def held_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


@pytest.fixture
def beside() -> Iterator[list[threading.Thread]]:
    """Threads that a test starts: all have ended before the next one begins."""
    threads: list[threading.Thread] = []
    yield threads
    for thread in threads:
        thread.join()


def start_get(beside: list[threading.Thread], cache: ShardCache, content: bytes, fetch: Fetch) -> threading.Thread:
    thread = threading.Thread(target=cache.get, args=(entry_of(content), "s3://x", fetch))
    beside.append(thread)
    thread.start()
    return thread


def test_a_file_that_gets_its_name_while_room_is_made_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: list[threading.Thread]
) -> None:
    """A list of the folder holds the name of a file in flight; by the time it is looked at, the file has its own."""
    cache, main = ShardCache(tmp_path, 1000), threading.current_thread()
    put(cache, b"a" * 400)
    in_flight, listed, done_or_waiting = threading.Event(), threading.Event(), threading.Event()
    list_files, lock, rename = cache._list, cache._lock, Path.rename

    def list_and_let_the_other_go_on() -> list[tuple[float, int, Path]]:
        entries = list_files()
        if threading.current_thread() is main:
            listed.set()
            done_or_waiting.wait()
        return entries

    def note_lock(name: str) -> AbstractContextManager[None]:
        if listed.is_set() and threading.current_thread() is not main:
            done_or_waiting.set()
        return lock(name)

    def note_rename(self: Path, target: Path) -> Path:
        renamed = rename(self, target)
        if threading.current_thread() is not main:
            done_or_waiting.set()
        return renamed

    def fetch(start: int, stop: int) -> bytes:
        in_flight.set()
        listed.wait()
        return b"b" * (stop - start)

    monkeypatch.setattr(cache, "_list", list_and_let_the_other_go_on)
    monkeypatch.setattr(cache, "_lock", note_lock)
    monkeypatch.setattr(Path, "rename", note_rename)
    other = start_get(beside, cache, b"b" * 300, fetch)
    in_flight.wait()
    put(cache, b"c" * 400)
    other.join()
    assert held_bytes(tmp_path) == 700  # the a went: all three are more than allowed


def test_what_is_in_flight_is_waited_for_where_both_do_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: list[threading.Thread]
) -> None:
    cache, sizes = ShardCache(tmp_path, 1000), []
    in_flight, seen = threading.Event(), threading.Event()  # seen: the second waits for the first, or is beside it
    wait_for = shard_cache._wait_for

    def note_wait(path: Path) -> None:
        seen.set()
        wait_for(path)

    def fetch_first(start: int, stop: int) -> bytes:
        in_flight.set()
        seen.wait()
        sizes.append(held_bytes(tmp_path))
        return b"a" * (stop - start)

    def fetch_second(start: int, stop: int) -> bytes:
        seen.set()
        sizes.append(held_bytes(tmp_path))
        return b"b" * (stop - start)

    monkeypatch.setattr(shard_cache, "_wait_for", note_wait)
    first = start_get(beside, cache, b"a" * 600, fetch_first)
    in_flight.wait()
    second = start_get(beside, cache, b"b" * 500, fetch_second)
    first.join()
    second.join()
    assert sizes == [600, 500]
    assert [path.read_bytes() for path in tmp_path.iterdir() if not path.name.startswith(".")] == [b"b" * 500]


def test_a_process_that_is_forked_meanwhile_takes_no_lock_along(tmp_path: Path, beside: list[threading.Thread]) -> None:
    """Batches are built by forks of a process whose threads read ahead: these would wait for themselves for ever."""
    cache, in_flight, may_end = ShardCache(tmp_path, 1000), threading.Event(), threading.Event()

    def fetch(start: int, stop: int) -> bytes:
        in_flight.set()
        may_end.wait()
        return b"a" * (stop - start)

    thread = start_get(beside, cache, b"a" * 600, fetch)
    in_flight.wait()
    child_end, end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        os.read(child_end, 1)  # until the test is over
        os._exit(0)
    try:
        with contextlib.ExitStack() as stack:
            # as whoever waits for the file in flight has it open
            partial, *locks = (stack.enter_context(path.open()) for path in sorted(tmp_path.iterdir(), reverse=True))
            may_end.set()
            thread.join()
            for file in (partial, *locks):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError where it is still held
        assert len(locks) == 2
    finally:
        may_end.set()
        os.close(end)
        os.close(child_end)
        os.waitpid(child, 0)


def test_a_dead_process_leaves_no_room_taken(tmp_path: Path) -> None:
    cache = ShardCache(tmp_path, 1000)
    (tmp_path / f"{'a' * 64}-1-1.partial").write_bytes(b"x" * 900)
    content = b"y" * 500
    digest = hashlib.sha256(content).hexdigest()
    path = cache.get({"bytes": 500, "sha256": digest}, "s3://x", lambda start, stop: content[start:stop])
    assert path.read_bytes() == content and sorted(tmp_path.glob("*.partial")) == []
    path.write_bytes(b"z" * 500)  # a disk that lies is noticed where all is verified
    again = cache.get({"bytes": 500, "sha256": digest}, "s3://x", lambda start, stop: content[start:stop], verify=True)
    assert again.read_bytes() == content


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name says that its content was checked: a power failure must not leave other bytes under it."""
    events: list[str] = []
    rename, fsync = Path.rename, os.fsync

    def note_rename(self: Path, target: Path) -> Path:
        events.append("rename")
        return rename(self, target)

    def note_fsync(descriptor: int) -> None:
        events.append("fsync")
        fsync(descriptor)

    monkeypatch.setattr(Path, "rename", note_rename)
    monkeypatch.setattr(os, "fsync", note_fsync)
    digest = hashlib.sha256(b"y").hexdigest()
    ShardCache(tmp_path, 1000).get({"bytes": 1, "sha256": digest}, "s3://x", lambda start, stop: b"y")
    assert events == ["fsync", "rename"]
