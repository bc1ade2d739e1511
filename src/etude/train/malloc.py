"""Memory of one step is kept for the next: for training on a CPU, where the C library's malloc hands it out.

A step takes some hundred MiB for what its backward pass needs, and gives them back at its end. glibc returns such
blocks to the system, large ones at once and the rest when the end of its heap is free; so the next step meets pages
that are not there, and each costs a visit to the kernel: about as much time as a GELU takes to fill it. Kept, they are
taken up again as they are. The process then holds what its largest step held, until it ends.

On some processors (aarch64) torch brings mimalloc along instead, which is told by a variable of the environment before
torch is loaded: `configure_mimalloc`, as soon as Etude is imported. Who imports torch first sets MIMALLOC_PURGE_DELAY=-1: a
small BERT trains at 2,830 tokens a second with it, at 2,550 without (two cores). Other allocators (macOS, musl) are
left as they are.
"""

from __future__ import annotations

import ctypes
import os
import sys

# What malloc.h calls them: from which size on a block is a mapping of its own, and how much free memory at the
# heap's end is given back. Setting either ends glibc's own adjusting of both.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_HIGHEST = 2**31 - 1  # an int
_HIGHEST_MAPPED = 2**25  # what older ones accept at most, and their own adjusting ends there


def configure_mimalloc() -> None:
    """The same for mimalloc: freed memory is given back after so many milliseconds, and never if that is -1."""
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", "-1")


def keep_freed_memory() -> bool:
    """From now on malloc keeps what is freed. False where there is no glibc to tell it to."""
    if sys.platform != "linux":
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version") or not hasattr(library, "mallopt"):
        return False
    mapped = library.mallopt(_MMAP_THRESHOLD, _HIGHEST) or library.mallopt(_MMAP_THRESHOLD, _HIGHEST_MAPPED)
    return bool(library.mallopt(_TRIM_THRESHOLD, _HIGHEST) and mapped)
