"""Residual sum and layer or RMS norm, forward and backward: two kernels, for a CUDA device.

A compiler makes one kernel of sum and norm too. For the backward pass it leaves three more: the gradients of the norm's
weight and bias, and of the bias of the branch that was added, are sums over all tokens. Here all three are computed
while the gradient is at hand: every program sums its rows in one order, and one sum over the programs follows, so
results repeat to the bit. On an H200, 32,768 x 768 in bf16, that is 59 µs against 67 + 20 + 14. A norm or a branch
without a bias has no such sum.

A narrow row occupies few threads, and a program that computes two at a time waits for memory too often: the narrower a
row, the more of them a program computes at a time (`choose_launch`).

A row is read in two parts whose lengths are powers of two (768 = 512 + 256), so no lane is idle, and the loads of the
next rows are under way while a row is computed. The dropout of the branch follows from a seed and the position alone
(nn/triton/dropout.py), so that no mask is stored for the backward pass.

Triton comes with torch where that is built for CUDA; only `nn/residual.py` imports this file, and only there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

from etude.nn.triton.dropout import STEPS, dropout_factor, hash_bits


class Launch(NamedTuple):
    """How the work is divided among programs."""

    rows: int  # of a forward program
    warps: int
    back_rows: int  # that a backward program computes at a time
    back_warps: int
    back_stages: int  # rows under way
    programs: int  # of the backward pass


# The fastest of those tried on an H200, for a width of 768; two backward programs for each of its multiprocessors
WIDE = Launch(rows=4, warps=4, back_rows=2, back_warps=2, back_stages=4, programs=264)
NARROW, NARROW_ELEMENTS = 512, 1024  # below this width, a program has so many elements at a time: 8 of each thread
# Above this width, two warps do not have the registers for the sums of a backward program: compiled for Hopper, they
# spill 0.6 KB of each thread at 1152 and 2.8 KB at 2048. With eight warps nothing is spilled.
SPILLING, SPILLING_WARPS = 1024, 8

# The rows under way of a backward program take 36 bytes of shared memory for each element of a width: a GPU has 99 KB
# (GeForce, L4) to 227 KB (Hopper) for a program, and one that is given too few refuses the launch.
WIDEST = 2048


def choose_launch(width: int) -> Launch:
    """Return how rows of a width are divided: a narrow row occupies few threads, so a program has more rows at a time.

    benchmarks/residual_norm_launch.py compares them on a GPU.
    """
    if width > SPILLING:
        return WIDE._replace(back_warps=SPILLING_WARPS)
    if width >= NARROW:
        return WIDE
    rows = 1 << ((NARROW_ELEMENTS // width).bit_length() - 1)
    return Launch(rows, warps=4, back_rows=rows, back_warps=4, back_stages=4, programs=2 * WIDE.programs)


def split_width(width: int) -> tuple[int, int] | None:
    """Return two powers of two that add up to the width of a row, or None; also None if it is wider than WIDEST."""
    low = 1 << max(0, (width - 1).bit_length() - 1)
    rest = width - low
    return (low, rest) if rest >= 16 and rest & (rest - 1) == 0 and width <= WIDEST else None


@triton.jit
def _moments(x_low, x_rest, epsilon: tl.constexpr, width: tl.constexpr, rms: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return mean and inverse deviation of each row; with `rms` 0 and the inverse root of the mean square."""
    mean = tl.zeros([x_low.shape[0]], tl.float32)
    if not rms:
        mean = (tl.sum(x_low, 1) + tl.sum(x_rest, 1)) / width
        x_low -= mean[:, None]
        x_rest -= mean[:, None]
    variance = (tl.sum(x_low * x_low, 1) + tl.sum(x_rest * x_rest, 1)) / width
    return mean, tl.rsqrt(variance + epsilon)


