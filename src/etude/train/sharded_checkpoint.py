"""Checkpoints of weights in shards: every rank writes its part, by torch.distributed.checkpoint into safetensors.

A checkpoint is a folder as in train/checkpoint.py, with the same promise, complete or absent: the parts are written to
a hidden folder and hashed by the ranks that wrote them; then the first rank writes `state.json`, which lists them, and
renames the folder. Each part says in its header which slice of which tensor it holds, so a checkpoint is read by any
number of ranks, in any mesh, or joined by one process. torch's own metadata file would be a pickle: this storage has
none, and only tensors are saved, so nothing is unpickled from disk.

Only runs in shards, and readers of their checkpoints, import this file.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any  # the values of JSON

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as load_state
from torch.distributed.checkpoint.state_dict_saver import save as save_state

from etude.errors import UserError, WriteError, explain_write_failure
from etude.train import checkpoint
from etude.train.checkpoint_parts import read_shapes
from etude.train.parallel import Ranks
from etude.train.piece_hash import PieceHash

Groups = Mapping[str, Mapping[str, Tensor]]


def save(
    folder: Path,
    step: int,
    groups: Groups,
    whole: Groups,
    state: Mapping[str, Any],
    ranks: Ranks,
    process_group: dist.ProcessGroup | None = None,
) -> None:
    """Write checkpoint `step`; all ranks call it. Tensors of `groups` may be in shards, those of `whole` are not.

    `process_group` is that of all ranks for the collectives here; None: the default one.
    """
    target, writing = folder / f"step-{step:012d}", folder / f".writing-{step:012d}-shards"
    problem: str | None = None
    try:
        with explain_write_failure(target):
            if ranks.is_first:
                folder.mkdir(exist_ok=True)
                shutil.rmtree(writing, ignore_errors=True)
                writing.mkdir()
    except (UserError, WriteError) as error:
        problem = str(error)
    _raise_together(problem, ranks, process_group=process_group)
    files = _write_parts(writing, target, groups, ranks, process_group)
    try:
        with explain_write_failure(target):
            if ranks.is_first:
                checkpoint.finish_folder(writing, step, files, whole, state, checkpoint.SHARDS)
                checkpoint.rename_into_place(writing, target)
    except (UserError, WriteError) as error:
        problem = str(error)
    if problem is not None:
        shutil.rmtree(writing, ignore_errors=True)
    _raise_together(problem, ranks, process_group=process_group)


def _write_parts(
    writing: Path, target: Path, groups: Groups, ranks: Ranks, process_group: dist.ProcessGroup | None
) -> dict[str, dict[str, Any]]:
    """Write and hash this rank's part; return the entries of all parts."""
    problem, entries = None, {}
    try:
        with explain_write_failure(target):
            try:
                save_state(
                    _flatten(groups),
                    storage_writer=HuggingFaceStorageWriter(str(writing), save_distributed=True),
                    process_group=process_group,
                )
            except CheckpointException as error:  # of some rank; torch raises it on all
                raise next(iter(error.failures.values()))[0] from error
            for path in sorted(writing.glob(f"shard-{ranks.rank + 1:05d}-*.safetensors")):
                hashing = PieceHash(path)
                checkpoint.flush(path)
                entries[path.name] = {"bytes": hashing.size, checkpoint.PIECES: hashing.result()}
    except (UserError, WriteError) as error:
        problem = str(error)
    if problem is not None:
        shutil.rmtree(writing, ignore_errors=True)
    _raise_together(problem, ranks, process_group=process_group)
    return {name: entry for part in _exchange(entries, ranks, process_group) for name, entry in part.items()}


def is_sharded(folder: Path, step: int) -> bool:
    """Whether a checkpoint was written in parts; no file but its state is read."""
    return bool(checkpoint.read_state(folder, step).get("format") == checkpoint.SHARDS)


def load(folder: Path, step: int, groups: Groups, ranks: Ranks) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Read this rank's share of every tensor of `groups` in place; return what was saved as a whole, and the state.

    Each rank checks the hashes of some parts; a missing, damaged or unexpected one is refused on all ranks by name.
    """
    problem, content = None, {}
    try:
        content = checkpoint.verify(folder, step, ranks.rank, ranks.size)
    except UserError as error:
        problem = str(error)
    _raise_together(problem, ranks, UserError)
    target = folder / f"step-{step:012d}"
    own = _flatten(groups)
    reader = HuggingFaceStorageReader(str(target))
    _check_names(own, read_shapes(reader), target)
    load_state(own, storage_reader=reader)
    return checkpoint.load_files(target, checkpoint.list_whole(content)), content["state"]


def _flatten(groups: Groups) -> dict[str, Tensor]:
    return {f"{group}/{name}": tensor for group, tensors in groups.items() for name, tensor in tensors.items()}


def _check_names(own: Mapping[str, Tensor], saved: Mapping[str, TensorStorageMetadata], target: Path) -> None:
    """Raise UserError where the tensors of this run and of the checkpoint differ in names, shapes or dtypes."""
    problems = [
        *(f"{name} is missing" for name in sorted(own.keys() - saved.keys())),
        *(f"{name} is unexpected" for name in sorted(saved.keys() - own.keys())),
        *(
            f"{name} is {saved[name].properties.dtype} {tuple(saved[name].size)} where {tensor.dtype} "
            f"{tuple(tensor.shape)} is expected"
            for name, tensor in own.items()
            if name in saved and (saved[name].size, saved[name].properties.dtype) != (tensor.shape, tensor.dtype)
        ),
    ]
    if problems:
        more = f", and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise UserError(f"The checkpoint {target} does not fit this run: {'; '.join(problems[:5])}{more}.")


def _exchange(value: Any, ranks: Ranks, process_group: dist.ProcessGroup | None = None) -> list[Any]:
    """Return the values of all ranks; they are small, and never come from a disk."""
    values: list[Any] = [value] * ranks.size
    if ranks.size > 1:
        dist.all_gather_object(values, value, group=process_group)
    return values


def _raise_together(
    problem: str | None,
    ranks: Ranks,
    kind: type[UserError | WriteError] = WriteError,
    process_group: dist.ProcessGroup | None = None,
) -> None:
    """Raise the first problem of any rank on all of them, so that none waits for another."""
    first = next((text for text in _exchange(problem, ranks, process_group) if text is not None), None)
    if first is not None:
        raise kind(first)
