"""Triton kernel for a whole AdamW step (Loshchilov & Hutter 2019, algorithm 2): all tensors in one launch.

A step is bound by memory traffic: p, g, m and v are read, p, m and v are written, 28 bytes a parameter. torch's fused
kernel reaches 3.4 of an H200's 4.8 TB/s, and where it divides gradients by `grad_scale` (clipping) it also writes them
back: half a gigabyte for GPT-2 that nobody reads. Here one launch covers everything: a program updates one chunk of
one tensor, whose address it reads from a table.

A small kernel runs first, one lane a tensor: it increments the step and computes in float64 the three scalars that
differ between tensors. The step count is the optimiser state on the device and is stored nowhere else, so a loaded
state, or a step skipped because of a non-finite gradient, needs no synchronisation with the host.

Results are bitwise reproducible: no element depends on another. Triton comes with CUDA builds of torch; only
`train/optimizers.py` imports this file, and only there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from etude.train.tensor_lists import copy_to_device, split_into_chunks

BLOCK = 1024  # elements of a program's chunk
WARPS = 4  # 8 elements a thread: 128-byte loads in flight, few enough registers for 9 programs a multiprocessor

_LANES = 128  # tensors of one program of the scalar kernel
# Rows of the table copied from the host: five addresses, then lr and weight decay as the bits of a float64
_ROWS, _LR = 7, 5


@triton.jit(do_not_specialize=["count"])
def _scalars_kernel(table, lrs, scalars, found_inf, count, guarded: tl.constexpr, lanes: tl.constexpr):  # type: ignore[no-untyped-def]
    """Increment every tensor's step; write to `scalars` (3, T): lr * decay, lr / correction1, 1 / sqrt(correction2)."""
    tensor = tl.program_id(0) * lanes + tl.arange(0, lanes)
    inside = tensor < count
    address = tl.load(table + 4 * count + tensor, mask=inside, other=0).to(tl.pointer_type(tl.float32))
    lr = tl.load(lrs + tensor, mask=inside, other=0).to(tl.float64, bitcast=True)
    decay = tl.load(table + 6 * count + tensor, mask=inside, other=0).to(tl.float64, bitcast=True)
    log_beta1 = tl.load(table + 7 * count).to(tl.float64, bitcast=True)
    log_beta2 = tl.load(table + 7 * count + 1).to(tl.float64, bitcast=True)
    before = tl.load(address, mask=inside, other=0.0)
    step = before + 1.0
    skipped = tl.load(found_inf) if guarded else 0.0
    tl.store(address, tl.where(skipped == 0.0, step, before), mask=inside)
    correction1 = 1.0 - tl.exp2(step.to(tl.float64) * log_beta1)
    correction2 = 1.0 - tl.exp2(step.to(tl.float64) * log_beta2)
    tl.store(scalars + tensor, (lr * decay).to(tl.float32), mask=inside)
    tl.store(scalars + count + tensor, (lr / correction1).to(tl.float32), mask=inside)
    tl.store(scalars + 2 * count + tensor, (1.0 / tl.sqrt(correction2)).to(tl.float32), mask=inside)


@triton.jit
def _update_chunk(  # type: ignore[no-untyped-def]
    params, grads, exp_avgs, exp_avg_sqs, inside, decay, lr, inv_root, inv_scale, beta1, beta2, eps,
    scaled: tl.constexpr,
):  # fmt: skip
    """Update one chunk, given pointers to its elements; `inside` is None where the whole chunk belongs to the tensor.

    In torch's order of operations. Division and square root are the hardware's approximate ones, off by a bit or two
    in the update: correctly rounded ones take three times the instructions. Nothing is read again before the cache has
    evicted it, hence the eviction policy.
    """
    grad = tl.load(grads, mask=inside, eviction_policy="evict_first")
    exp_avg = tl.load(exp_avgs, mask=inside, eviction_policy="evict_first")
    exp_avg_sq = tl.load(exp_avg_sqs, mask=inside, eviction_policy="evict_first")
    param = tl.load(params, mask=inside, eviction_policy="evict_first")
    if scaled:
        grad *= inv_scale
    param = tl.fma(-decay, param, param)
    exp_avg = tl.fma(beta1, exp_avg, (1.0 - beta1) * grad)
    exp_avg_sq = tl.fma(beta2, exp_avg_sq, (1.0 - beta2) * (grad * grad))
    param -= lr * exp_avg / (tl.sqrt(exp_avg_sq) * inv_root + eps)
    tl.store(exp_avgs, exp_avg, mask=inside)
    tl.store(exp_avg_sqs, exp_avg_sq, mask=inside)
    tl.store(params, param, mask=inside)


