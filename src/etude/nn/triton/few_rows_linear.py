"""A linear layer on few rows with what stands around it, for a CUDA device: norm, activation and residual sum.

With few rows a product takes as long as its weights take to arrive, and the small operations around it take as long as
it does, each for its launch. Here a program normalises the rows that it multiplies, so a norm is computed by many
programs alike, which costs less than writing it down once; the activation, or the sum with the residual stream, is
part of the product. A layer of GPT-2 then is five kernels and not eleven. Sums are in float32, and what is multiplied
is rounded as it would be if it were written down.

nn/few_rows_linear.py has the formulas; only it imports this file, where Triton is installed.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from etude.nn.triton.gelu import cdf_and_derivative

MAX_ROWS = 128
MAX_NORM_ROWS = 32  # beyond them a norm by every program takes longer than one of its own
NORMS = {None: 0, "layer": 1, "rms": 2}
ACTIVATIONS = {None: 0, "gelu": 1, "gelu_tanh": 2, "relu": 3, "relu_squared": 4, "silu": 5}


@triton.jit
def _multiply(  # type: ignore[no-untyped-def]
    x, weight, bias, norm_weight, norm_bias, operand, out, count, row_stride, epsilon, inputs: tl.constexpr,
    outputs: tl.constexpr, norm: tl.constexpr, activation: tl.constexpr, has_bias: tl.constexpr,
    has_norm_bias: tl.constexpr, adds: tl.constexpr, multiplies: tl.constexpr, rows: tl.constexpr,
    columns: tl.constexpr, depth: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    """x (N, I), weight (O, I), bias (O,), norm's (I,), operand (N, O) -> out (N, O)."""
    row = tl.program_id(1) * rows + tl.arange(0, rows)
    column = tl.program_id(0) * columns + tl.arange(0, columns)
    lane = tl.arange(0, depth)
    is_row, is_column = row < count, column < outputs
    x_rows = x + row.to(tl.int64)[:, None] * row_stride
    weight_rows = weight + column.to(tl.int64)[:, None] * inputs
    mean = tl.zeros([rows], tl.float32)
    scale = tl.zeros([rows], tl.float32)
    if norm > 0:
        if norm == 1:
            for start in range(0, inputs, depth):
                inside = is_row[:, None] & (start + lane < inputs)[None, :]
                part = tl.load(x_rows + (start + lane)[None, :], mask=inside, other=0.0).to(tl.float32)
                mean += tl.sum(part, 1)
            mean = mean / inputs
        for start in range(0, inputs, depth):
            inside = is_row[:, None] & (start + lane < inputs)[None, :]
            part = tl.load(x_rows + (start + lane)[None, :], mask=inside, other=0.0).to(tl.float32)
            part = tl.where(inside, part - mean[:, None], 0.0)
            scale += tl.sum(part * part, 1)
        scale = tl.rsqrt(scale / inputs + epsilon)
    total = tl.zeros([rows, columns], tl.float32)
    for start in tl.range(0, inputs, depth, num_stages=stages):
        place = start + lane
        is_input = place < inputs
        part = tl.load(x_rows + place[None, :], mask=is_row[:, None] & is_input[None, :], other=0.0)
        weights = tl.load(weight_rows + place[None, :], mask=is_column[:, None] & is_input[None, :], other=0.0)
        if norm > 0:
            normed = (part.to(tl.float32) - mean[:, None]) * scale[:, None]
            normed *= tl.load(norm_weight + place, mask=is_input, other=0.0).to(tl.float32)[None, :]
            if has_norm_bias:
                normed += tl.load(norm_bias + place, mask=is_input, other=0.0).to(tl.float32)[None, :]
            part = normed.to(weights.dtype)
        total = tl.dot(part, tl.trans(weights), total)
    if has_bias:
        total += tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)[None, :]
    if activation == 1 or activation == 2:
        cdf, _ = cdf_and_derivative(total, activation == 2)
        total = total * cdf
    if activation == 3 or activation == 4:
        total = tl.maximum(total, 0.0)
    if activation == 4:
        total = total * total
    if activation == 5:
        total = total / (1.0 + tl.exp(-total))
    inside = is_row[:, None] & is_column[None, :]
    place = row.to(tl.int64)[:, None] * outputs + column[None, :]
    if adds:
        total += tl.load(operand + place, mask=inside, other=0.0).to(tl.float32)
    if multiplies:
        total *= tl.load(operand + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + place, total.to(out.dtype.element_ty), mask=inside)


class Launch(NamedTuple):
    """How the work is divided among programs."""

    rows: int  # of a program
    columns: int
    depth: int  # of one product
    warps: int
    stages: int  # of loads under way


def choose_launch(rows: int, inputs: int, outputs: int, has_norm: bool, shared_memory: int) -> Launch:
    """Return how a product is divided: the fastest of those tried on an H200 with the shapes of GPT-2's layers.

    `shared_memory`: bytes that a program may have; what is loaded lies there.
    """
    tile = min(64, max(16, triton.next_power_of_2(rows)))
    if has_norm:
        launch = Launch(tile, 32, 256, 4, 4) if rows <= 8 else Launch(tile, 32, 128, 8, 4)
    elif rows > 64 and outputs >= 2 * inputs:
        launch = Launch(64, 64, 128, 4, 4)
    elif inputs <= 1024:
        launch = Launch(tile, 16, 128, 4, 4)
    else:
        launch = Launch(tile, 32, 512, 4, 4) if tile == 16 else Launch(tile, 16, 512 if tile == 32 else 256, 4, 4)
    while launch.stages * launch.depth * (launch.rows + launch.columns) * 2 > shared_memory and launch.depth > 32:
        launch = (
            launch._replace(stages=launch.stages - 1) if launch.stages > 2 else launch._replace(depth=launch.depth // 2)
        )
    return launch


@cache
def _shared_memory(device: torch.device) -> int:
    if device.type != "cuda":
        return 2**17
    index = torch.cuda.current_device() if device.index is None else device.index
    memory: int = triton.runtime.driver.active.utils.get_device_properties(index)["max_shared_mem"]
    return memory - 2**13  # some of it is Triton's own


def multiply(
    x: Tensor, weight: Tensor, bias: Tensor | None, norm: str | None, norm_weight: Tensor | None,
    norm_bias: Tensor | None, epsilon: float, activation: str | None, plus: Tensor | None, times: Tensor | None,
) -> Tensor:  # fmt: skip
    """See nn/few_rows_linear.py."""
    x = x if x.stride(1) == 1 else x.contiguous()
    (rows, inputs), outputs = x.shape, weight.shape[0]
    out = torch.empty((rows, outputs), dtype=weight.dtype, device=x.device)
    operand = plus if plus is not None else times
    launch = choose_launch(rows, inputs, outputs, norm is not None, _shared_memory(x.device))
    _multiply[(triton.cdiv(outputs, launch.columns), triton.cdiv(rows, launch.rows))](
        x, weight, weight if bias is None else bias, weight if norm_weight is None else norm_weight,
        weight if norm_bias is None else norm_bias, x if operand is None else operand.contiguous(), out, rows,
        x.stride(0), epsilon, inputs=inputs, outputs=outputs, norm=NORMS[norm], activation=ACTIVATIONS[activation],
        has_bias=bias is not None, has_norm_bias=norm_bias is not None, adds=plus is not None,
        multiplies=times is not None, rows=launch.rows, columns=launch.columns, depth=launch.depth,
        stages=launch.stages, num_warps=launch.warps,
    )  # fmt: skip
    return out
