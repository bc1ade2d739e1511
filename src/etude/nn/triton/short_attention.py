"""Attention within sequences of up to 128 tokens, one program a sequence and head: for a CUDA device.

At such lengths all scores of a sequence fit the registers of one program. So there is no running softmax, nothing is
stored for the backward pass (scores are recomputed, from queries and keys that it reads anyway), and all three
gradients come from one pass, written side by side where the projection needs them. Flash kernels, made for long
sequences, store log-sums, add partial gradients in float32 and convert them.

The scale is a constant of a kernel: as a number, a compiled graph would pass it in float64, and every score would be
computed in that (five times as slow). Queries, keys and values come as the projection leaves them, (N, 3, H, d).

With cosines and sines, queries and keys are rotated as they are read, and their gradients rotated back as they are
written. A kernel that only rotates (nn/triton/rotary.py) reads and writes all of them once more in each direction. Both
halves of a rotated row are rounded where that kernel would store them, so attention is the same either way.

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
from etude.nn.triton.rotary import rotate_halves

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
def _find_program(heads: tl.constexpr, rotates: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the sequence and the head of this program."""
    sequence, head = tl.program_id(0), tl.program_id(1)
    if rotates:  # a sequence's heads follow one another: the first reads its cosines, the others find them in the cache
        head = sequence % heads
        sequence = sequence // heads
    return sequence, head


