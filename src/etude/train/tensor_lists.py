"""Tables for kernels that process many tensors in one launch: chunks of tensors, copied to the device."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from etude.nn.packed import copy_single_threaded


@functools.lru_cache(maxsize=16)  # parameters without a gradient are left out, so several sets may alternate
def split_into_chunks(sizes: tuple[int, ...], block: int, device: torch.device) -> Tensor:
    """Return (3, C) int32: the tensor of each chunk, the chunk's index within it, and its number of elements."""
    chunk_counts = np.array([-(-size // block) for size in sizes], dtype=np.int64)
    tensor = np.repeat(np.arange(len(sizes)), chunk_counts)
    index = np.arange(chunk_counts.sum()) - np.repeat(np.cumsum(chunk_counts) - chunk_counts, chunk_counts)
    elements = np.minimum(np.array(sizes, dtype=np.int64)[tensor] - index * block, block)
    return copy_to_device(np.stack([tensor, index, elements]).astype(np.int32), device)


def copy_to_device(values: np.ndarray, device: torch.device) -> Tensor:
    """Copy without synchronising. The pinned buffer is new each time: torch keeps it alive until the copy is done."""
    return copy_single_threaded(torch.from_numpy(values), device.type == "cuda").to(device, non_blocking=True)
