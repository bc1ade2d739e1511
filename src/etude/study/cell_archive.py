"""Cells as one small file: scores, outcomes and curves travel, weights stay.

A study may be the sum of many short visits to other machines. `export_cells` writes every cell that is done (and every
failure that would repeat itself, no other) into a zip; `import_cells` puts them into another folder, where they are
done. The archive is data of somebody else: each file is named in its manifest with length and SHA-256, names are built
here from checked keys and never taken from the archive, arrays are read without pickle, and nothing is written before
all of it was checked. A cell that is there already stays; one that no plan knows is kept for the study that will. Where
another version of the code trained a model again, the later one counts, and what was scored on the earlier does not.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np

from etude.errors import UserError
from etude.settings import check_values
from etude.study.cells import (
    ERROR,
    PRETRAININGS,
    RESULT,
    SCORED,
    CellStore,
    Kind,
    StoredFailure,
    StoredResult,
    flush_files,
    repeats_itself,
)
from etude.study.execute import OUTCOME
from etude.study.folder_checksums import write_cell_checksums
from etude.study.registration import check_registrations, merge_registrations
from etude.study.study_folder import MACHINE, REGISTRATIONS
from etude.study.text_source import hash_json
from etude.tasks.outcomes import STATISTICS
from etude.train import checkpoint

FORMAT, VERSION = "etude cells", 2
MANIFEST = "manifest.json"
AGAIN = "Export it again."
HASH_BYTES = 64  # of SHA-256, in letters
KEY = re.compile(r"[0-9a-f]{32}")
MAX_BYTES = {RESULT: 64 << 20, OUTCOME: 1 << 30, ERROR: 1 << 20, MANIFEST: 64 << 20}
MODELS = (*PRETRAININGS, "untrained")  # cells whose weights others start from, and code decides
STUDY_FILES = (MACHINE, REGISTRATIONS)  # device and speeds that plans were made with; the date of the claims


@dataclass(frozen=True)
class ImportReport:
    added: int
    present: int  # were there already
    failures: int  # among the added
    keys: frozenset[str]  # of all cells of the archive that count
    ignored: int = 0  # failures of a machine, which earlier versions exported
    outdated: int = 0  # of here or there: scored on weights that another version of the code trained again

    def __str__(self) -> str:
        failed = f" ({self.failures} of them failures)" if self.failures else ""
        several = "s that may not repeat themselves were" if self.ignored > 1 else " that may not repeat itself was"
        ignored = f", {self.ignored} failure{several} left out" if self.ignored else ""
        outdated = f", {self.outdated} of weights that were trained again later do not count" if self.outdated else ""
        return f"{self.added} cells imported{failed}, {self.present} were there already{ignored}{outdated}"


def export_cells(store: CellStore, path: Path, study_folder: Path) -> int:
    """Write all finished cells of a store into a zip, whole or not at all; returns how many."""
    entries: dict[str, bytes] = {}
    cells: dict[str, dict[str, dict[str, Any]]] = {}
    for key, names, folder in _list_cells(store):
        contents = {name: (folder / name).read_bytes() for name in names}
        cells[key] = {name: _describe(content) for name, content in contents.items()}
        entries |= {f"cells/{key}/{name}": content for name, content in contents.items()}
    context = {
        name: json.loads((study_folder / name).read_text(encoding="utf-8"))
        for name in STUDY_FILES
        if (study_folder / name).is_file()
    }
    manifest = {"format": FORMAT, "version": VERSION, "cells": cells, "context": context}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            archive.writestr(MANIFEST, json.dumps(manifest))
            for name, content in entries.items():
                archive.writestr(name, content)
            archive.comment = b"0" * HASH_BYTES  # the last bytes of the file
        sign_archive(temporary)
        checkpoint.flush(temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return len(cells)


def refuse_loss(store: CellStore, path: Path) -> None:
    """Raise UserError where an export would replace a file with cells that are not here, or with something else."""
    if not path.exists():
        return
    try:
        cells, _ = _read_archive(path)
    except UserError:
        raise UserError(
            f"{path} exists already, and is no archive of cells that can be read. Name another with --export-cells."
        ) from None
    outdated = _compare_weights(store, cells).there
    missing = [
        key for key, files in cells.items() if RESULT in files and key not in outdated and store.state(key) != "done"
    ]
    if missing:
        raise UserError(
            f"{path} exists already, and holds {len(missing)} finished cells that are not here. Take them along with "
            f"--import-cells {path}, or name another with --export-cells."
        )


def sign_archive(path: Path) -> None:
    """Put the hash of all bytes before it into the comment of an archive, which stands at its end."""
    with path.open("r+b") as file:
        digest = _hash_head(path)
        file.seek(-HASH_BYTES, os.SEEK_END)
        file.write(digest)


def _hash_head(path: Path) -> bytes:
    """SHA-256, in letters, of a file without its last 64 bytes."""
    digest, left = hashlib.sha256(), path.stat().st_size - HASH_BYTES
    with path.open("rb") as file:
        while left > 0 and (block := file.read(min(left, 1 << 20))):
            digest.update(block)
            left -= len(block)
    return digest.hexdigest().encode()


def _check_hash(path: Path) -> None:
    """Raise UserError where an archive has no hash of itself, or another: CRCs leave its tables uncovered."""
    with path.open("rb") as file:
        file.seek(-min(HASH_BYTES, path.stat().st_size), os.SEEK_END)
        if file.read() != _hash_head(path):
            raise UserError(f"{path} is not an archive of cells, or was changed or cut off. Copy or export it again.")


def _list_cells(store: CellStore) -> Iterator[tuple[str, list[str], Path]]:
    """Yield key, files and folder of every cell that is done or failed."""
    for folder in sorted(store.folder.iterdir()) if store.folder.is_dir() else []:
        key = folder.name.removesuffix(".failed")
        if not KEY.fullmatch(key):
            continue
        if folder.name == key and (folder / RESULT).is_file():
            yield key, [name for name in (RESULT, OUTCOME) if (folder / name).is_file()], folder
        elif folder.name != key and (folder / ERROR).is_file() and store.state(key) == "failed":
            yield key, [ERROR], folder


def _describe(content: bytes) -> dict[str, Any]:
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


# --- import -----------------------------------------------------------------------------------------


def import_cells(store: CellStore, path: Path, study_folder: Path) -> ImportReport:
    """Check an archive and put its cells into a store; raises UserError and writes nothing if anything is wrong."""
    archived, context = _read_archive(path)
    counted = {key: files for key, files in archived.items() if ERROR not in files or _counts(files[ERROR])}
    outdated = _compare_weights(store, counted)
    cells = {key: files for key, files in counted.items() if key not in outdated.there}
    store.folder.mkdir(parents=True, exist_ok=True)
    for key in outdated.here:
        store.forget(key)
    added = present = failures = 0
    for key, files in cells.items():
        if store.state(key) == "done" or (ERROR in files and store.state(key) == "failed"):
            present += 1
            continue
        _place_cell(store, key, files)
        added += 1
        failures += ERROR in files
    if MACHINE in context and not (study_folder / MACHINE).exists():
        checkpoint.write_text(study_folder / MACHINE, json.dumps(context[MACHINE], indent=1, ensure_ascii=False))
    merge_registrations(study_folder, context.get(REGISTRATIONS, {}))
    ignored = len(archived) - len(counted)
    return ImportReport(added, present, failures, frozenset(cells), ignored, len(outdated.here) + len(outdated.there))


def _counts(failure: bytes) -> bool:
    """Whether a failure of an archive is one that would repeat itself."""
    return repeats_itself(json.loads(failure.decode("utf-8")))


class _Outdated(NamedTuple):
    here: set[str]
    there: set[str]  # in the archive


def _compare_weights(store: CellStore, archived: Mapping[str, Mapping[str, bytes]]) -> _Outdated:
    """Find models that two versions of the code trained under one key, and list the cells of the one that gives way.

    That is the earlier one, with all that was scored on it before the later one was trained, here as there: a visit
    that was broken off has not scored everything again. Weights that lie here are not given up for a later model.
    """
    outdated, there = _Outdated(set(), set()), _read_results(archived)
    models = [key for key, result in there.items() if result["kind"] in MODELS and store.state(key) == "done"]
    changed = [key for key in models if _describe_version(store.result(key)) != _describe_version(there[key])]
    here = {key: store.result(key) for key in store.list_keys()} if changed else {}
    for model in changed:
        later = max(_read_date(here[model]), _read_date(there[model]))
        keeps_weights = _read_date(here[model]) < later and store.has_run(model)
        is_kept = keeps_weights or _read_date(here[model]) == later
        (outdated.there if is_kept else outdated.here).add(model)
        sides = [(there, outdated.there)] if keeps_weights else [(there, outdated.there), (here, outdated.here)]
        starts = [model]
        for start in starts:  # grows: a student of other weights has transfers of its own
            for results, listed in sides:
                of_other = [key for key in results if (_read_date(results[key]) < later) != keeps_weights]
                gone = {key for key in of_other if _starts_from(key, results[key], start)}
                starts += [key for key in gone if results[key].get("kind") in MODELS and key not in starts]
                listed |= gone
    return outdated


def _read_results(archived: Mapping[str, Mapping[str, bytes]]) -> dict[str, dict[str, Any]]:
    return {key: json.loads(files[RESULT].decode("utf-8")) for key, files in archived.items() if RESULT in files}


def _read_date(result: Mapping[str, Any]) -> str:
    return str(result.get("date", ""))


def _describe_version(result: Mapping[str, Any]) -> tuple[object, object]:
    return result.get("code"), result.get("versions")


def _starts_from(key: str, result: Mapping[str, Any], model: str) -> bool:
    """Whether a cell starts from a model: its key is a hash of that key (plan_cells.py), of a student with torch."""
    torch = re.search("torch ([^,]+)", str(result.get("versions")))
    origins = ([model], [model, torch[1]] if torch else [])
    return any(hash_json([result.get("settings_key"), result.get("code"), origin]) == key for origin in origins)


def _place_cell(store: CellStore, key: str, files: dict[str, bytes]) -> None:
    """Write a cell aside and rename it: complete or absent."""
    target = store.failure_folder(key) if ERROR in files else store.result_folder(key)
    aside = store.folder / f".{key}.import"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    for name, content in files.items():
        (aside / name).write_bytes(content)
    write_cell_checksums(aside)
    flush_files(aside)
    shutil.rmtree(target, ignore_errors=True)
    os.rename(aside, target)
    if target == store.result_folder(key):
        shutil.rmtree(store.failure_folder(key), ignore_errors=True)


def _read_archive(path: Path) -> tuple[dict[str, dict[str, bytes]], dict[str, dict[str, Any]]]:
    """Read and check all cells of an archive, and the study's files that came with them."""
    try:
        _check_hash(path)
        with zipfile.ZipFile(path) as archive:
            manifest = _parse_manifest(path, _read_entry(archive, MANIFEST, MAX_BYTES[MANIFEST]))
            cells: dict[str, dict[str, dict[str, Any]]] = manifest["cells"]
            expected = [MANIFEST, *(f"cells/{key}/{name}" for key, files in cells.items() for name in files)]
            if sorted(archive.namelist()) != sorted(expected):
                raise UserError(
                    f"{path}: the archive does not hold the files that its manifest names. Export it again."
                )
            checked: dict[str, dict[str, bytes]] = {}
            for key, files in cells.items():
                contents = {name: _read_entry(archive, f"cells/{key}/{name}", MAX_BYTES[name]) for name in files}
                for name, content in contents.items():
                    if _describe(content) != files[name]:
                        raise UserError(f"{path}: cells/{key}/{name} was changed or cut off. Copy or export it again.")
                _check_cell(path, key, contents)
                checked[key] = contents
            return checked, manifest["context"]
    except FileNotFoundError:
        raise UserError(f"There is no file {path}. --export-cells writes one.") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        raise UserError(f"{path} is not an archive of cells, or was cut off: {error}.") from None


