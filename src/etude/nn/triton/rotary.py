"""Rotary positions of queries and keys as a projection leaves them, in one kernel: for a CUDA device.

Reading and writing is all the time there is, and the result is what our attention kernels read, (N, 3, H, d). The
backward pass is the rotation the other way: nothing is stored for it but the cosines and sines, which all layers share.

Triton comes with torch where that is built for CUDA; only `nn/rotary.py` imports this file, and only there.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

ROWS, WARPS = 32, 4  # heads of a program


@triton.jit
def rotate_halves(first, second, cos, sin, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """Rotate the two halves of some rows in float32; both are returned in `dtype`. With -sin it is the way back."""
    left, right = first.to(tl.float32), second.to(tl.float32)
    return (left * cos - right * sin).to(dtype), (right * cos + left * sin).to(dtype)


@triton.jit
def rotate_rows(  # type: ignore[no-untyped-def]
    qkv, cosine, sine, out, count, heads: tl.constexpr, half: tl.constexpr, lanes: tl.constexpr,
    rows: tl.constexpr, reverse: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * rows + tl.arange(0, rows)  # of a token and head
    lane = tl.arange(0, lanes)
    in_bounds = (row < count)[:, None] & (lane < half)[None, :]
    token, head = (row // heads).to(tl.int64), row % heads
    angle = (token * half)[:, None] + lane[None, :]
    cos = tl.load(cosine + angle, mask=in_bounds, other=0.0)
    sin = tl.load(sine + angle, mask=in_bounds, other=0.0)
    if reverse:
        sin = -sin
    at = (token * (6 * heads * half) + head * (2 * half))[:, None] + lane[None, :]
    for part in tl.static_range(3):
        first = tl.load(qkv + at, mask=in_bounds, other=0.0)
        second = tl.load(qkv + at + half, mask=in_bounds, other=0.0)
        if part < 2:
            first, second = rotate_halves(first, second, cos, sin, out.dtype.element_ty)
        tl.store(out + at, first, mask=in_bounds)
        tl.store(out + at + half, second, mask=in_bounds)
        at += 2 * heads * half


@triton_op("etude::rotate_packed", mutates_args={})
def rotate_packed(qkv: Tensor, cosine: Tensor, sine: Tensor, reverse: bool = False) -> Tensor:
    """(N, 3, H, d) -> the same with queries and keys rotated; cosines and sines (N, 1, d/2), float32."""
    qkv, cosine, sine = qkv.contiguous(), cosine.contiguous(), sine.contiguous()
    tokens, _, heads, size = qkv.shape
    out = torch.empty_like(qkv)
    if tokens == 0:
        return out
    count = tokens * heads
    with torch.cuda.device_of(qkv):
        wrap_triton(rotate_rows)[(triton.cdiv(count, ROWS),)](
            qkv, cosine, sine, out, count, heads, size // 2, triton.next_power_of_2(size // 2), ROWS, reverse,
            num_warps=WARPS,
        )  # fmt: skip
    return out


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, cosine, sine, ctx.reverse = inputs
    ctx.save_for_backward(cosine, sine)


def _autograd_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return rotate_packed(grad, *ctx.saved_tensors, not ctx.reverse), None, None, None


rotate_packed.register_autograd(_autograd_backward, setup_context=_setup_context)
