"""Schema graphs of many texts: built in processes, shard by shard, and kept on disk as memory-mapped arrays.

    CACHE/<key>/manifest.json       what the graphs follow from, and the number of texts; written first
    CACHE/<key>/00012/*.npy         shard 12: the arrays of its graphs end to end, and their bounds
    CACHE/<key>/00012/shard.json    lengths and hashes of these files

The key is a hash of the concept graph, the settings and the texts, so another graph or another file of questions has a
folder of its own. A shard is written aside and renamed: after a kill, those that are there stay, and the rest is
built. What a shard holds follows from its texts alone, so the result is the same.
"""

from __future__ import annotations

import hashlib
import json
import logging
import multiprocessing
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np

from etude.cores import count_cores
from etude.errors import UserError
from etude.graph.path_kernel import compile_search
from etude.graph.schema_graphs import SchemaBuilder, SchemaGraph
from etude.text.checked_files import MANIFEST, parse_manifest, write_manifest

FORMAT = "etude schema graphs 1"
SHARD = "shard.json"
SHARD_TEXTS = 1024
COMPILE_TEXTS = 1024  # from so many on, the loops are compiled before processes are forked
PARTS = tuple(field.name for field in fields(SchemaGraph))
# the bounds of each array; those of the arrays of paths are the same
BOUNDS = {
    "concepts": "node_bounds", "roles": "node_bounds", "edges": "edge_bounds", "pairs": "pair_bounds",
    "path_pairs": "path_bounds", "path_nodes": "path_bounds", "path_relations": "path_bounds",
    "path_scores": "path_bounds",
}  # fmt: skip
LOG_SECONDS = 10.0

Texts = Sequence[tuple[str, str]]
Arrays = dict[str, np.ndarray]

log = logging.getLogger("etude")