@triton.jit
def _load_rotated(at, cos, sin, in_bounds, half: tl.constexpr, width: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the rows at `at`, rotated: both halves side by side, each filled up to half of the width."""
    first = tl.load(at, mask=in_bounds, other=0.0)
    second = tl.load(at + half, mask=in_bounds, other=0.0)
    first, second = rotate_halves(first, second, cos, sin, first.dtype)
    return tl.reshape(tl.permute(tl.join(first, second), (0, 2, 1)), (first.shape[0], width))


@triton.jit
def _store_rotated(  # type: ignore[no-untyped-def]
    at, x, cos, sin, in_bounds, half: tl.constexpr, width: tl.constexpr
):  # fmt: skip
    """Store rows whose halves lie side by side at `at`, rotated."""
    x = tl.permute(tl.reshape(x, (x.shape[0], 2, width // 2)), (0, 2, 1))
    first, second = tl.split(x)
    first, second = rotate_halves(first, second, cos, sin, x.dtype)
    tl.store(at, first, mask=in_bounds)
    tl.store(at + half, second, mask=in_bounds)


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    qkv, bounds, seed, cosine, sine, out, scale: tl.constexpr,
    heads: tl.constexpr, size: tl.constexpr, width: tl.constexpr, block: tl.constexpr, causal: tl.constexpr,
    drops: tl.constexpr, rotates: tl.constexpr,
):  # fmt: skip
    sequence, head = _find_program(heads, rotates)
    start = tl.load(bounds + sequence)
    length = tl.load(bounds + sequence + 1) - start
    if length <= 0:
        return
    position, lane = tl.arange(0, block), tl.arange(0, width)
    in_bounds = (position < length)[:, None] & (lane < size)[None, :]
    # 64 bits: a batch may hold more than 2^31 numbers
    row = (start + position).to(tl.int64)
    at = qkv + (row * (3 * heads * size))[:, None] + (head * size + lane)[None, :]
    if rotates:
        half: tl.constexpr = size // 2
        half_lane = tl.arange(0, width // 2)
        half_in_bounds = (position < length)[:, None] & (half_lane < half)[None, :]
        angle = (row * half)[:, None] + half_lane[None, :]
        cos = tl.load(cosine + angle, mask=half_in_bounds, other=0.0)
        sin = tl.load(sine + angle, mask=half_in_bounds, other=0.0)
        half_at = qkv + (row * (3 * heads * size))[:, None] + (head * size + half_lane)[None, :]
        query = _load_rotated(half_at, cos, sin, half_in_bounds, half, width)
        key = _load_rotated(half_at + heads * size, cos, sin, half_in_bounds, half, width)
    else:
        query = tl.load(at, mask=in_bounds, other=0.0)
        key = tl.load(at + heads * size, mask=in_bounds, other=0.0)
    value = tl.load(at + 2 * heads * size, mask=in_bounds, other=0.0)
    probs = _weights(query, key, position, length, scale, causal)
    if drops:
        dropout_key = head_key(tl.load(seed), sequence * heads + head)
        probs = probs * dropout_factor(dropout_key, position[:, None], position[None, :], drops)
    mixed = tl.dot(probs.to(value.dtype), value)
    target = out + (row * (heads * size))[:, None] + (head * size + lane)[None, :]
    tl.store(target, mixed.to(value.dtype), mask=in_bounds)


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    grad, qkv, bounds, seed, cosine, sine, out, scale: tl.constexpr,
    heads: tl.constexpr, size: tl.constexpr, width: tl.constexpr, block: tl.constexpr, causal: tl.constexpr,
    drops: tl.constexpr, rotates: tl.constexpr,
):  # fmt: skip
    sequence, head = _find_program(heads, rotates)
    start = tl.load(bounds + sequence)
    length = tl.load(bounds + sequence + 1) - start
    if length <= 0:
        return
    position, lane = tl.arange(0, block), tl.arange(0, width)
    in_bounds = (position < length)[:, None] & (lane < size)[None, :]
    row = (start + position).to(tl.int64)
    step = (row * (3 * heads * size))[:, None] + (head * size + lane)[None, :]
    if rotates:
        half: tl.constexpr = size // 2
        half_lane = tl.arange(0, width // 2)
        half_in_bounds = (position < length)[:, None] & (half_lane < half)[None, :]
        angle = (row * half)[:, None] + half_lane[None, :]
        cos = tl.load(cosine + angle, mask=half_in_bounds, other=0.0)
        sin = tl.load(sine + angle, mask=half_in_bounds, other=0.0)
        half_step = (row * (3 * heads * size))[:, None] + (head * size + half_lane)[None, :]
        query = _load_rotated(qkv + half_step, cos, sin, half_in_bounds, half, width)
        key = _load_rotated(qkv + half_step + heads * size, cos, sin, half_in_bounds, half, width)
    else:
        query = tl.load(qkv + step, mask=in_bounds, other=0.0)
        key = tl.load(qkv + step + heads * size, mask=in_bounds, other=0.0)
    value = tl.load(qkv + step + 2 * heads * size, mask=in_bounds, other=0.0)
    at = (row * (heads * size))[:, None] + (head * size + lane)[None, :]
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
    if rotates:
        # read again: in between, registers are for the scores. A negative sine is the way back
        cos = tl.load(cosine + angle, mask=half_in_bounds, other=0.0)
        sin = -tl.load(sine + angle, mask=half_in_bounds, other=0.0)
        grad_query = tl.dot(grad_scores, key).to(value.dtype)
        _store_rotated(out + half_step, grad_query, cos, sin, half_in_bounds, half, width)
        grad_key = tl.dot(tl.trans(grad_scores), query).to(value.dtype)
        _store_rotated(out + half_step + heads * size, grad_key, cos, sin, half_in_bounds, half, width)
    else:
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
def attend_short(
    qkv: Tensor, bounds: Tensor, seed: Tensor, longest: int, causal: bool, dropout: float,
    cosine: Tensor | None = None, sine: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """(N, 3, H, d), (S+1,) -> (N, H, d). `seed` is one int64, on the device, and only read with dropout.

    With cosines and sines, (N, 1, d/2) float32, queries and keys are rotated.
    """
    qkv = qkv.contiguous()
    tokens, _, heads, size = qkv.shape
    out = qkv.new_empty(tokens, heads, size)
    shape = _shape(qkv, longest)
    with torch.cuda.device_of(qkv):
        wrap_triton(_forward)[_grid(bounds, heads, cosine)](
            qkv, bounds, seed, *_angles(qkv, cosine, sine), out, size**-0.5,
            **shape, causal=causal, drops=round(dropout * STEPS), rotates=cosine is not None, num_warps=_warps(shape),
        )  # fmt: skip
    return out


@triton_op("etude::attend_short_backward", mutates_args={})
def attend_short_backward(
    grad: Tensor, qkv: Tensor, bounds: Tensor, seed: Tensor, longest: int, causal: bool, dropout: float,
    cosine: Tensor | None = None, sine: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """(N, H, d), (N, 3, H, d) -> the gradient of `qkv`, as it is before a rotation."""
    grad, qkv = grad.contiguous(), qkv.contiguous()
    out = torch.empty_like(qkv)
    shape = _shape(qkv, longest)
    with torch.cuda.device_of(qkv):
        wrap_triton(_backward)[_grid(bounds, shape["heads"], cosine)](
            grad, qkv, bounds, seed, *_angles(qkv, cosine, sine), out, shape["size"] ** -0.5,
            **shape, causal=causal, drops=round(dropout * STEPS), rotates=cosine is not None, num_warps=_warps(shape),
        )  # fmt: skip
    return out


def _grid(bounds: Tensor, heads: int, cosine: Tensor | None) -> tuple[int, ...]:
    """Return the programs of a launch, for `_find_program`. Along a second axis there may be no more than 65,535."""
    sequences = bounds.shape[0] - 1
    return (sequences, heads) if cosine is None else (sequences * heads,)


def _angles(qkv: Tensor, cosine: Tensor | None, sine: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return cosines and sines for a kernel, which reads neither where there are none."""
    return (qkv, qkv) if cosine is None or sine is None else (cosine.contiguous(), sine.contiguous())


def _warps(shape: dict[str, int]) -> int:
    return 8 if shape["block"] == LONGEST else 4


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    qkv, bounds, seed, *ctx.rest, cosine, sine = inputs
    ctx.save_for_backward(qkv, bounds, seed, cosine, sine)


def _autograd_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    *tensors, cosine, sine = ctx.saved_tensors
    grad_qkv = attend_short_backward(grad, *tensors, *ctx.rest, cosine, sine)
    return grad_qkv, None, None, None, None, None, None, None


attend_short.register_autograd(_autograd_backward, setup_context=_setup_context)
