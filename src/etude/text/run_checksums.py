"""Checking the files of a run against its `checksums.json`, which runs/checksums.py writes.

It stands this low because vectors of entities are read from a run without opening it (graph/entity_table.py).
"""

from __future__ import annotations

import json
from pathlib import Path

from etude.errors import UserError
from etude.text.checked_files import hash_file

CHECKSUMS = "checksums.json"
FORMAT = "etude checksums"
ADVICE = f"Take it from a copy, or train again; if you changed it yourself, remove {CHECKSUMS}."


def verify_checksums(folder: Path) -> int | None:
    """Check every file of a run and return how many there are; None where the run has no checksums."""
    path = folder / CHECKSUMS
    if not path.is_file():
        return None
    files = _read_entries(path)
    for name, (length, digest) in files.items():
        file = folder / name
        if not file.is_file():
            raise UserError(f"{file} is missing from the run. {ADVICE}")
        size = file.stat().st_size
        if size != length:
            kind = "truncated" if size < length else "altered"
            raise UserError(f"{file} is {kind}: {size:,} bytes, {CHECKSUMS} says {length:,}. {ADVICE}")
        if hash_file(file) != digest:
            raise UserError(f"{file} was altered: its SHA-256 is not the one in {CHECKSUMS}. {ADVICE}")
    return len(files)


def _read_entries(path: Path) -> dict[str, tuple[int, str]]:
    """Read {name: (bytes, sha256)}; names stay inside the folder."""
    damaged = UserError(f"{path} is damaged. {ADVICE}")
    try:
        content = json.loads(path.read_bytes())
        if content["format"] != FORMAT:
            raise ValueError(content["format"])
        files = content["files"].items()
        entries = {str(name): (int(entry["bytes"]), str(entry["sha256"])) for name, entry in files}
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        raise damaged from None
    if any(Path(name).is_absolute() or ".." in Path(name).parts for name in entries):
        raise damaged
    return entries