def _read_entry(archive: zipfile.ZipFile, name: str, limit: int) -> bytes:
    try:
        size = archive.getinfo(name).file_size
    except KeyError:
        raise UserError(f"{archive.filename} holds no {name}: it is not an archive of cells.") from None
    if size > limit:
        raise UserError(f"{archive.filename}: {name} has {size:,} bytes, more than any cell.")
    with archive.open(name) as file:
        content = file.read(limit + 1)
    if len(content) != size:
        raise UserError(f"{archive.filename}: {name} is longer than it says.")
    return content


def _parse_manifest(path: Path, content: bytes) -> dict[str, Any]:
    manifest = _parse_json(path, MANIFEST, content)
    if manifest.get("format") != FORMAT or manifest.get("version") != VERSION:
        raise UserError(f"{path} is not an archive of cells of this version ({FORMAT} {VERSION}).")
    cells, context = manifest.get("cells"), manifest.get("context")
    if not isinstance(cells, dict) or not isinstance(context, dict) or not set(context) <= set(STUDY_FILES):
        raise UserError(f"{path}: the manifest lists no cells.")
    allowed = ({RESULT}, {RESULT, OUTCOME}, {ERROR})
    for key, files in cells.items():
        if not KEY.fullmatch(key) or not isinstance(files, dict) or set(files) not in allowed:
            raise UserError(f"{path}: '{key}' is no cell with its files.")
    if not all(isinstance(values, dict) for values in context.values()):
        raise UserError(f"{path}: the manifest holds files of a study that are none.")
    if REGISTRATIONS in context:
        context[REGISTRATIONS] = check_registrations(context[REGISTRATIONS], f"{path}: {REGISTRATIONS}")
    return manifest


