"""The common norm of many tensors for a CUDA device: one kernel reads them, a second adds up what it found.

torch takes a norm of each tensor, in nine launches for GPT-2, and then one of those. Here a program takes one chunk of
one tensor, which it finds by its address, and one program adds up the squares of all chunks in float64, always in the
same order. Triton comes with torch where that is built for CUDA; only `train/optimizers.py` imports this file, and
only there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from etude.train.tensor_lists import cut, sent

BLOCK, WARPS = 4096, 4  # elements of a program's chunk
_LANES = 1024  # chunks that are added at a time


@triton.jit(do_not_specialize=["count"])
def _squares(addresses, chunks, sums, count, block: tl.constexpr, aligned: tl.constexpr):  # type: ignore[no-untyped-def]
    tensor = tl.load(chunks + tl.program_id(0))
    start = tl.load(chunks + count + tl.program_id(0)).to(tl.int64) * block
    left = tl.load(chunks + 2 * count + tl.program_id(0))
    values = tl.load(addresses + tensor).to(tl.pointer_type(tl.float32))
    if aligned:  # 16 bytes are then read by one instruction
        values = tl.multiple_of(values, 16)
    lane = tl.arange(0, block)
    # apart, for a mask that may end anywhere makes the compiler read number by number
    if left == block:
        value = tl.load(values + start + lane)
        tl.store(sums + tl.program_id(0), tl.sum(value * value, 0))
    else:
        value = tl.load(values + start + lane, mask=lane < left, other=0.0)
        tl.store(sums + tl.program_id(0), tl.sum(value * value, 0))


@triton.jit(do_not_specialize=["count"])
def _root(sums, out, count, lanes: tl.constexpr):  # type: ignore[no-untyped-def]
    total = tl.zeros([lanes], tl.float64)
    for first in range(0, count, lanes):
        place = first + tl.arange(0, lanes)
        total += tl.load(sums + place, mask=place < count, other=0.0).to(tl.float64)
    tl.store(out, tl.sqrt(tl.sum(total, 0)).to(tl.float32))


def length(tensors: Sequence[Tensor]) -> Tensor:
    """sqrt(sum of all squares), () float32, of float32 tensors that are contiguous and on one device."""
    device, sizes = tensors[0].device, tuple(tensor.numel() for tensor in tensors)
    addresses = np.array([tensor.data_ptr() for tensor in tensors], dtype=np.int64)
    chunks, out = cut(sizes, BLOCK, device), torch.empty((), dtype=torch.float32, device=device)
    count = chunks.shape[1]
    sums = torch.empty(count, dtype=torch.float32, device=device)
    with torch.cuda.device_of(out):  # Triton launches on the current device
        if count:
            aligned = not (addresses % 16).any()
            _squares[(count,)](sent(addresses, device), chunks, sums, count, BLOCK, aligned, num_warps=WARPS)
        _root[(1,)](sums, out, count, _LANES, num_warps=4)
    return out
