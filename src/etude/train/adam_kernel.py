"""A whole step of AdamW (Loshchilov & Hutter 2019, algorithm 2) for a CUDA device: all tensors of all groups at once.

A step is nothing but memory: p, g, m and v are read, p, m and v written, 28 bytes a parameter. torch's fused kernel
gets 3.4 of an H200's 4.8 TB/s, and where it divides gradients by a number (clipping) it writes them back, too: half a
gigabyte for GPT-2 that nobody reads. Here one launch covers everything: a program takes one chunk of one tensor, which
it finds by its address in a table.

Before it a small kernel does what there is to do for each tensor: it counts the step, and works out in float64 the
three numbers in which tensors differ. The count is the optimiser's own state on the device and is kept nowhere else,
so that a state that was loaded, or a step that was left out because its gradients were not finite, need no word to the
host and no wait for the device.

Results repeat to the bit: every number is worked out by itself. Triton comes with torch where that is built for CUDA;
only `train/optimizers.py` imports this file, and only there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from etude.train.tensor_lists import cut, sent

BLOCK = 1024  # elements of a program's chunk
WARPS = 4  # 8 elements a thread: loads of 128 bytes under way, few enough registers for 9 programs a multiprocessor

_LANES = 128  # tensors of a program that counts
# Rows of the table that the host sends: five addresses, then two numbers as the bits of a float64
_ROWS = 7


@triton.jit(do_not_specialize=["count"])
def _count(table, plan, found, count, guarded: tl.constexpr, lanes: tl.constexpr):  # type: ignore[no-untyped-def]
    """One more step for every tensor; to `plan` (3, T) what it decays by, its rate, and what the root takes."""
    tensor = tl.program_id(0) * lanes + tl.arange(0, lanes)
    inside = tensor < count
    address = tl.load(table + 4 * count + tensor, mask=inside, other=0).to(tl.pointer_type(tl.float32))
    rate = tl.load(table + 5 * count + tensor, mask=inside, other=0).to(tl.float64, bitcast=True)
    decay = tl.load(table + 6 * count + tensor, mask=inside, other=0).to(tl.float64, bitcast=True)
    first_log = tl.load(table + 7 * count).to(tl.float64, bitcast=True)
    second_log = tl.load(table + 7 * count + 1).to(tl.float64, bitcast=True)
    before = tl.load(address, mask=inside, other=0.0)
    step = before + 1.0
    stopped = tl.load(found) if guarded else 0.0
    tl.store(address, tl.where(stopped == 0.0, step, before), mask=inside)
    first = 1.0 - tl.exp2(step.to(tl.float64) * first_log)
    second = 1.0 - tl.exp2(step.to(tl.float64) * second_log)
    tl.store(plan + tensor, (rate * decay).to(tl.float32), mask=inside)
    tl.store(plan + count + tensor, (rate / first).to(tl.float32), mask=inside)
    tl.store(plan + 2 * count + tensor, (1.0 / tl.sqrt(second)).to(tl.float32), mask=inside)


@triton.jit
def _move(  # type: ignore[no-untyped-def]
    parameters, gradients, means, squares, inside, fade, rate, root, inverse, first, second, epsilon,
    scaled: tl.constexpr,
):  # fmt: skip
    """A chunk, from addresses of its elements; `inside` is None where all of them are the tensor's.

    In torch's order of operations; quotient and root are the hardware's quick ones, which are off by a bit or two in
    the update: rounded ones are three times the instructions. Nothing is read again before the cache has forgotten it:
    it need not be kept.
    """
    gradient = tl.load(gradients, mask=inside, eviction_policy="evict_first")
    mean = tl.load(means, mask=inside, eviction_policy="evict_first")
    square = tl.load(squares, mask=inside, eviction_policy="evict_first")
    parameter = tl.load(parameters, mask=inside, eviction_policy="evict_first")
    if scaled:
        gradient *= inverse
    parameter = tl.fma(-fade, parameter, parameter)
    mean = tl.fma(first, mean, (1.0 - first) * gradient)
    square = tl.fma(second, square, (1.0 - second) * (gradient * gradient))
    parameter -= rate * mean / (tl.sqrt(square) * root + epsilon)
    tl.store(means, mean, mask=inside)
    tl.store(squares, square, mask=inside)
    tl.store(parameters, parameter, mask=inside)


@triton.jit(do_not_specialize=["count", "chunk_count"])
def _step(  # type: ignore[no-untyped-def]
    table, plan, chunks, scale, found, count, chunk_count, first, second, epsilon,
    block: tl.constexpr, aligned: tl.constexpr, scaled: tl.constexpr, guarded: tl.constexpr,
):  # fmt: skip
    stopped = tl.load(found) != 0.0 if guarded else False
    if stopped:
        return
    tensor = tl.load(chunks + tl.program_id(0))
    start = tl.load(chunks + chunk_count + tl.program_id(0)).to(tl.int64) * block
    left = tl.load(chunks + 2 * chunk_count + tl.program_id(0))
    parameters = tl.load(table + tensor).to(tl.pointer_type(tl.float32))
    gradients = tl.load(table + count + tensor).to(tl.pointer_type(tl.float32))
    means = tl.load(table + 2 * count + tensor).to(tl.pointer_type(tl.float32))
    squares = tl.load(table + 3 * count + tensor).to(tl.pointer_type(tl.float32))
    if aligned:  # 16 bytes are then read by one instruction
        parameters = tl.multiple_of(parameters, 16)
        gradients = tl.multiple_of(gradients, 16)
        means = tl.multiple_of(means, 16)
        squares = tl.multiple_of(squares, 16)
    fade = tl.load(plan + tensor)
    rate = tl.load(plan + count + tensor)
    root = tl.load(plan + 2 * count + tensor)
    inverse = tl.div_rn(1.0, tl.load(scale)) if scaled else 1.0
    at = start + tl.arange(0, block)
    # apart, for a mask that may end anywhere makes the compiler read number by number
    if left == block:
        _move(
            parameters + at, gradients + at, means + at, squares + at, None, fade, rate, root, inverse, first, second,
            epsilon, scaled,
        )  # fmt: skip
    else:
        _move(
            parameters + at, gradients + at, means + at, squares + at, tl.arange(0, block) < left, fade, rate, root,
            inverse, first, second, epsilon, scaled,
        )  # fmt: skip


def _log(beta: float) -> float:
    """log2 of the float32 that the averages are made with: their correction must be that of the same number."""
    return math.log2(float(np.float32(beta))) if beta else -math.inf


def step(
    addresses: Sequence[Sequence[int]],
    sizes: Sequence[int],
    rates: Sequence[float],
    decays: Sequence[float],
    *,
    betas: tuple[float, float],
    epsilon: float,
    device: torch.device,
    scale: Tensor | None = None,
    found: Tensor | None = None,
) -> None:
    """One step for T tensors of float32, contiguous, all on `device`.

    `addresses` are five rows of T: parameters, gradients, exp_avg, exp_avg_sq and step, the last a float32 each.
    Gradients are divided by `scale`; where `found` is not 0 nothing is changed. Both lie on the device.
    """
    count = len(sizes)
    table = np.empty(_ROWS * count + 2, dtype=np.int64)
    table[: 5 * count] = [address for row in addresses for address in row]
    table[5 * count :].view(np.float64)[:] = [*rates, *decays, *map(_log, betas)]
    aligned = not (table[: 4 * count] % 16).any()  # all but always: an allocator gives round addresses
    on_device, chunks = sent(table, device), cut(tuple(sizes), BLOCK, device)
    plan = torch.empty(3 * count, dtype=torch.float32, device=device)
    guard, divisor = plan if found is None else found, plan if scale is None else scale
    with torch.cuda.device_of(plan):  # Triton launches on the current device
        _count[(triton.cdiv(count, _LANES),)](on_device, plan, guard, count, found is not None, _LANES, num_warps=4)
        if chunks.shape[1]:
            _step[(chunks.shape[1],)](
                on_device, plan, chunks, divisor, guard, count, chunks.shape[1], *betas, epsilon, BLOCK, aligned,
                scale is not None, found is not None, num_warps=WARPS,
            )  # fmt: skip
