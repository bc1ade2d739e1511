"""One pick at a time in a folder: two would write one journal, one store and one `best`."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from etude.errors import UserError, explain_write_failure

FILE = ".lock"


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder; UserError where another process has it.

    It is a lock of the process (lockf), which ends with it: flock would live on in the loaders of batches that it
    forked, and refuse the command that goes on after a kill.
    """
    with explain_write_failure(folder / FILE):
        lock = (folder / FILE).open("a")
    with lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # systems differ in which of the two it is
            raise UserError(
                f"{folder} is being worked on by another pick. Wait for it, or choose another folder with -o."
            ) from None
        yield
