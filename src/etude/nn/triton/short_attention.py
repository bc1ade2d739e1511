"""Attention within sequences of up to 128 tokens, one program a sequence and head: for a CUDA device.

At such lengths all scores of a sequence fit the registers of one program. So there is no running softmax, nothing is
stored for the backward pass (scores are recomputed, from queries and keys that it reads anyway), and all three
gradients come from one pass, written side by side where the projection needs them. Flash kernels, made for long
sequences, store log-sums, add partial gradients in float32 and convert them.

The scale is a constant of a kernel: as a number, a compiled graph would pass it in float64, and every score would be
computed in that (five times as slow). Queries, keys and values come as the projection leaves them, (N, 3, H, d).

Triton comes with torch where that is built for CUDA; only `nn/attention/dispatch.py` imports this file, and only there.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

from etude.nn.triton.dropout import STEPS, dropout_factor, head_key

LONGEST = 128  # more would not fit the registers
_DTYPES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}


@triton.jit
def _weights(query, key, position, length, scale: tl.constexpr, causal: tl.constexpr):  # type: ignore[no-untyped-def]
    """softmax(q k^T / sqrt(d)) of one sequence and head, float32; rows after its end have no meaning."""
    scores = tl.dot(query, tl.trans(key)) * scale
    visible = position[None, :] < length
    if causal:
        visible = visible & (position[None, :] <= position[:, None])
    scores = tl.where(visible, scores, -1e30)  # finite: a row after the end gives an average instead of NaN
    scores = tl.exp(scores - tl.max(scores, 1)[:, None])
    return scores / tl.sum(scores, 1)[:, None]


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    qkv, bounds, seed, out, scale: tl.constexpr,
    heads: tl.constexpr, size: tl.constexpr, width: tl.constexpr, block: tl.constexpr, causal: tl.constexpr,
    drops: tl.constexpr,
):  # fmt: skip
    sequence, head = tl.program_id(0), tl.program_id(1)
    start = tl.load(bounds + sequence)
    length = tl.load(bounds + sequence + 1) - start
    if length <= 0:
        return
    position, lane = tl.arange(0, block), tl.arange(0, width)
    in_bounds = (position < length)[:, None] & (lane < size)[None, :]
    # 64 bits: a batch may hold more than 2^31 numbers
    at = qkv + ((start + position).to(tl.int64) * (3 * heads * size))[:, None] + (head * size + lane)[None, :]
    query = tl.load(at, mask=in_bounds, other=0.0)
    key = tl.load(at + heads * size, mask=in_bounds, other=0.0)
    value = tl.load(at + 2 * heads * size, mask=in_bounds, other=0.0)
    probs = _weights(query, key, position, length, scale, causal)
    if drops:
        dropout_key = head_key(tl.load(seed), sequence * heads + head)
        probs = probs * dropout_factor(dropout_key, position[:, None], position[None, :], drops)
    mixed = tl.dot(probs.to(value.dtype), value)
    target = out + ((start + position).to(tl.int64) * (heads * size))[:, None] + (head * size + lane)[None, :]
    tl.store(target, mixed.to(value.dtype), mask=in_bounds)


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    grad, qkv, bounds, seed, out, scale: tl.constexpr,
    heads: tl.constexpr, size: tl.constexpr, width: tl.constexpr, block: tl.constexpr, causal: tl.constexpr,
    drops: tl.constexpr,
):  # fmt: skip
    sequence, head = tl.program_id(0), tl.program_id(1)
    start = tl.load(bounds + sequence)
    length = tl.load(bounds + sequence + 1) - start
    if length <= 0:
        return
    position, lane = tl.arange(0, block), tl.arange(0, width)
    in_bounds = (position < length)[:, None] & (lane < size)[None, :]
    step = ((start + position).to(tl.int64) * (3 * heads * size))[:, None] + (head * size + lane)[None, :]
    query = tl.load(qkv + step, mask=in_bounds, other=0.0)
    key = tl.load(qkv + step + heads * size, mask=in_bounds, other=0.0)
    value = tl.load(qkv + step + 2 * heads * size, mask=in_bounds, other=0.0)
    at = ((start + position).to(tl.int64) * (heads * size))[:, None] + (head * size + lane)[None, :]
    grad_out = tl.load(grad + at, mask=in_bounds, other=0.0)
    probs = _weights(query, key, position, length, scale, causal)
    grad_probs = tl.dot(grad_out, tl.trans(value))
    if drops:
        dropout_key = head_key(tl.load(seed), sequence * heads + head)
        factor = dropout_factor(dropout_key, position[:, None], position[None, :], drops)
        grad_value = tl.dot(tl.trans((probs * factor).to(value.dtype)), grad_out)
        grad_probs = grad_probs * factor
    else:
        grad_value = tl.dot(tl.trans(probs.to(value.dtype)), grad_out)
    tl.store(out + step + 2 * heads * size, grad_value.to(value.dtype), mask=in_bounds)
    # the derivative of a softmax: w * (g - sum(g w)); rows after the end have g = 0
    grad_scores = (probs * (grad_probs - tl.sum(grad_probs * probs, 1)[:, None]) * scale).to(value.dtype)
    tl.store(out + step, tl.dot(grad_scores, key).to(value.dtype), mask=in_bounds)
    tl.store(out + step + heads * size, tl.dot(tl.trans(grad_scores), query).to(value.dtype), mask=in_bounds)


def supports_shape(longest: int, size: int, dtype: torch.dtype) -> bool:
    """Whether these kernels apply: bf16 or float16, short sequences, heads of 16 to 128."""
    return longest <= LONGEST and 16 <= size <= 128 and dtype in (torch.bfloat16, torch.float16)


def _shape(qkv: Tensor, longest: int) -> dict[str, int]:
    _, _, heads, size = qkv.shape
    return {
        "heads": heads,
        "size": size,
        "width": triton.next_power_of_2(size),
        "block": max(16, triton.next_power_of_2(longest)),  # products of fewer than 16 rows have no tensor cores
    }


@triton_op("etude::attend_short", mutates_args={})
def attend_short(qkv: Tensor, bounds: Tensor, seed: Tensor, longest: int, causal: bool, dropout: float) -> Tensor:
    """(N, 3, H, d), (S+1,) -> (N, H, d). `seed` is one int64, on the device, and only read with dropout."""
    qkv = qkv.contiguous()
    tokens, _, heads, size = qkv.shape
    out = qkv.new_empty(tokens, heads, size)
    shape = _shape(qkv, longest)
    with torch.cuda.device_of(qkv):
        wrap_triton(_forward)[(bounds.shape[0] - 1, heads)](
            qkv,
            bounds,
            seed,
            out,
            size**-0.5,
            **shape,
            causal=causal,
            drops=round(dropout * STEPS),
            num_warps=_warps(shape),
        )
    return out


@triton_op("etude::attend_short_backward", mutates_args={})
def attend_short_backward(
    grad: Tensor, qkv: Tensor, bounds: Tensor, seed: Tensor, longest: int, causal: bool, dropout: float
) -> Tensor:
    """(N, H, d), (N, 3, H, d) -> the gradient of `qkv`."""
    grad, qkv = grad.contiguous(), qkv.contiguous()
    out = torch.empty_like(qkv)
    shape = _shape(qkv, longest)
    with torch.cuda.device_of(qkv):
        wrap_triton(_backward)[(bounds.shape[0] - 1, shape["heads"])](
            grad, qkv, bounds, seed, out, shape["size"] ** -0.5,
            **shape, causal=causal, drops=round(dropout * STEPS), num_warps=_warps(shape),
        )  # fmt: skip
    return out


def _warps(shape: dict[str, int]) -> int:
    return 8 if shape["block"] == LONGEST else 4


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    qkv, bounds, seed, *ctx.rest = inputs
    ctx.save_for_backward(qkv, bounds, seed)


def _autograd_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return attend_short_backward(grad, *ctx.saved_tensors, *ctx.rest), None, None, None, None, None


attend_short.register_autograd(_autograd_backward, setup_context=_setup_context)
