"""Gives freed memory back to the system.

The search for duplicates sorts some 30 MB of hashes at a time. glibc keeps what such arrays leave behind, about 100 MB,
for the hours that the encoding of a large text takes.
"""

from __future__ import annotations

import contextlib
import ctypes


def return_freed_memory() -> None:
    """Return what the C allocator keeps for later; other allocators than glibc's are left as they are."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # TypeError: no libraries without a name (Windows)
        ctypes.CDLL(None).malloc_trim(0)
