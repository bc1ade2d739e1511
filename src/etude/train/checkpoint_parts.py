"""The parts of a checkpoint in shards, read by one process: each tensor is joined from the slices that ranks wrote.

Every part is a safetensors file whose header says which slice of which tensor it holds (train/sharded_checkpoint.py
writes them). Names are "group/tensor".
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as load_state

from etude.errors import UserError


def join_parts(target: Path, only: Collection[str] | None) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of all groups, or of those in `only`; the caller has checked the hashes of the parts."""
    reader = HuggingFaceStorageReader(str(target))
    shapes = {
        name: entry for name, entry in read_shapes(reader).items() if only is None or name.partition("/")[0] in only
    }
    _check_sizes(target, shapes)
    tensors = {name: torch.empty(entry.size, dtype=entry.properties.dtype) for name, entry in shapes.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this process reads alone
        load_state(dict(tensors), storage_reader=reader, no_dist=True)
    groups: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        group, _, inner = name.partition("/")
        groups.setdefault(group, {})[inner] = tensor
    return groups


def read_shapes(reader: HuggingFaceStorageReader) -> dict[str, TensorStorageMetadata]:
    """Return what the headers of all parts say, without the tensors that were saved as a whole."""
    entries = reader.read_metadata().state_dict_metadata
    return {name: entry for name, entry in entries.items() if "/" in name and isinstance(entry, TensorStorageMetadata)}


def _check_sizes(target: Path, shapes: Mapping[str, TensorStorageMetadata]) -> None:
    """Raise UserError where tensors would be larger than all files: before anything is allocated for them."""
    stored = sum(path.stat().st_size for path in target.glob("*.safetensors"))
    needed = sum(math.prod(entry.size) * entry.properties.dtype.itemsize for entry in shapes.values())
    if needed > stored:
        raise UserError(
            f"{target} is damaged: its tensors would have {needed:,} bytes, and its files have {stored:,}. "
            "Take an earlier checkpoint."
        )