@triton.jit(do_not_specialize=["count", "chunk_count"])
def _step_kernel(  # type: ignore[no-untyped-def]
    table, scalars, chunks, scale, found_inf, count, chunk_count, beta1, beta2, eps,
    block: tl.constexpr, aligned: tl.constexpr, scaled: tl.constexpr, guarded: tl.constexpr,
):  # fmt: skip
    skipped = tl.load(found_inf) != 0.0 if guarded else False
    if skipped:
        return
    tensor = tl.load(chunks + tl.program_id(0))
    start = tl.load(chunks + chunk_count + tl.program_id(0)).to(tl.int64) * block
    left = tl.load(chunks + 2 * chunk_count + tl.program_id(0))
    params = tl.load(table + tensor).to(tl.pointer_type(tl.float32))
    grads = tl.load(table + count + tensor).to(tl.pointer_type(tl.float32))
    exp_avgs = tl.load(table + 2 * count + tensor).to(tl.pointer_type(tl.float32))
    exp_avg_sqs = tl.load(table + 3 * count + tensor).to(tl.pointer_type(tl.float32))
    if aligned:  # lets one instruction load 16 bytes
        params = tl.multiple_of(params, 16)
        grads = tl.multiple_of(grads, 16)
        exp_avgs = tl.multiple_of(exp_avgs, 16)
        exp_avg_sqs = tl.multiple_of(exp_avg_sqs, 16)
    decay = tl.load(scalars + tensor)
    lr = tl.load(scalars + count + tensor)
    inv_root = tl.load(scalars + 2 * count + tensor)
    inv_scale = tl.div_rn(1.0, tl.load(scale)) if scaled else 1.0
    at = start + tl.arange(0, block)
    # two branches: with a mask that may end anywhere the compiler loads element by element
    if left == block:
        _update_chunk(
            params + at, grads + at, exp_avgs + at, exp_avg_sqs + at, None, decay, lr, inv_root, inv_scale,
            beta1, beta2, eps, scaled,
        )  # fmt: skip
    else:
        _update_chunk(
            params + at, grads + at, exp_avgs + at, exp_avg_sqs + at, tl.arange(0, block) < left, decay, lr, inv_root,
            inv_scale, beta1, beta2, eps, scaled,
        )  # fmt: skip


def _log2_beta(beta: float) -> float:
    """Return log2 of beta rounded to float32, as the averages use it: the bias correction must match it."""
    return math.log2(float(np.float32(beta))) if beta else -math.inf


def step(
    addresses: Sequence[Sequence[int]],
    sizes: Sequence[int],
    lrs: Sequence[float] | Tensor,
    decays: Sequence[float],
    *,
    betas: tuple[float, float],
    eps: float,
    device: torch.device,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    """Take one AdamW step for T contiguous float32 tensors on `device`.

    `addresses` has five rows of T: parameters, gradients, exp_avg, exp_avg_sq and step (one float32 each). Gradients
    are divided by `grad_scale`; where `found_inf` is not 0 nothing changes. Both lie on the device. So may `lrs`, as
    (T,) float64: a step that is recorded reads it anew at every replay.
    """
    count = len(sizes)
    table = np.empty(_ROWS * count + 2, dtype=np.int64)
    table[: 5 * count] = [address for row in addresses for address in row]
    host_lrs = [0.0] * count if isinstance(lrs, Tensor) else lrs
    table[_LR * count :].view(np.float64)[:] = [*host_lrs, *decays, *map(_log2_beta, betas)]
    aligned = not (table[: 4 * count] % 16).any()  # nearly always: allocators align blocks
    table_on_device, chunks = copy_to_device(table, device), split_into_chunks(tuple(sizes), BLOCK, device)
    scalars = torch.empty(3 * count, dtype=torch.float32, device=device)
    # a kernel argument must be a tensor also where it is not read
    guard, divisor = scalars if found_inf is None else found_inf, scalars if grad_scale is None else grad_scale
    lr_bits = lrs.view(torch.int64) if isinstance(lrs, Tensor) else table_on_device[_LR * count :]
    with torch.cuda.device_of(scalars):  # Triton launches on the current device
        _scalars_kernel[(triton.cdiv(count, _LANES),)](
            table_on_device, lr_bits, scalars, guard, count, found_inf is not None, _LANES, num_warps=4
        )
        if chunks.shape[1]:
            _step_kernel[(chunks.shape[1],)](
                table_on_device, scalars, chunks, divisor, guard, count, chunks.shape[1], *betas, eps, BLOCK, aligned,
                grad_scale is not None, found_inf is not None, num_warps=WARPS,
            )  # fmt: skip