class SchemaGraphs:
    """The schema graphs of some texts, by number; a slice of arrays, read when it is asked for."""

    def __init__(self, shards: Sequence[Arrays]) -> None:
        self.shards = shards
        self.size = sum(len(shard["node_bounds"]) - 1 for shard in shards)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, number: int) -> SchemaGraph:
        if not 0 <= number < self.size:
            raise IndexError(f"schema graph {number} of {self.size}")
        shard, within = self.shards[number // SHARD_TEXTS], number % SHARD_TEXTS
        return SchemaGraph(
            **{
                name: shard[name][shard[bounds][within] : shard[bounds][within + 1]]  # a view of the mapped file
                for name, bounds in BOUNDS.items()
            }
        )

    def __iter__(self) -> Iterator[SchemaGraph]:
        return (self[number] for number in range(self.size))


def build_schema_graphs(
    builder: SchemaBuilder, texts: Texts, cache: Path | None = None, processes: int | None = None
) -> SchemaGraphs:
    """The schema graphs of all texts, from `cache` where they are there; `processes` None: one a core."""
    starts = range(0, len(texts), SHARD_TEXTS)
    folder = None if cache is None else _open_folder(cache, builder, texts)
    shards: list[Arrays | None] = [
        None if folder is None else _read_shard(_shard_folder(folder, number)) for number in range(len(starts))
    ]
    missing = [number for number, shard in enumerate(shards) if shard is None]
    clock = time.monotonic()
    for done, (number, arrays) in enumerate(_build_shards(builder, texts, missing, folder, processes), 1):
        if folder is not None:
            arrays = _read_shard(_shard_folder(folder, number))
            if arrays is None:
                raise UserError(f"{_shard_folder(folder, number)} was written and cannot be read. Does the disk fail?")
        shards[number] = arrays
        if time.monotonic() - clock > LOG_SECONDS:
            clock = time.monotonic()
            log.info("schema graphs: %d of %d shards", len(shards) - len(missing) + done, len(shards))
    return SchemaGraphs([shard for shard in shards if shard is not None])


def join_graphs(graphs: Sequence[SchemaGraph]) -> Arrays:
    """The arrays of a shard: those of its graphs end to end, and the bounds of nodes, edges, pairs and paths."""
    arrays = {name: np.concatenate([getattr(graph, name) for graph in graphs]) for name in PARTS}
    for name, bounds in BOUNDS.items():
        arrays[bounds] = np.cumsum([0, *(len(getattr(graph, name)) for graph in graphs)]).astype(np.int64)
    return arrays


# --- processes --------------------------------------------------------------------------------------

_job: tuple[SchemaBuilder, Texts, Path | None] | None = None  # of a forked child: it has the graph already


def _build_shards(
    builder: SchemaBuilder, texts: Texts, numbers: Sequence[int], folder: Path | None, processes: int | None
) -> Iterable[tuple[int, Arrays | None]]:
    """(number, arrays) of shards in any order; with a folder they are written there, and arrays is None."""
    global _job
    count = min(len(numbers), processes or count_cores())
    _job = (builder, texts, folder)
    try:
        if count <= 1:
            yield from map(_build_shard, numbers)
            return
        # what children would each do again: index the names, compile the loops
        builder.build(texts[:1])
        if len(numbers) * SHARD_TEXTS > COMPILE_TEXTS:
            compile_search()
        with multiprocessing.get_context("fork").Pool(count) as pool:
            yield from pool.imap_unordered(_build_shard, numbers)
    finally:
        _job = None


def _build_shard(number: int) -> tuple[int, Arrays | None]:
    assert _job is not None
    builder, texts, folder = _job
    part = texts[number * SHARD_TEXTS : (number + 1) * SHARD_TEXTS]
    arrays = join_graphs(builder.build(part))
    if folder is None:
        return number, arrays
    _write_shard(_shard_folder(folder, number), arrays)
    return number, None


# --- files ------------------------------------------------------------------------------------------


def _shard_folder(folder: Path, number: int) -> Path:
    return folder / f"{number:05d}"


def _open_folder(cache: Path, builder: SchemaBuilder, texts: Texts) -> Path:
    """The folder of these texts, with its manifest; UserError where it is something else or cannot be written."""
    digest = hashlib.blake2b(builder.fingerprint.encode(), digest_size=16)
    for question, answer in texts:
        digest.update(json.dumps([question, answer]).encode())
    key = digest.hexdigest()
    folder = cache / key
    manifest = {
        "format": FORMAT,
        "graph": builder.graph.graph,
        "builder": builder.fingerprint,
        "texts": len(texts),
        "shard_texts": SHARD_TEXTS,
        "key": key,
    }
    path = folder / MANIFEST
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.is_file():
            write_manifest(folder, manifest)
    except OSError as error:
        raise UserError(
            f"{folder}: schema graphs cannot be written there ({error.strerror}). Set task.cache."
        ) from None
    advice = "Delete the folder: it is only a cache."
    if parse_manifest(path, path.read_bytes(), advice) != manifest:
        raise UserError(f"{path} is not of these schema graphs. {advice}")
    return folder


def _write_shard(folder: Path, arrays: Arrays) -> None:
    aside = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    hashes = {}
    for name, array in arrays.items():
        np.save(aside / f"{name}.npy", array, allow_pickle=False)
        hashes[f"{name}.npy"] = _hash(aside / f"{name}.npy")
    _write(aside / SHARD, json.dumps(hashes, indent=1).encode())
    try:
        os.rename(aside, folder)
    except OSError:  # another process was first, with the same content
        shutil.rmtree(aside, ignore_errors=True)


def _read_shard(folder: Path) -> Arrays | None:
    """The mapped arrays of a shard; None where it is not there, or not whole: then it is built again."""
    if not folder.exists():
        return None
    try:
        hashes: dict[str, str] = json.loads((folder / SHARD).read_bytes())
    except (ValueError, RecursionError, FileNotFoundError):
        hashes = {}
    if (
        not isinstance(hashes, dict)
        or sorted(hashes) != sorted(f"{name}.npy" for name in {*PARTS, *BOUNDS.values()})
        or any(not (folder / name).is_file() or _hash(folder / name) != value for name, value in hashes.items())
    ):
        log.warning("%s is damaged and is built again", folder)
        shutil.rmtree(folder)
        return None
    return {name.removesuffix(".npy"): _load(folder / name) for name in hashes}


def _load(path: Path) -> np.ndarray:
    array: np.ndarray = np.load(path, allow_pickle=False)
    if not array.size:
        return array  # nothing to map
    mapped: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    return mapped.view(np.ndarray)  # slices of np.memmap are slow to make


def _hash(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


def _write(path: Path, content: bytes) -> None:
    aside = path.with_name(f"{path.name}.{os.getpid()}.part")
    aside.write_bytes(content)
    os.rename(aside, path)