@triton.jit
def _normalize(  # type: ignore[no-untyped-def]
    x, mean, scale, weights, biases, lane, has_bias: tl.constexpr, rms: tl.constexpr
):  # fmt: skip
    weight = tl.load(weights + lane)
    if has_bias:
        bias = tl.load(biases + lane)
    if not rms:
        x = x - mean[:, None]
    x = x * scale[:, None] * weight[None, :]
    if has_bias:
        x = x + bias[None, :]
    return x


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    residual, old_weight, old_bias, branch, weight, bias, seed, total, normed, means, scales, count,
    epsilon: tl.constexpr, low: tl.constexpr, rest: tl.constexpr, rows: tl.constexpr, renormalize: tl.constexpr,
    drops: tl.constexpr, has_bias: tl.constexpr, rms: tl.constexpr,
):  # fmt: skip
    width: tl.constexpr = low + rest
    row = tl.program_id(0) * rows + tl.arange(0, rows)
    in_bounds = (row < count)[:, None]
    low_lane = tl.arange(0, low)
    rest_lane = low + tl.arange(0, rest)
    at_low = row.to(tl.int64)[:, None] * width + low_lane[None, :]
    at_rest = row.to(tl.int64)[:, None] * width + rest_lane[None, :]
    x_low = tl.load(residual + at_low, mask=in_bounds, other=0.0).to(tl.float32)
    x_rest = tl.load(residual + at_rest, mask=in_bounds, other=0.0).to(tl.float32)
    if renormalize:  # the residual is the sum before its norm
        mean, scale = _moments(x_low, x_rest, epsilon, width, rms)
        x_low = _normalize(x_low, mean, scale, old_weight, old_bias, low_lane, has_bias, rms)
        x_rest = _normalize(x_rest, mean, scale, old_weight, old_bias, rest_lane, has_bias, rms)
        x_low = x_low.to(total.dtype.element_ty).to(tl.float32)
        x_rest = x_rest.to(total.dtype.element_ty).to(tl.float32)
    branch_low = tl.load(branch + at_low, mask=in_bounds, other=0.0).to(tl.float32)
    branch_rest = tl.load(branch + at_rest, mask=in_bounds, other=0.0).to(tl.float32)
    if drops:
        dropout_key = hash_bits(tl.load(seed))
        branch_low *= dropout_factor(dropout_key, row[:, None], low_lane[None, :], drops)
        branch_rest *= dropout_factor(dropout_key, row[:, None], rest_lane[None, :], drops)
    x_low = (x_low + branch_low).to(total.dtype.element_ty)
    x_rest = (x_rest + branch_rest).to(total.dtype.element_ty)
    tl.store(total + at_low, x_low, mask=in_bounds)
    tl.store(total + at_rest, x_rest, mask=in_bounds)
    x_low = x_low.to(tl.float32)
    x_rest = x_rest.to(tl.float32)
    mean, scale = _moments(x_low, x_rest, epsilon, width, rms)
    if not rms:
        tl.store(means + row, mean, mask=row < count)
    tl.store(scales + row, scale, mask=row < count)
    x_low = _normalize(x_low, mean, scale, weight, bias, low_lane, has_bias, rms)
    x_rest = _normalize(x_rest, mean, scale, weight, bias, rest_lane, has_bias, rms)
    tl.store(normed + at_low, x_low.to(normed.dtype.element_ty), mask=in_bounds)
    tl.store(normed + at_rest, x_rest.to(normed.dtype.element_ty), mask=in_bounds)


