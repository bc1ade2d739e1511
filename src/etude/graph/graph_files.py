"""The files of a graph folder: a manifest, and raw arrays that are mapped when first read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, NotRequired

import numpy as np
from pydantic import Field
from typing_extensions import TypedDict  # that of Python 3.11 cannot be checked

from etude.errors import UserError
from etude.text.checked_files import ALWAYS_HASHED, FileEntry, check_file, load_manifest
from etude.text.corpus.manifest import SourceFileEntry

FORMAT, VERSION = "etude graph", 1
DTYPES = {"u8": "u1", "i32": "<i4", "i64": "<i8", "f32": "<f4"}
_SUFFIXES = {"letters": "u8", "bounds": "i64", "triples": "i32", "weights": "f32"}  # of all others i32 or i64
FileName = Annotated[str, Field(pattern="^[a-z_]{1,40}\\.[a-z_]{1,40}\\.(?:u8|i32|i64|f32)$")]  # inside the folder
REQUIRED = (
    *(f"{kind}.{part}" for kind in ("entities", "relations") for part in ("letters", "bounds", "order")),
    *(f"{kind}.{part}" for kind in ("outgoing", "incoming") for part in ("bounds", "neighbours", "relations")),
    "train.triples",
)
SUFFIXES = {np.dtype(dtype): suffix for suffix, dtype in DTYPES.items()}


class FindingEntry(TypedDict):
    """Something doubtful: how often, and where first."""

    count: int
    first: NotRequired[str]  # file:line
    name: NotRequired[str]


class GraphReport(TypedDict):
    """What is counted while a graph is prepared."""

    triples: dict[str, int]  # by split
    entities: int
    relations: int
    duplicates: FindingEntry
    self_loops: FindingEntry
    self_loops_dropped: bool
    leaks: FindingEntry  # held-out triples that are in train too
    unseen_entities: FindingEntry
    unseen_relations: FindingEntry
    unseen_triples: dict[str, int]  # held out, with a name that no train triple has
    unseen_dropped: bool
    skipped: dict[str, int]  # by reason
    labelled: int  # entities with a label
    entity_rows: int
    dangling: FindingEntry  # rows of entities that are in no triple
    max_degree: int
    max_degree_entity: str
    top_relations: list[list[str | int]]  # most frequent first, train triples


class GraphManifest(TypedDict):
    """What `manifest.json` of a graph holds."""

    format: str
    version: int
    fingerprint: str
    files: dict[FileName, FileEntry]
    settings: NotRequired[dict[str, object]]
    sources: NotRequired[list[SourceFileEntry]]
    report: NotRequired[GraphReport]  # of a graph that was prepared from files


def read_manifest(folder: Path) -> GraphManifest:
    """Read and check the manifest of a graph folder."""
    manifest = load_manifest(folder, GraphManifest, "graph", VERSION, "etude prepare TRIPLES --graph")
    names = {name.rpartition(".")[0]: name for name in manifest["files"]}
    missing = [name for name in REQUIRED if name not in names]
    if missing:
        raise UserError(f"{folder} is damaged: its manifest names no {missing[0]}. Prepare the graph again.")
    for name, file in names.items():
        suffix, expected = file.rpartition(".")[2], _SUFFIXES.get(name.partition(".")[2], "i32 i64")
        items = 3 if name.endswith(".triples") else 1
        if suffix not in expected or manifest["files"][file]["bytes"] % (items * np.dtype(DTYPES[suffix]).itemsize):
            raise UserError(f"{folder / file} is damaged: it is no array of {name}. Prepare the graph again.")
    return manifest


class MappedArrays(Mapping[str, np.ndarray]):
    """The arrays in a folder by name, each mapped into memory when first read."""

    def __init__(self, folder: Path, entries: Mapping[str, FileEntry], verify: bool | None) -> None:
        self.folder, self.files = folder, {name.rpartition(".")[0]: name for name in entries}
        self.arrays: dict[str, np.ndarray] = {}
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
