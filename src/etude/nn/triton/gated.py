"""Gated activation of a feed-forward branch, activation(gate) * up, and its derivative: two kernels, for a CUDA device.

Gate and up come from one product, (N, 2F), and the gradient of both leaves as one tensor, so the products around them
are one each way: their input is read once, and its gradient needs no sum. A compiler writes the two halves of that
gradient by two kernels, each of which reads gate, up and the gradient.

Triton comes with torch where that is built for CUDA; only `nn/feedforward.py` imports this file, and only there.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

from etude.nn.triton.gelu import cdf_and_derivative

KINDS = ("gelu", "gelu_tanh", "silu")  # by number in the kernels
ROWS, COLUMNS, WARPS = 16, 128, 4  # of a program: 16 elements of a thread, few registers, many programs


@triton.jit
def _factor_and_derivative(x, kind: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the factor of x in an activation, and the activation's derivative."""
    if kind == 2:
        factor = tl.sigmoid(x)
        derivative = factor * (1.0 + x * (1.0 - factor))
    else:
        factor, derivative = cdf_and_derivative(x, kind == 1)
    return factor, derivative


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    x, out, count, width: tl.constexpr, kind: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    in_bounds = (row < count)[:, None] & (column < width)[None, :]
    at = (row * (2 * width))[:, None] + column[None, :]
    gate = tl.load(x + at, mask=in_bounds, other=0.0).to(tl.float32)
    up = tl.load(x + at + width, mask=in_bounds, other=0.0).to(tl.float32)
    factor, _ = _factor_and_derivative(gate, kind)
    target = (row * width)[:, None] + column[None, :]
    tl.store(out + target, (gate * factor * up).to(out.dtype.element_ty), mask=in_bounds)


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    grad, x, out, count, width: tl.constexpr, kind: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    in_bounds = (row < count)[:, None] & (column < width)[None, :]
    at = (row * (2 * width))[:, None] + column[None, :]
    gate = tl.load(x + at, mask=in_bounds, other=0.0).to(tl.float32)
    up = tl.load(x + at + width, mask=in_bounds, other=0.0).to(tl.float32)
    grad_out = tl.load(grad + (row * width)[:, None] + column[None, :], mask=in_bounds, other=0.0).to(tl.float32)
    factor, derivative = _factor_and_derivative(gate, kind)
    tl.store(out + at, (grad_out * up * derivative).to(out.dtype.element_ty), mask=in_bounds)
    tl.store(out + at + width, (grad_out * gate * factor).to(out.dtype.element_ty), mask=in_bounds)


def _grid(count: int, width: int) -> tuple[int, int]:
    return triton.cdiv(count, ROWS), triton.cdiv(width, COLUMNS)


@triton_op("etude::gated_activation", mutates_args={})
def gated_activation(x: Tensor, kind: int) -> Tensor:
    """(N, 2F), gates first -> activation(gate) * up, (N, F). `kind` is the activation's place in KINDS."""
    x = x.contiguous()
    count, width = x.shape[0], x.shape[1] // 2
    out = x.new_empty(count, width)
    with torch.cuda.device_of(x):
        wrap_triton(_forward)[_grid(count, width)](x, out, count, width, kind, ROWS, COLUMNS, num_warps=WARPS)
    return out


@triton_op("etude::gated_activation_backward", mutates_args={})
def gated_activation_backward(grad: Tensor, x: Tensor, kind: int) -> Tensor:
    """(N, F), (N, 2F) -> the gradient of `x`."""
    grad, x = grad.contiguous(), x.contiguous()
    count, width = grad.shape
    out = torch.empty_like(x)
    with torch.cuda.device_of(x):
        wrap_triton(_backward)[_grid(count, width)](grad, x, out, count, width, kind, ROWS, COLUMNS, num_warps=WARPS)
    return out


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, ctx.kind = inputs
    ctx.save_for_backward(x)


def _autograd_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return gated_activation_backward(grad, *ctx.saved_tensors, ctx.kind), None


gated_activation.register_autograd(_autograd_backward, setup_context=_setup_context)
