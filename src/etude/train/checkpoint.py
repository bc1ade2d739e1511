"""Checkpoints of safetensors and JSON, complete or absent.

A checkpoint is written to a hidden folder, flushed to disk, and renamed into place: whenever the process dies, a folder
named `step-000…` is complete. `state.json` is written last and lists every file with its length and hash; loading
checks both. No pickle is involved.

Format 1 had BLAKE2b hashes of whole files, format 2 has hashes by pieces (train/piece_hash.py), format 3 is written by
runs in shards (train/sharded_checkpoint.py); all are read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any  # the values of JSON

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from etude.errors import UserError, explain_write_failure
from etude.train.piece_hash import PieceHash, hash_pieces

FORMAT = 2
SHARDS = 3  # as format 2, but tensors lie in parts, one of each rank (train/sharded_checkpoint.py)
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
    finish_folder(writing, step, {}, groups, state, FORMAT)


def finish_folder(
    writing: Path,
    step: int,
    parts: Mapping[str, Mapping[str, Any]],
    groups: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    version: int,
) -> None:
    """Write a file for each group of tensors beside the parts that are there, then the state, which lists them all."""
    files = dict(parts)
    for name, tensors in groups.items():
        path = writing / f"{name}.safetensors"
        save_file({key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}, path)
        allow_reading(path)
        hashing = PieceHash(path)  # from the page cache, while the disk writes
        flush(path)
        files[path.name] = {"bytes": hashing.size, PIECES: hashing.result()}
    content: dict[str, Any] = {"format": version, "step": step, "files": files, "state": dict(state)}
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
    # a copy that someone put beside them, as `step-000000001000-backup`, is none of them
    names = (re.fullmatch(r"step-(\d{12,})", path.name) for path in folder.iterdir())
    return sorted(int(name[1]) for name in names if name)


def load(
    folder: Path, step: int, only: Collection[str] | None = None
) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Return the tensors of each group and the state, after checking every file's length and hash.

    `only` names the groups to read; all if None.
    """
    target = folder / f"step-{step:012d}"
    content = verify(folder, step)
    parts: dict[str, dict[str, Tensor]] = {}
    if content.get("format") == SHARDS:
        from etude.train.checkpoint_parts import join_parts  # torch's machinery takes a second to load

        parts = join_parts(target, only)
    names = [name for name in list_whole(content) if only is None or Path(name).stem in only]
    return parts | load_files(target, names), content["state"]


def load_files(target: Path, names: Iterable[str]) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of files of a checkpoint, each a group."""
    groups: dict[str, dict[str, Tensor]] = {}
    for name in names:
        path = target / name
        with safe_open(path, framework="pt") as file:
            groups[path.stem] = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    return groups


def verify(folder: Path, step: int, first: int = 0, every: int = 1) -> dict[str, Any]:
    """Check the state and every file of a checkpoint, and return the content of its state.json.

    With `first` and `every`, only some files are hashed: each of several ranks checks others.
    """
    target, content = folder / f"step-{step:012d}", read_state(folder, step)
    advice = _advise(target)
    files = {str(name): (int(entry["bytes"]), _read_hash(entry)) for name, entry in content["files"].items()}
    foreign = sorted(path.name for path in target.glob("*.safetensors") if path.name not in files)
    if foreign and content.get("format") == SHARDS:  # every part in the folder would be read
        raise UserError(f"{target / foreign[0]} is no part of this checkpoint: remove it. {advice}")
    for number, (name, (length, (kind, expected))) in enumerate(files.items()):
        path = target / name
        if not path.is_file():
            raise UserError(f"The checkpoint file {path} is damaged: it is missing. {advice}")
        compute = hash_pieces if kind == PIECES else hash_file
        is_mine = number % every == first
        if path.stat().st_size != length or (is_mine and compute(path) != expected):
            raise UserError(
                f"The checkpoint file {path} is damaged: its length or hash differs from what was written. {advice}"
            )
    return content


def list_whole(content: Mapping[str, Any]) -> list[str]:
    """Return the files of a checkpoint that hold a group each, from its state; without the parts of single ranks."""
    is_sharded = content.get("format") == SHARDS
    return [name for name in content["files"] if not (is_sharded and name.startswith("shard-"))]  # torch's name


def _advise(target: Path) -> str:
    return f"Remove {target} to resume from the checkpoint before it."


def read_state(folder: Path, step: int) -> dict[str, Any]:
    """Return the content of a checkpoint's state.json, after checking its own hash."""
    target = folder / f"step-{step:012d}"
    advice = _advise(target)
    try:
        content: dict[str, Any] = json.loads((target / "state.json").read_text(encoding="utf-8"))
        files = {str(name): (int(entry["bytes"]), _read_hash(entry)) for name, entry in content["files"].items()}
        state = content["state"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"The checkpoint {target} cannot be read: {error!r}. {advice}") from error
    digest = content.pop(WHOLE, None)  # checkpoints of earlier versions have none
    is_altered = not content.keys() <= {"format", "step", "files", "state"}  # a changed name of the hash is none, too
    is_altered = is_altered or (digest is not None and digest != _hash_content(content))
    if is_altered or not isinstance(state, dict) or any(Path(name).name != name for name in files):
        raise UserError(f"{target / 'state.json'} is damaged: its hash differs from what was written. {advice}")
    return content


def _read_hash(entry: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name and the value of a file's hash; KeyError where there is none."""
    kind = PIECES if PIECES in entry else WHOLE
    return kind, str(entry[kind])


def _hash_content(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def prune(folder: Path, keep: int, best: int | None, every: int | None = None) -> None:
    """Remove all but the last `keep` checkpoints and the best, and what killed writers left behind.

    With `every`, the steps between two checkpoints of the run, one that an interruption left goes as soon as another
    follows: those that stay, and are averaged, are then those of a run that nobody interrupted.
    """
    remove_leftovers(folder)
    steps = list_steps(folder)
    extra = [] if every is None else [step for step in steps[:-1] if _is_extra(folder, step, every)]
    for step in [*extra, *[step for step in steps if step not in extra][: -max(1, keep)]]:
        if step != best:
            # renamed first, so that a kill in the middle of the removal leaves no half a checkpoint
            aside = folder / f".old-{step}"
            os.rename(folder / f"step-{step:012d}", aside)
            shutil.rmtree(aside, ignore_errors=True)


def _is_extra(folder: Path, step: int, every: int) -> bool:
    """Whether only an interruption can have saved this step: it was not due, nor the best evaluation by then."""
    if every and step % every == 0:
        return False
    try:
        return bool(read_state(folder, step)["state"].get("best_step") != step)
    except UserError:  # damaged: whoever reads it will say so
        return False


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


def allow_reading(path: Path) -> None:
    """Give a file of safetensors, which makes them for their owner alone, the permissions of any new file."""
    mask = os.umask(0o077)  # there is no way to ask for it; what another thread makes meanwhile is the owner's
    os.umask(mask)
    with contextlib.suppress(OSError):  # a file system without permissions
        path.chmod(0o666 & ~mask)


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
