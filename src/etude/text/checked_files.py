"""Files that a manifest vouches for: their length and SHA-256, and the manifest itself. Of corpora and of graphs."""

from __future__ import annotations

import hashlib
import json
import tokenize
from pathlib import Path
from typing import Annotated, NotRequired

import numpy as np
from pydantic import Field
from typing_extensions import TypedDict  # that of Python 3.11 cannot be checked

from etude.errors import UserError, escape_path
from etude.settings import Count, Shape, check_values

MANIFEST = "manifest.json"
ALWAYS_HASHED = 1 << 25  # bytes, 32 MB: hashed in some hundredths of a second, so whenever they are opened


class FileEntry(TypedDict):
    """A file in a manifest."""

    bytes: Count
    sha256: NotRequired[Annotated[str, Field(pattern="^[0-9a-f]{64}$")]]  # not while the file is being written


def load_manifest(folder: Path, shape: type[Shape], noun: str, version: int, command: str) -> Shape:
    """Read the manifest of a folder that holds a `noun` ("corpus", "graph"), checked against its shape.

    `command` is what makes one.
    """
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        if folder.is_file():
            raise UserError(f"{folder} is not a {noun}: it is a file. Make one with '{command} -o FOLDER'.") from None
        what = "there is no such folder" if not folder.exists() else f"it has no {MANIFEST}"
        raise UserError(f"{folder} is not a {noun}: {what}. Make one with '{command} -o {folder}'.") from None
    except (ValueError, RecursionError):
        raise UserError(f"{path} is damaged: it is not JSON. Prepare the {noun} again.") from None
    if not isinstance(manifest, dict) or manifest.get("format") != f"etude {noun}":
        raise UserError(f"{path} is not the manifest of a {noun}. Make one with '{command}'.")
    if manifest.get("version") != version:
        text = str(manifest.get("version"))[:20]
        raise UserError(f"{path} has format version {escape_path(text)}; this version of etude reads {version}.")
    return check_values(manifest, shape, str(path), f"Prepare the {noun} again.")


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
