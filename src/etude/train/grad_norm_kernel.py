"""Triton kernels for the global norm of many tensors: one sums squares by chunk, a second adds up the sums.

torch computes a norm for each tensor, in nine launches for GPT-2, and then the norm of those. Here a program reads one
chunk of one tensor, found by its address, and a single program adds up the squares of all chunks in float64, always in
the same order. Triton comes with CUDA builds of torch; only `train/optimizers.py` imports this file, and only there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from etude.train.tensor_lists import copy_to_device, split_into_chunks

BLOCK, WARPS = 4096, 4  # elements of a program's chunk
_LANES = 1024  # chunk sums added at a time


@triton.jit(do_not_specialize=["count"])
def _sum_squares_kernel(addresses, chunks, sums, count, block: tl.constexpr, aligned: tl.constexpr):  # type: ignore[no-untyped-def]
    tensor = tl.load(chunks + tl.program_id(0))
    start = tl.load(chunks + count + tl.program_id(0)).to(tl.int64) * block
    left = tl.load(chunks + 2 * count + tl.program_id(0))
    values = tl.load(addresses + tensor).to(tl.pointer_type(tl.float32))
    if aligned:  # lets one instruction load 16 bytes
        values = tl.multiple_of(values, 16)
    lane = tl.arange(0, block)
    # two branches: with a mask that may end anywhere the compiler loads element by element
    if left == block:
        value = tl.load(values + start + lane)
        tl.store(sums + tl.program_id(0), tl.sum(value * value, 0))
    else:
        value = tl.load(values + start + lane, mask=lane < left, other=0.0)
        tl.store(sums + tl.program_id(0), tl.sum(value * value, 0))


@triton.jit(do_not_specialize=["count"])
def _norm_kernel(sums, norm, count, lanes: tl.constexpr):  # type: ignore[no-untyped-def]
    total = tl.zeros([lanes], tl.float64)
    for first in range(0, count, lanes):
        chunk = first + tl.arange(0, lanes)
        total += tl.load(sums + chunk, mask=chunk < count, other=0.0).to(tl.float64)
    tl.store(norm, tl.sqrt(tl.sum(total, 0)).to(tl.float32))


def total_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Return sqrt(sum of all squares), () float32, of contiguous float32 tensors on one device."""
    device, sizes = tensors[0].device, tuple(tensor.numel() for tensor in tensors)
    addresses = np.array([tensor.data_ptr() for tensor in tensors], dtype=np.int64)
    chunks, norm = split_into_chunks(sizes, BLOCK, device), torch.empty((), dtype=torch.float32, device=device)
    count = chunks.shape[1]
    sums = torch.empty(count, dtype=torch.float32, device=device)
    with torch.cuda.device_of(norm):  # Triton launches on the current device
        if count:
            aligned = not (addresses % 16).any()
            _sum_squares_kernel[(count,)](
                copy_to_device(addresses, device), chunks, sums, count, BLOCK, aligned, num_warps=WARPS
            )
        _norm_kernel[(1,)](sums, norm, count, _LANES, num_warps=4)
    return norm