@triton.jit
def _add_pairs(a, b, c, d):  # type: ignore[no-untyped-def]
    return a + c, b + d


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    grad_total, grad_normed, total, means, scales, weight, seed, out, grad_branch, sums, count, low: tl.constexpr,
    rest: tl.constexpr, rows: tl.constexpr, programs: tl.constexpr, stages: tl.constexpr, post: tl.constexpr,
    without_total_grad: tl.constexpr, drops: tl.constexpr, has_bias: tl.constexpr, has_branch_bias: tl.constexpr,
    rms: tl.constexpr,
):  # fmt: skip
    width: tl.constexpr = low + rest
    low_lane = tl.arange(0, low)
    rest_lane = low + tl.arange(0, rest)
    weight_low = tl.load(weight + low_lane)[None, :]
    weight_rest = tl.load(weight + rest_lane)[None, :]
    zero_low = tl.zeros([rows, low], tl.float32)
    zero_rest = tl.zeros([rows, rest], tl.float32)
    weight_grad_low = zero_low
    weight_grad_rest = zero_rest
    bias_grad_low = zero_low
    bias_grad_rest = zero_rest
    branch_bias_grad_low = zero_low
    branch_bias_grad_rest = zero_rest
    dropout_key = 0
    if drops:
        dropout_key = hash_bits(tl.load(seed))
    blocks = tl.cdiv(count, rows)
    blocks_per_program = tl.cdiv(blocks, programs)
    first = tl.program_id(0) * blocks_per_program
    for block in tl.range(first, tl.minimum(first + blocks_per_program, blocks), num_stages=stages):
        row = block * rows + tl.arange(0, rows)
        in_bounds = (row < count)[:, None]
        at_low = row.to(tl.int64)[:, None] * width + low_lane[None, :]
        at_rest = row.to(tl.int64)[:, None] * width + rest_lane[None, :]
        x_low = tl.load(total + at_low, mask=in_bounds, other=0.0).to(tl.float32)
        x_rest = tl.load(total + at_rest, mask=in_bounds, other=0.0).to(tl.float32)
        grad_low = tl.load(grad_normed + at_low, mask=in_bounds, other=0.0).to(tl.float32)
        grad_rest = tl.load(grad_normed + at_rest, mask=in_bounds, other=0.0).to(tl.float32)
        stream_grad_low = zero_low
        stream_grad_rest = zero_rest
        if not without_total_grad:
            stream_grad_low = tl.load(grad_total + at_low, mask=in_bounds, other=0.0).to(tl.float32)
            stream_grad_rest = tl.load(grad_total + at_rest, mask=in_bounds, other=0.0).to(tl.float32)
        if not rms:
            mean = tl.load(means + row, mask=row < count, other=0.0)[:, None]
        scale = tl.load(scales + row, mask=row < count, other=0.0)[:, None]
        if post:  # the stream continues after the norm
            grad_low += stream_grad_low
            grad_rest += stream_grad_rest
            stream_grad_low = zero_low
            stream_grad_rest = zero_rest
        if rms:
            x_low = x_low * scale
            x_rest = x_rest * scale
        else:
            x_low = (x_low - mean) * scale
            x_rest = (x_rest - mean) * scale
        weight_grad_low += grad_low * x_low
        weight_grad_rest += grad_rest * x_rest
        if has_bias:
            bias_grad_low += grad_low
            bias_grad_rest += grad_rest
        grad_low *= weight_low
        grad_rest *= weight_rest
        if rms:
            mean_grad_x = ((tl.sum(grad_low * x_low, 1) + tl.sum(grad_rest * x_rest, 1)) / width)[:, None]
            stream_grad_low += scale * (grad_low - x_low * mean_grad_x)
            stream_grad_rest += scale * (grad_rest - x_rest * mean_grad_x)
        else:
            sum_grad_low, sum_grad_x_low = tl.reduce((grad_low, grad_low * x_low), 1, _add_pairs)
            sum_grad_rest, sum_grad_x_rest = tl.reduce((grad_rest, grad_rest * x_rest), 1, _add_pairs)
            mean_grad = ((sum_grad_low + sum_grad_rest) / width)[:, None]
            mean_grad_x = ((sum_grad_x_low + sum_grad_x_rest) / width)[:, None]
            stream_grad_low += scale * (grad_low - mean_grad - x_low * mean_grad_x)
            stream_grad_rest += scale * (grad_rest - mean_grad - x_rest * mean_grad_x)
        tl.store(out + at_low, stream_grad_low.to(out.dtype.element_ty), mask=in_bounds)
        tl.store(out + at_rest, stream_grad_rest.to(out.dtype.element_ty), mask=in_bounds)
        if drops:
            stream_grad_low *= dropout_factor(dropout_key, row[:, None], low_lane[None, :], drops)
            stream_grad_rest *= dropout_factor(dropout_key, row[:, None], rest_lane[None, :], drops)
            tl.store(grad_branch + at_low, stream_grad_low.to(out.dtype.element_ty), mask=in_bounds)
            tl.store(grad_branch + at_rest, stream_grad_rest.to(out.dtype.element_ty), mask=in_bounds)
        if has_branch_bias:
            branch_bias_grad_low += stream_grad_low
            branch_bias_grad_rest += stream_grad_rest
    sums += tl.program_id(0) * (1 + has_bias + has_branch_bias) * width
    tl.store(sums + low_lane, tl.sum(weight_grad_low, 0))
    tl.store(sums + rest_lane, tl.sum(weight_grad_rest, 0))
    if has_bias:
        sums += width
        tl.store(sums + low_lane, tl.sum(bias_grad_low, 0))
        tl.store(sums + rest_lane, tl.sum(bias_grad_rest, 0))
    if has_branch_bias:
        sums += width
        tl.store(sums + low_lane, tl.sum(branch_bias_grad_low, 0))
        tl.store(sums + rest_lane, tl.sum(branch_bias_grad_rest, 0))


