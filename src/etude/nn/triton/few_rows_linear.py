"""A linear layer on few rows with what stands around it, for a CUDA device: norm, activation and residual sum.

With few rows a product takes as long as its weights take to arrive, and the small operations around it take as long as
it does, each for its launch. Here a program normalises the rows that it multiplies, so a norm is computed by many
programs alike, which costs less than writing it down once; the activation, or the sum with the residual stream, is
part of the product. A layer of GPT-2 then is five kernels and not eleven. Sums are in float32, and what is multiplied
is rounded as it would be if it were written down.

A norm needs the mean and the variance of whole rows. A kernel that writes rows therefore writes their moments, too: the
mean of each part of a row that one program has, and the sum of its squared deviations. The next kernel combines those
of all parts (Chan et al. 1979) and reads the rows once.

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
MAX_NORM_ROWS = 32  # beyond them a norm by every program takes longer than one of its own, unless it has moments
MAX_PARTS = 128  # of a row whose moments are combined
NORMS = {None: 0, "layer": 1, "rms": 2}
ACTIVATIONS = {None: 0, "gelu": 1, "gelu_tanh": 2, "relu": 3, "relu_squared": 4, "silu": 5}


@triton.jit
def _multiply(  # type: ignore[no-untyped-def]
    x, weight, bias, norm_weight, norm_bias, moments, operand, out, out_moments, count, row_stride, epsilon,
    inputs: tl.constexpr, outputs: tl.constexpr, norm: tl.constexpr, part_size: tl.constexpr, parts: tl.constexpr,
    activation: tl.constexpr, has_bias: tl.constexpr, has_norm_bias: tl.constexpr, adds: tl.constexpr,
    multiplies: tl.constexpr, writes_moments: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr,
    depth: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    """x (N, I), weight (O, I), bias (O,), norm's (I,), operand (N, O) -> out (N, O).

    moments (2, N, I / part_size): of x, where `part_size` is not 0; `parts` is a power of 2 not below their number.
    """
    row = tl.program_id(1) * rows + tl.arange(0, rows)
    column = tl.program_id(0) * columns + tl.arange(0, columns)
    lane = tl.arange(0, depth)
    is_row, is_column = row < count, column < outputs
    x_rows = x + row.to(tl.int64)[:, None] * row_stride
    weight_rows = weight + column.to(tl.int64)[:, None] * inputs
    mean = tl.zeros([rows], tl.float32)
    scale = tl.zeros([rows], tl.float32)
    if norm > 0 and part_size > 0:
        number = tl.arange(0, parts)
        size = tl.minimum(tl.maximum(inputs - number * part_size, 0), part_size).to(tl.float32)[None, :]
        row_parts = moments + row[:, None] * tl.cdiv(inputs, part_size) + number[None, :]
        is_part = is_row[:, None] & (size > 0)
        means = tl.load(row_parts, mask=is_part, other=0.0)
        squares = tl.load(row_parts + count * tl.cdiv(inputs, part_size), mask=is_part, other=0.0)
        if norm == 1:
            mean = tl.sum(means * size, 1) / inputs
        deviation = means - mean[:, None]
        scale = tl.rsqrt(tl.sum(squares + size * deviation * deviation, 1) / inputs + epsilon)
    if norm > 0 and part_size == 0:
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
    # what is needed after the product, or in its next round, is asked for before it: nothing waits for it then
    inside = is_row[:, None] & is_column[None, :]
    out_place = row.to(tl.int64)[:, None] * outputs + column[None, :]
    if has_bias:
        added = tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)
    if adds or multiplies:
        other = tl.load(operand + out_place, mask=inside, other=0.0).to(tl.float32)
    if norm > 0:
        norm_weights = tl.load(norm_weight + lane, mask=lane < inputs, other=0.0)
        if has_norm_bias:
            norm_biases = tl.load(norm_bias + lane, mask=lane < inputs, other=0.0)
    total = tl.zeros([rows, columns], tl.float32)
    for start in tl.range(0, inputs, depth, num_stages=stages):
        place = start + lane
        is_input = place < inputs
        part = tl.load(x_rows + place[None, :], mask=is_row[:, None] & is_input[None, :], other=0.0)
        weights = tl.load(weight_rows + place[None, :], mask=is_column[:, None] & is_input[None, :], other=0.0)
        if norm > 0:
            normed = (part.to(tl.float32) - mean[:, None]) * scale[:, None] * norm_weights.to(tl.float32)[None, :]
            norm_weights = tl.load(norm_weight + depth + place, mask=depth + place < inputs, other=0.0)
            if has_norm_bias:
                normed += norm_biases.to(tl.float32)[None, :]
                norm_biases = tl.load(norm_bias + depth + place, mask=depth + place < inputs, other=0.0)
            part = normed.to(weights.dtype)
        total = tl.dot(part, tl.trans(weights), total)
    if has_bias:
        total += added[None, :]
    if activation == 1 or activation == 2:
        cdf, _ = cdf_and_derivative(total, activation == 2)
        total = total * cdf
    if activation == 3 or activation == 4:
        total = tl.maximum(total, 0.0)
    if activation == 4:
        total = total * total
    if activation == 5:
        total = total / (1.0 + tl.exp(-total))
    if adds:
        total += other
    if multiplies:
        total *= other
    rounded = total.to(out.dtype.element_ty)
    tl.store(out + out_place, rounded, mask=inside)
    if writes_moments:
        value = tl.where(is_column[None, :], rounded.to(tl.float32), 0.0)
        own_mean = tl.sum(value, 1) / tl.minimum(outputs - tl.program_id(0) * columns, columns)
        deviation = tl.where(is_column[None, :], value - own_mean[:, None], 0.0)
        own_part = out_moments + row * tl.cdiv(outputs, columns) + tl.program_id(0)
        tl.store(own_part, own_mean, mask=is_row)
        tl.store(own_part + count * tl.cdiv(outputs, columns), tl.sum(deviation * deviation, 1), mask=is_row)


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
    if has_norm and rows <= 64:
        launch = Launch(tile, 32, 256 if rows <= 32 else 128, 4, 4)
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


class Moments(NamedTuple):
    """Of rows, in parts of so many columns."""

    values: Tensor  # (2, N, parts) float32: means, and sums of squared deviations from them
    part_size: int


def multiply(
    x: Tensor, weight: Tensor, bias: Tensor | None, norm: str | None, norm_weight: Tensor | None,
    norm_bias: Tensor | None, epsilon: float, moments: Moments | None, activation: str | None, plus: Tensor | None,
    times: Tensor | None, measured: bool,
) -> tuple[Tensor, Moments | None]:  # fmt: skip
    """See nn/few_rows_linear.py; `measured` asks for the moments of the result."""
    x = x if x.stride(1) == 1 else x.contiguous()
    (rows, inputs), outputs = x.shape, weight.shape[0]
    out = torch.empty((rows, outputs), dtype=weight.dtype, device=x.device)
    operand = plus if plus is not None else times
    launch = choose_launch(rows, inputs, outputs, norm is not None, _shared_memory(x.device))
    parts = triton.cdiv(outputs, launch.columns)
    result = None
    if measured and parts <= MAX_PARTS:
        result = Moments(torch.empty((2, rows, parts), dtype=torch.float32, device=x.device), launch.columns)
    part_size = 0 if moments is None or norm is None else moments.part_size
    parts_tile = triton.next_power_of_2(triton.cdiv(inputs, part_size)) if part_size else 1
    with torch.cuda.device_of(x):
        _multiply[(parts, triton.cdiv(rows, launch.rows))](
            x, weight, weight if bias is None else bias, weight if norm_weight is None else norm_weight,
            weight if norm_bias is None else norm_bias, out if moments is None else moments.values,
            x if operand is None else operand.contiguous(), out, out if result is None else result.values, rows,
            x.stride(0), epsilon, inputs=inputs, outputs=outputs, norm=NORMS[norm], part_size=part_size,
            parts=parts_tile, activation=ACTIVATIONS[activation],
            has_bias=bias is not None, has_norm_bias=norm_bias is not None, adds=plus is not None,
            multiplies=times is not None, writes_moments=result is not None, rows=launch.rows, columns=launch.columns,
            depth=launch.depth, stages=launch.stages, num_warps=launch.warps,
        )  # fmt: skip
    return out, result
