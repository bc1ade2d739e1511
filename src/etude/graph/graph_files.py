"""The files of a graph folder: a manifest, and raw arrays that are mapped when first read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NotRequired, TypedDict, cast

import numpy as np

from etude.errors import UserError
from etude.text.corpus.manifest import MANIFEST, FileEntry, check_file

FORMAT, VERSION = "etude graph", 1
ALWAYS_HASHED = 1 << 25  # bytes of a graph, 32 MB: hashed in some hundredths of a second
DTYPES = {"u8": "u1", "i32": "<i4", "i64": "<i8", "f32": "<f4"}
SUFFIXES = {np.dtype(dtype): suffix for suffix, dtype in DTYPES.items()}


class GraphManifest(TypedDict):
    """What `manifest.json` of a graph holds."""

    format: str
    version: int
    fingerprint: str
    files: dict[str, FileEntry]
    settings: NotRequired[dict[str, object]]


def read_manifest(folder: Path) -> GraphManifest:
    """Read and check the manifest of a graph folder."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        what = "there is no such folder" if not folder.exists() else f"it has no {MANIFEST}"
        raise UserError(
            f"{folder} is not a graph: {what}. Make one with 'etude prepare TRIPLES --graph -o {folder}'."
        ) from None
    except ValueError:
        raise UserError(f"{path} is damaged: it is not JSON. Prepare the graph again.") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise UserError(f"{path} is not the manifest of a graph. Make one with 'etude prepare TRIPLES --graph'.")
    if manifest.get("version") != VERSION:
        raise UserError(f"{path} has format version {manifest.get('version')}; this version of etude reads {VERSION}.")
    return cast("GraphManifest", manifest)


class MappedArrays(Mapping[str, np.ndarray]):
    """The arrays in a folder by name, each mapped into memory when first read."""

    def __init__(self, folder: Path, manifest: GraphManifest, verify: bool | None) -> None:
        self.folder, self.files = folder, {name.rpartition(".")[0]: name for name in manifest["files"]}
        self.arrays: dict[str, np.ndarray] = {}
        entries = manifest["files"]
        hashing = verify if verify is not None else sum(entry["bytes"] for entry in entries.values()) <= ALWAYS_HASHED
        for name, entry in entries.items():
            check_file(folder / name, entry, hashing)

    def __getitem__(self, name: str) -> np.ndarray:
        array = self.arrays.get(name)
        if array is None:
            path = self.folder / self.files[name]
            dtype = DTYPES[path.suffix[1:]]
            # numpy cannot map an empty file; as a plain array, a slice costs a fraction of a memmap object's
            empty = path.stat().st_size == 0
            array = np.zeros(0, dtype) if empty else np.asarray(np.memmap(path, dtype=dtype, mode="r"))
            array = self.arrays[name] = array.reshape(-1, 3) if name.endswith(".triples") else array
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)
