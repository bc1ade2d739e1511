"""Memory that was freed goes back to the system."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
from pathlib import Path
from etude.text.prepare.freed_memory import return_freed_memory

def measure():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) / 1000  # MB

before = measure()
blocks = [bytes(100_000) for _ in range(1000)]  # on the heap, not mapped one by one
last = blocks.pop()  # keeps the top of the heap, so that nothing below it is returned
del blocks
kept = measure() - before
return_freed_memory()
print(kept, measure() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators are left as they are")
def test_freed_memory_goes_back_to_the_system() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    kept, left = map(float, done.stdout.split())
    assert kept > 50, "the allocator keeps it"
    assert left < 20
