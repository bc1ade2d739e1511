"""The cache of this machine for remote corpora: where it lies, and how large it may get."""

from __future__ import annotations

import os
from pathlib import Path

from etude.errors import UserError

FOLDER, LIMIT = "ETUDE_CACHE", "ETUDE_CACHE_GB"  # environment variables
DEFAULT_GB = 50.0


def cache_folder() -> Path:
    """$ETUDE_CACHE, or etude in the cache folder of the user."""
    named = os.environ.get(FOLDER)
    if named:
        return Path(named).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "etude"


def cache_bytes() -> int:
    """$ETUDE_CACHE_GB in bytes: the most that shards of remote corpora take on this machine."""
    text = os.environ.get(LIMIT)
    try:
        size = float(text) if text else DEFAULT_GB
    except ValueError:
        size = 0.0
    if not 0 < size < 1e9:
        raise UserError(f"{LIMIT}={text} is no size: give gigabytes, such as {LIMIT}=50.")
    return int(size * 1e9)
