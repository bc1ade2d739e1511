"""What a kernel needs to go over many tensors in one launch: their addresses, and which program has which part."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from etude.nn.packed import copy_single_threaded


@functools.lru_cache(maxsize=16)  # parameters without a gradient are left out, so that sets of them may take turns
def cut(sizes: tuple[int, ...], block: int, device: torch.device) -> Tensor:
    """(3, C) int32: of each program its tensor, its number in that, and how many of `block` elements it has."""
    each = np.array([-(-size // block) for size in sizes], dtype=np.int64)
    tensor = np.repeat(np.arange(len(sizes)), each)
    number = np.arange(each.sum()) - np.repeat(np.cumsum(each) - each, each)
    left = np.minimum(np.array(sizes, dtype=np.int64)[tensor] - number * block, block)
    return sent(np.stack([tensor, number, left]).astype(np.int32), device)


def sent(values: np.ndarray, device: torch.device) -> Tensor:
    """On the device without a wait. Pinned memory is new each time: torch keeps it until the copy is done."""
    return copy_single_threaded(torch.from_numpy(values), device.type == "cuda").to(device, non_blocking=True)
