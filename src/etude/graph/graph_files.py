"""The files of a graph folder: a manifest, and raw arrays that are mapped when first read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NotRequired, TypedDict, cast

import numpy as np

from etude.text.checked_files import ALWAYS_HASHED, FileEntry, check_file, load_manifest

FORMAT, VERSION = "etude graph", 1
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
    return cast("GraphManifest", load_manifest(folder, "graph", VERSION, "etude prepare TRIPLES --graph"))


class MappedArrays(Mapping[str, np.ndarray]):
    """The arrays in a folder by name, each mapped into memory when first read."""

    def __init__(self, folder: Path, manifest: GraphManifest, verify: bool | None) -> None:
        self.folder, self.files = folder, {name.rpartition(".")[0]: name for name in manifest["files"]}
        self.arrays: dict[str, np.ndarray] = {}
        entries = manifest["files"]
        hashing = verify if verify is not None else sum(entry["bytes"] for entry in entries.values()) <= ALWAYS_HASHED
        for name, entry in entries.items():
            check_file(folder / name, entry, hashing, "graph")

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