@triton_op("etude::add_norm", mutates_args={})
def add_norm(
    residual: Tensor, old_weight: Tensor | None, old_bias: Tensor | None, branch: Tensor, branch_bias: Tensor | None,
    weight: Tensor, bias: Tensor | None, seed: Tensor | None, dropout: float, epsilon: float, post: bool,
    rms: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """(N, D), (N, D) -> their sum, its norm, and the mean and scale of each row (N,); with `rms` no means.

    With `old_weight` the residual is the sum before a norm, which is recomputed on the way; that one has a bias,
    `old_bias`, if this one has.
    `branch_bias` (D,) is in `branch` already: it is here only for its gradient. With `post` the gradient of the sum is
    that of its norm: whoever continues from the sum recomputes its norm. The branch is dropped at a rate of `dropout`,
    by the number on the device in `seed`.
    """
    residual, branch = residual.contiguous(), branch.contiguous()
    widths = split_width(residual.shape[1])
    assert widths is not None
    count, renormalize = residual.shape[0], old_weight is not None
    assert not renormalize or (old_bias is None) == (bias is None)
    total, normed = torch.empty_like(residual), torch.empty_like(residual)
    means = residual.new_empty(0 if rms else count, dtype=torch.float32)
    scales = residual.new_empty(count, dtype=torch.float32)
    given = [
        weight if tensor is None else tensor for tensor in (old_weight, old_bias, bias, seed)
    ]  # others are not read
    launch = choose_launch(residual.shape[1])
    with torch.cuda.device_of(residual):
        wrap_triton(_forward)[(triton.cdiv(count, launch.rows),)](
            residual, *given[:2], branch, weight, *given[2:], total, normed, means, scales, count, epsilon, *widths,
            launch.rows, renormalize, round(dropout * STEPS), bias is not None, rms, num_warps=launch.warps,
        )  # fmt: skip
    return total, normed, means, scales


@triton_op("etude::add_norm_backward", mutates_args={})
def add_norm_backward(
    grad_total: Tensor | None, grad_normed: Tensor, total: Tensor, means: Tensor, scales: Tensor, weight: Tensor,
    seed: Tensor | None, dropout: float, post: bool, has_bias: bool, has_branch_bias: bool, rms: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of the sum, (N, D), of the branch, and of weight, bias and branch bias.

    The gradient of the branch is empty without dropout, for then it is that of the sum. Those of weights and biases are
    sums of each program, (P, 1 to 3, D) float32.
    """
    grad_normed, total = grad_normed.contiguous(), total.contiguous()
    without_total_grad = grad_total is None
    grad_total = grad_normed if grad_total is None else grad_total.contiguous()
    widths = split_width(total.shape[1])
    assert widths is not None
    launch = choose_launch(total.shape[1])
    vectors = 1 + has_bias + has_branch_bias
    out, sums = torch.empty_like(total), total.new_empty(launch.programs, vectors, total.shape[1], dtype=torch.float32)
    grad_branch = torch.empty_like(total) if dropout else total.new_empty(0)
    with torch.cuda.device_of(total):
        wrap_triton(_backward)[(launch.programs,)](
            grad_total, grad_normed, total, means, scales, weight, weight if seed is None else seed, out, grad_branch,
            sums, total.shape[0], *widths, launch.back_rows, launch.programs, launch.back_stages, post,
            without_total_grad, round(dropout * STEPS), has_bias, has_branch_bias, rms, num_warps=launch.back_warps,
        )  # fmt: skip
    return out, grad_branch, sums


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *_, branch_bias, weight, bias, seed, ctx.dropout, _, ctx.post, ctx.rms = inputs
    ctx.branch_bias_dtype, ctx.has_bias = None if branch_bias is None else branch_bias.dtype, bias is not None
    total, _, means, scales = output
    ctx.save_for_backward(total, means, scales, weight, seed)
    ctx.mark_non_differentiable(means, scales)
    ctx.set_materialize_grads(False)


def _autograd_backward(
    ctx: Any, grad_total: Tensor | None, grad_normed: Tensor | None, *_: Tensor | None
) -> tuple[Tensor | None, ...]:
    total, means, scales, weight, seed = ctx.saved_tensors
    if grad_normed is None:
        grad_normed = torch.zeros_like(total)
    has_branch_bias = ctx.branch_bias_dtype is not None
    out, grad_branch, sums = add_norm_backward(
        grad_total, grad_normed, total, means, scales, weight, seed, ctx.dropout, ctx.post, ctx.has_bias,
        has_branch_bias, ctx.rms,
    )  # fmt: skip
    grad_weight, *rest = sums.sum(0).to(weight.dtype).unbind(0)
    grad_bias = rest[0] if ctx.has_bias else None
    grad_branch_bias = rest[-1].to(ctx.branch_bias_dtype) if has_branch_bias else None
    grad_branch = grad_branch if ctx.dropout else out
    return out, None, None, grad_branch, grad_branch_bias, grad_weight, grad_bias, *[None] * 5


add_norm.register_autograd(_autograd_backward, setup_context=_setup_context)
