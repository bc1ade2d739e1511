"""Checksums of a finished run: length and SHA-256 of the files it is used by, checked whenever it is opened.

A disk that fails flips bits without a word: weights with one wrong exponent load, answer and are exported. So the last
thing written to a finished run is `checksums.json`. It covers weights, configuration, recipe, tokenizer, task and
whatever else the model reads; not the model card, the log, exports or checkpoints, which change or have their own.
A folder without the file (of an earlier version, or put together by hand) is opened as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from etude.text.checked_files import hash_file
from etude.text.run_checksums import CHECKSUMS, FORMAT
from etude.train import checkpoint

SKIPPED_FILES = frozenset({CHECKSUMS, "README.md", "metrics.jsonl"})
SKIPPED_FOLDERS = frozenset({"checkpoints", "export", "tensorboard"})


def write_checksums(folder: Path) -> None:
    """Write the checksums of a run whose files are all there."""
    files = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": hash_file(path)}
        for path in _list_files(folder)
    }
    content = {"format": FORMAT, "files": files}
    checkpoint.write_text(folder / CHECKSUMS, json.dumps(content, indent=1, ensure_ascii=False))


def remove_checksums(folder: Path) -> None:
    """Remove them before files of a finished run are written again: none is better than wrong ones after a kill."""
    (folder / CHECKSUMS).unlink(missing_ok=True)


def _list_files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir() and path.name not in SKIPPED_FOLDERS:
            yield from _list_files(path)
        elif path.is_file() and path.name not in SKIPPED_FILES:
            yield path
