"""Checksums of a cell, a study and a pick: length and SHA-256 of the files that are read again.

A flipped bit in `result.json` or `outcome.npy` is another score, and nothing else would notice. The file has the format
of a run's `checksums.json` (runs/checksums.py), and is written last. Folders without it, of earlier versions, are read
as they are; reports and tables are for people, and are not covered.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from etude.errors import UserError
from etude.text.checked_files import hash_file
from etude.text.run_checksums import CHECKSUMS, FORMAT, verify_checksums
from etude.train import checkpoint


def write_cell_checksums(folder: Path) -> None:
    """Write the checksums of all files that lie directly in a cell; its run has its own."""
    write_checksums(folder, (path.name for path in folder.iterdir() if path.is_file() and path.name[0] != "."))


def write_checksums(folder: Path, names: Iterable[str]) -> None:
    """Write the checksums of the named files, of those that are there."""
    paths = {name: folder / name for name in sorted(set(names) - {CHECKSUMS}) if (folder / name).is_file()}
    files = {name: {"bytes": path.stat().st_size, "sha256": hash_file(path)} for name, path in paths.items()}
    checkpoint.write_text(folder / CHECKSUMS, json.dumps({"format": FORMAT, "files": files}, indent=1))


def verify_cell(folder: Path) -> int | None:
    """Check a cell and return how many files have a hash; None of a cell without checksums."""
    try:
        return verify_checksums(folder)
    except UserError as error:
        raise UserError(f"{error} Or remove {folder}: the cell runs again.") from None


def open_for_writing(folder: Path) -> None:
    """Check the files of a finished study or pick, and remove its checksums: work goes on in it."""
    if verify_checksums(folder) is not None:
        (folder / CHECKSUMS).unlink(missing_ok=True)
