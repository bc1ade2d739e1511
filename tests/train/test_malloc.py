"""Freed memory is taken up again without a visit to the system."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from etude.train import malloc

SCRIPT = """
import resource, sys
import numpy as np
from etude.train import malloc

if sys.argv[1] == "keep":
    assert malloc.keep_freed_memory()
for repeat in range(6):
    if repeat == 1:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = [np.full(2**23, 1, np.uint8) for _ in range(8)]
    del held
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(mode: str) -> int:
    done = subprocess.run([sys.executable, "-c", SCRIPT, mode], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_memory_is_kept_between_steps() -> None:
    """In a process of its own: what is told to malloc stays so until the process ends."""
    if not (sys.platform == "linux" and platform.libc_ver()[0] == "glibc"):
        pytest.skip("no glibc here")
    plain, kept = faults("plain"), faults("keep")
    assert plain > 5 * 8 * 16, "else there is nothing to gain here"
    assert kept < plain / 10


def test_elsewhere_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not malloc.keep_freed_memory()


def test_mimalloc_is_told_unless_somebody_else_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MIMALLOC_PURGE_DELAY", raising=False)
    malloc.configure_mimalloc()
    assert os.environ["MIMALLOC_PURGE_DELAY"] == "-1"
    monkeypatch.setenv("MIMALLOC_PURGE_DELAY", "10")
    malloc.configure_mimalloc()
    assert os.environ["MIMALLOC_PURGE_DELAY"] == "10"


def test_mimalloc_is_told_before_torch_is_there() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "MIMALLOC_PURGE_DELAY"}
    code = "import etude, os, sys; print(os.environ['MIMALLOC_PURGE_DELAY'], 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == ["-1", "False"]
