"""Command lines run within the test's process, and what a command may leave behind on a failing disk."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest

LEFTOVERS = (".writing", ".creating-", ".old-", ".part", ".new", ".partial")
TIMED = ("seconds", "date", "metrics.jsonl", "README.md", "trainer")  # differ between two equal runs


@dataclass(frozen=True)
class Outcome:
    code: int
    message: str  # stderr


def run_command(*words: str | Path) -> Outcome:
    """Run a command line here; an exception that the command line does not answer comes out as it is."""
    from etude.cli.main import main

    errors, code = io.StringIO(), 0
    with (
        mock.patch.object(sys, "argv", ["etude", *map(str, words)]),
        contextlib.redirect_stderr(errors),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    return Outcome(code, errors.getvalue())


@contextlib.contextmanager
def mounted_disk(folder: Path, size: str = "64m", options: str = "") -> Iterator[Path]:
    """A disk of its own at `folder`; skips the test where this process may not mount one."""
    folder.mkdir(exist_ok=True)
    values = f"size={size}" + (f",{options}" if options else "")
    if sys.platform != "linux" or os.geteuid() or _call("mount", "-t", "tmpfs", "-o", values, "tmpfs", str(folder)):
        pytest.skip("a full or read-only disk needs the right to mount one (root on Linux)")
    try:
        yield folder
    finally:
        _call("umount", "-l", str(folder))


def resize_disk(folder: Path, size: str) -> None:
    assert not _call("mount", "-o", f"remount,size={size}", str(folder))


def make_read_only(folder: Path) -> None:
    assert not _call("mount", "-o", "remount,ro", str(folder))


def _call(*words: str) -> int:
    return subprocess.run(words, capture_output=True).returncode


def free_bytes(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def list_leftovers(folder: Path) -> list[str]:
    """Files and folders that a writer puts aside and has to remove."""
    names = (str(path.relative_to(folder)) for path in folder.rglob("*"))
    return sorted(name for name in names if any(mark in Path(name).name for mark in LEFTOVERS))


def hash_files(folder: Path, *patterns: str) -> dict[str, str]:
    """SHA-256 of files by their relative names."""
    files = sorted(path for pattern in patterns for path in folder.glob(pattern) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