def _parse_json(path: Path, name: str, content: bytes) -> dict[str, Any]:
    try:
        values = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError):
        raise UserError(f"{path}: {name} is not JSON.") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: {name} holds no named values.")
    return values


def _check_cell(path: Path, key: str, contents: dict[str, bytes]) -> None:
    """Check that a result has what reports read, and an outcome the shape that its result says."""
    if ERROR in contents:
        name = f"cells/{key}/{ERROR}"
        check_values(_parse_json(path, name, contents[ERROR]), StoredFailure, f"{path}: {name}", AGAIN)
        return
    name = f"cells/{key}/{RESULT}"
    result = _parse_json(path, name, contents[RESULT])
    is_scored = result.get("kind") in SCORED
    numbers = ("step", "tokens", "flops", "seconds", *(("value", "dev", "examples") if is_scored else ()))
    if result.get("kind") not in get_args(Kind) or not all(
        isinstance(result.get(one), (int, float)) for one in numbers
    ):
        raise UserError(f"{path}: {name} is no result of a cell.")
    check_values(result, StoredResult, f"{path}: {name}", AGAIN)  # a store refuses another with every report
    if is_scored != (OUTCOME in contents) or (is_scored and result.get("how") not in STATISTICS):
        raise UserError(f"{path}: {name} and its outcome do not fit each other.")
    if not is_scored:
        if not isinstance(result.get("valid"), dict) or not isinstance(result.get("curve"), list):
            raise UserError(f"{path}: {name} has no curve.")
        return
    try:
        parts = np.lib.format.read_array(io.BytesIO(contents[OUTCOME]), allow_pickle=False)
    except (ValueError, EOFError, SyntaxError, TypeError, OverflowError, tokenize.TokenError) as error:
        raise UserError(f"{path}: cells/{key}/{OUTCOME} is no array of numbers: {error}.") from None
    if parts.dtype != np.float64 or parts.ndim != 2 or len(parts) != result["examples"] or not np.isfinite(parts).all():
        raise UserError(f"{path}: cells/{key}/{OUTCOME} is not a table of {result['examples']} examples.")
