"""Manifests, and the files that they vouch for by length and SHA-256. Of corpora, graphs and counts of words.

A manifest has a hash of itself, too: `sha256` is that of the same text without it. One writer and one reader know the
text, byte for byte, so a flipped bit is noticed wherever it is, also where the values would stay valid.
"""

from __future__ import annotations

import hashlib
import json
import os
import tokenize
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NotRequired

import numpy as np
from pydantic import Field
from typing_extensions import TypedDict  # that of Python 3.11 cannot be checked

from etude.errors import UserError, escape_path, quote_path
from etude.settings import Count, Shape, check_values

MANIFEST, SIGNATURE = "manifest.json", "sha256"
ALWAYS_HASHED = 1 << 25  # bytes, 32 MB: hashed in some hundredths of a second, so whenever they are opened


class FileEntry(TypedDict):
    """A file in a manifest."""

    bytes: Count
    sha256: NotRequired[Annotated[str, Field(pattern="^[0-9a-f]{64}$")]]  # not while the file is being written


def write_manifest(folder: Path, values: Mapping[str, object]) -> None:
    """Write the manifest of a folder, with a hash of itself; it has all of its text, or stays as it was."""
    write_atomically(folder / MANIFEST, format_manifest(values))


def format_manifest(values: Mapping[str, object]) -> str:
    """Return the text of a manifest, with a hash of itself."""
    digest = hashlib.sha256(_format_values(values).encode()).hexdigest()
    return _format_values({**values, SIGNATURE: digest})


def _format_values(values: Mapping[str, object]) -> str:
    return json.dumps(values, indent=1, ensure_ascii=False) + "\n"


def parse_manifest(path: Path, content: bytes, advice: str) -> dict[str, Any]:
    """Return the values of a manifest without its hash, which is checked. `advice` says what to do."""
    values = _parse_json(path, content, advice)
    _check_signature(path, values, content, advice)
    return values


def _parse_json(path: str | Path, content: bytes, advice: str) -> dict[str, Any]:
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        raise UserError(f"{path} is damaged: it is not JSON. {advice}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} is not the manifest of anything. {advice}")
    return values


def _check_signature(path: str | Path, values: dict[str, Any], content: bytes, advice: str) -> None:
    """Take the hash out of the values of a manifest, and check that they are written as they were."""
    if values.pop(SIGNATURE, None) is None:
        raise UserError(
            f"{path} has no {SIGNATURE} of itself: it was altered, or an earlier version wrote it. {advice}"
        )
    try:
        is_whole = format_manifest(values).encode() == content
    except (UnicodeEncodeError, RecursionError):
        is_whole = False
    if not is_whole:
        raise UserError(f"{path} was altered: it does not fit its own {SIGNATURE}. {advice}")


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that it has all of its text, or stays as it was."""
    temporary = path.with_name(path.name + ".new")
    with temporary.open("w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def load_manifest(folder: Path, shape: type[Shape], noun: str, version: int, command: str) -> Shape:
    """Read the manifest of a folder that holds a `noun` ("corpus", "graph"), checked against its shape.

    `command` is what makes one.
    """
    path = folder / MANIFEST
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        if folder.is_file():
            what = "it is a file"
        else:
            what = f"it has no {MANIFEST}" if folder.exists() else "there is no such folder"
        is_free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
        place = quote_path(folder) if is_free else "FOLDER"  # a preparation replaces no folder of another kind
        raise UserError(f"{folder} is not a {noun}: {what}. Make one with '{command} -o {place}'.") from None
    return check_manifest(content, str(path), shape, noun, version, command)


def check_manifest(content: bytes, path: str, shape: type[Shape], noun: str, version: int, command: str) -> Shape:
    """Check the content of a manifest against its hash and its shape; `path` is where it was read, or its URL."""
    advice = f"Prepare the {noun} again."
    manifest = _parse_json(path, content, advice)
    if manifest.get("format") != f"etude {noun}":
        raise UserError(f"{path} is not the manifest of a {noun}. Make one with '{command}'.")
    if manifest.get("version") != version:
        text = str(manifest.get("version"))[:20]
        raise UserError(f"{path} has format version {escape_path(text)}; this version of etude reads {version}.")
    _check_signature(path, manifest, content, advice)
    return check_values(manifest, shape, path, advice)


def check_file(path: Path, entry: FileEntry, hashing: bool, noun: str) -> None:
    """Check that a file has the length, and with `hashing` the SHA-256, that the manifest says."""
    try:
        length = path.stat().st_size
    except FileNotFoundError:
        raise UserError(f"{path} is missing from the {noun}. Prepare the {noun} again.") from None
    if length != entry["bytes"]:
        kind = "truncated" if length < entry["bytes"] else "altered"
        raise UserError(
            f"{path} is {kind}: {length} bytes, the manifest says {entry['bytes']}. Prepare the {noun} again."
        )
    if hashing and hash_file(path) != entry.get("sha256"):
        raise UserError(f"{path} was altered: its SHA-256 is not the one in the manifest. Prepare the {noun} again.")


def load_array(path: Path, advice: str) -> np.ndarray:
    """Load an .npy file; UserError where it is none, before a shape that its bytes do not hold is allocated."""
    try:
        return np.array(np.load(path, mmap_mode="r", allow_pickle=False))
    except FileNotFoundError:
        raise UserError(f"{path} is missing. {advice}") from None
    except (ValueError, EOFError, OSError, SyntaxError, TypeError, OverflowError, tokenize.TokenError):
        raise UserError(f"{path} is damaged: it is no array. {advice}") from None


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
