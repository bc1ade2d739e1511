"""Checkpoints of safetensors and JSON, complete or absent.

A checkpoint is written to a hidden folder, flushed to disk, and renamed into place: whenever the process dies, a folder
named `step-000…` is complete. `state.json` is written last and lists every file with its length and hash; loading
checks both. No pickle is involved.

Format 1 had BLAKE2b hashes of whole files, format 2 has hashes by pieces (train/piece_hash.py); both are read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any  # the values of JSON

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from etude.errors import UserError, explain_write_failure
from etude.train.piece_hash import PieceHash, hash_pieces

FORMAT = 2
PIECES, WHOLE = "sha256_pieces", "blake2b"  # the names of a file's hash in formats 2 and 1


def save(folder: Path, step: int, groups: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> Path:
    """Write checkpoint `step` under `folder`: one safetensors file for each group of tensors, and the state.

    A disk that refuses it raises WriteError; what was written so far is removed, the checkpoints before stay.
    """
    target = folder / f"step-{step:012d}"
    writing = folder / f".writing-{step:012d}-{os.getpid()}"
    try:
        with explain_write_failure(target):
            _write_checkpoint(folder, writing, step, groups, state)
            rename_into_place(writing, target)
    except BaseException:
        shutil.rmtree(writing, ignore_errors=True)
        raise
    return target


def _write_checkpoint(
    folder: Path, writing: Path, step: int, groups: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]
) -> None:
    folder.mkdir(exist_ok=True)
    shutil.rmtree(writing, ignore_errors=True)
    writing.mkdir()
    files = {}
    for name, tensors in groups.items():
        path = writing / f"{name}.safetensors"
        save_file({key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}, path)
        hashing = PieceHash(path)  # from the page cache, while the disk writes
        flush(path)
        files[path.name] = {"bytes": hashing.size, PIECES: hashing.result()}
    content: dict[str, Any] = {"format": FORMAT, "step": step, "files": files, "state": dict(state)}
    content[WHOLE] = _hash_content(content)  # of everything else in this file
    write_text(writing / "state.json", json.dumps(content, indent=1))
    flush(writing)


def rename_into_place(writing: Path, target: Path) -> None:
    """Rename a finished folder to its name; an older one of the same name is moved aside first."""
    if target.exists():
        aside = target.with_name(f".old-{target.name}-{os.getpid()}")
        os.rename(target, aside)
        os.rename(writing, target)
        shutil.rmtree(aside, ignore_errors=True)
    else:
        os.rename(writing, target)
    flush(target.parent)


def list_steps(folder: Path) -> list[int]:
    """Return the steps of all complete checkpoints, ascending."""
    if not folder.is_dir():
        return []
    return sorted(int(path.name[5:]) for path in folder.iterdir() if path.name.startswith("step-"))


def load(folder: Path, step: int) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Return the tensors of each group and the state, after checking every file's length and hash."""
    target = folder / f"step-{step:012d}"
    content = verify(folder, step)
    groups: dict[str, dict[str, Tensor]] = {}
    for name in content["files"]:
        path = target / name
        with safe_open(path, framework="pt") as file:
            groups[path.stem] = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    return groups, content["state"]


def verify(folder: Path, step: int) -> dict[str, Any]:
    """Check the state and every file of a checkpoint, and return the content of its state.json."""
    target = folder / f"step-{step:012d}"
    advice = f"Remove {target} to resume from the checkpoint before it."
    try:
        content: dict[str, Any] = json.loads((target / "state.json").read_text(encoding="utf-8"))
        files = {str(name): (int(entry["bytes"]), _read_hash(entry)) for name, entry in content["files"].items()}
        state = content["state"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"The checkpoint {target} cannot be read: {error!r}. {advice}") from error
    digest = content.pop(WHOLE, None)  # checkpoints of earlier versions have none
    is_altered = not content.keys() <= {"format", "step", "files", "state"}  # a changed name of the hash is none, too
    is_altered = is_altered or (digest is not None and digest != _hash_content(content))
    if is_altered or not isinstance(state, dict) or any(Path(name).name != name for name in files):
        raise UserError(f"{target / 'state.json'} is damaged: its hash differs from what was written. {advice}")
    for name, (length, (kind, expected)) in files.items():
        path = target / name
        compute = hash_pieces if kind == PIECES else hash_file
        if not path.is_file() or path.stat().st_size != length or compute(path) != expected:
            raise UserError(
                f"The checkpoint file {path} is damaged: its length or hash differs from what was written. {advice}"
            )
    return content


def _read_hash(entry: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name and the value of a file's hash; KeyError where there is none."""
    kind = PIECES if PIECES in entry else WHOLE
    return kind, str(entry[kind])


def _hash_content(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def prune(folder: Path, keep: int, best: int | None) -> None:
    """Remove all but the last `keep` checkpoints and the best, and what killed writers left behind."""
    remove_leftovers(folder)
    for step in list_steps(folder)[: -max(1, keep)]:
        if step != best:
            # renamed first, so that a kill in the middle of the removal leaves no half a checkpoint
            aside = folder / f".old-{step}"
            os.rename(folder / f"step-{step:012d}", aside)
            shutil.rmtree(aside, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Remove half-written and half-removed checkpoints of a writer that was killed; this process is the only writer."""
    for pattern in (".writing-*", ".old-*"):
        for path in folder.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)


def load_strictly(
    module: torch.nn.Module,
    tensors: Mapping[str, Tensor],
    source: str,
    place: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> None:
    """Copy tensors into a module; a missing, unexpected or misshapen one is an error that names it.

    `place` makes a tensor one that can be copied into the module's own, where that is in shards.
    """
    own = dict(module.state_dict())
    missing = sorted(set(own) - set(tensors))
    unexpected = sorted(set(tensors) - set(own))
    misshapen = [
        f"{name} {tuple(tensors[name].shape)} where {tuple(own[name].shape)} is expected"
        for name in own
        if name in tensors and tensors[name].shape != own[name].shape
    ]
    if missing or unexpected or misshapen:
        parts = [
            f"missing: {', '.join(missing)}" if missing else "",
            f"unexpected: {', '.join(unexpected)}" if unexpected else "",
            f"wrong shape: {'; '.join(misshapen)}" if misshapen else "",
        ]
        raise UserError(
            f"The weights in {source} do not fit the model. " + ". ".join(part for part in parts if part) + "."
        )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(tensors[name] if place is None else place(tensors[name], tensor))


def write_text(path: Path, text: str) -> None:
    """Write and flush one small file; readers never see half of it, as it is written aside and renamed."""
    aside = path.with_name(f".{path.name}.writing")
    try:
        with explain_write_failure(path):
            aside.write_text(text, encoding="utf-8")
            flush(aside)
            os.replace(aside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        raise


def flush(path: Path) -> None:
    """Force a file's content, or a folder's entries, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def hash_file(path: Path) -> str:
    """Return the BLAKE2b hash of a whole file, as checkpoints of format 1 have it."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
