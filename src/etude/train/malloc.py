"""Settings of the C allocator that keep one step's memory for the next, for training on a CPU.

A step allocates some hundred MiB for its backward pass and frees them at its end. glibc returns such blocks to the
system, large ones at once and the rest when the top of its heap is free; so the next step meets pages that are not
mapped, and each costs a page fault: about as much time as a GELU takes to fill it. Kept, they are used again as they
are. The process then holds what its largest step held, until it ends.

On some processors (aarch64) torch brings mimalloc instead, which reads an environment variable when torch is loaded:
`configure_mimalloc` sets it as soon as Etude is imported. Whoever imports torch first sets MIMALLOC_PURGE_DELAY=-1
themselves: a small BERT trains at 2,830 tokens a second with it, at 2,550 without (two cores). Other allocators (macOS,
musl) are left as they are.
"""

from __future__ import annotations

import ctypes
import os
import sys

# The parameters of mallopt in malloc.h: from which size on a block is a mapping of its own, and how much free memory at
# the top of the heap is returned. Setting either ends glibc's own adjusting of both.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_HIGHEST = 2**31 - 1  # an int
_HIGHEST_MAPPED = 2**25  # the maximum of older versions, where their own adjusting ends, too


def configure_mimalloc() -> None:
    """Make mimalloc keep freed memory: it returns it after so many milliseconds, and never if that is -1."""
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", "-1")


def keep_freed_memory() -> bool:
    """Make malloc keep freed memory from now on; return False where there is no glibc."""
    if sys.platform != "linux":
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version") or not hasattr(library, "mallopt"):
        return False
    mapped = library.mallopt(_MMAP_THRESHOLD, _HIGHEST) or library.mallopt(_MMAP_THRESHOLD, _HIGHEST_MAPPED)
    return bool(library.mallopt(_TRIM_THRESHOLD, _HIGHEST) and mapped)
