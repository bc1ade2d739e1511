"""Distances of every query to every candidate of a group, and their gradients: two kernels for a CUDA device.

    forward    a program has a tile of queries times candidates in registers and runs through the width, one column of
               both at a time; so columns are made contiguous first. Nothing but distances is written
    backward   the gradient of a query is a sum over candidates and that of a candidate one over queries: the same sum
               with the sides exchanged. A program has a tile of rows times columns and runs through the other side

No program writes where another does, and sums have one order, so results repeat to the bit. nn/pair_distances.py has
the formulas; only it imports this file, where Triton is installed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

L1, L2, MODULUS = 0, 1, 2
KINDS = {"l1": L1, "l2": L2, "modulus": MODULUS}
TILE = 32  # queries and candidates of a forward program; rows of a backward one
COLUMNS = 64  # of a backward program
WARPS = 4
UNROLL = 4  # columns, or rows of the other side, that a loop takes at once
TINY = tl.constexpr(1e-30)  # as in nn/pair_distances.py


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    queries, candidates, out, query_count, candidate_count, width, kind: tl.constexpr, query_tile: tl.constexpr,
    candidate_tile: tl.constexpr, unroll: tl.constexpr,
):  # fmt: skip
    """queries (G, D, C), candidates (G, D, M) -> out (G, C, M)."""
    # a grid has many programs along its first axis alone: groups of their own candidates, or millions of candidates
    tiles = tl.cdiv(candidate_count, candidate_tile)
    group = (tl.program_id(0) // tiles).to(tl.int64)
    rows = tl.program_id(1) * query_tile + tl.arange(0, query_tile)
    columns = tl.program_id(0) % tiles * candidate_tile + tl.arange(0, candidate_tile)
    query_step, candidate_step = group * 0 + query_count, group * 0 + candidate_count  # 64 bits: columns may lie far
    query_start = queries + group * width * query_count + rows
    candidate_start = candidates + group * width * candidate_count + columns
    total = tl.zeros((query_tile, candidate_tile), tl.float32)
    half = width // 2
    limit = half if kind == 2 else width
    for first in range(0, limit, unroll):
        for step in tl.static_range(unroll):  # loads of several columns are under way at once
            d = first + step
            left = tl.load(query_start + d * query_step, mask=(rows < query_count) & (d < limit), other=0.0)
            right = tl.load(
                candidate_start + d * candidate_step, mask=(columns < candidate_count) & (d < limit), other=0.0
            )
            difference = left[:, None] - right[None, :]
            if kind == 0:
                total += tl.abs(difference)
            elif kind == 1:
                total += difference * difference
            else:  # modulus: imaginary parts lie half a width behind the real ones
                d += half
                left = tl.load(query_start + d * query_step, mask=(rows < query_count) & (d < width), other=0.0)
                right = tl.load(
                    candidate_start + d * candidate_step, mask=(columns < candidate_count) & (d < width), other=0.0
                )
                imaginary = left[:, None] - right[None, :]
                total += tl.sqrt(tl.maximum(difference * difference + imaginary * imaginary, TINY))
    if kind == 1:
        total = tl.sqrt(total)
    place = out + group * query_count * candidate_count + rows.to(tl.int64)[:, None] * candidate_count
    tl.store(place + columns[None, :], total, mask=(rows < query_count)[:, None] & (columns < candidate_count)[None, :])


@triton.jit
def _slopes(  # type: ignore[no-untyped-def]
    rows, others, weights, out, row_count, other_count, width, kind: tl.constexpr, row_tile: tl.constexpr,
    column_tile: tl.constexpr, unroll: tl.constexpr,
):  # fmt: skip
    """out (G, A, D): for each row (G, A, D) the sum over others (G, B, D) of weights (G, B, A) times the slope."""
    tiles = tl.cdiv(row_count, row_tile)
    group = (tl.program_id(0) // tiles).to(tl.int64)
    numbers = tl.program_id(0) % tiles * row_tile + tl.arange(0, row_tile)
    columns = tl.program_id(1) * column_tile + tl.arange(0, column_tile)
    half = width // 2
    limit = half if kind == 2 else width  # modulus: a program has a tile of real and one of imaginary columns
    inside = (numbers < row_count)[:, None] & (columns < limit)[None, :]
    places = group * row_count * width + numbers.to(tl.int64)[:, None] * width + columns[None, :]
    own = tl.load(rows + places, mask=inside, other=0.0)
    own_imaginary = own
    if kind == 2:
        own_imaginary = tl.load(rows + places + half, mask=inside, other=0.0)
    total = tl.zeros((row_tile, column_tile), tl.float32)
    total_imaginary = tl.zeros((row_tile, column_tile), tl.float32)
    other_start = others + group * other_count * width + columns
    weight_start = weights + group * other_count * row_count + numbers
    other_step, weight_step = group * 0 + width, group * 0 + row_count
    for first in range(0, other_count, unroll):
        for step in tl.static_range(unroll):
            b = first + step
            weight = tl.load(weight_start + b * weight_step, mask=(numbers < row_count) & (b < other_count), other=0.0)
            weight = weight[:, None]
            other = tl.load(other_start + b * other_step, mask=(columns < limit) & (b < other_count), other=0.0)
            difference = own - other[None, :]
            if kind == 0:
                total += tl.where(difference > 0, weight, tl.where(difference < 0, -weight, 0.0))
            elif kind == 1:
                total += weight * difference
            else:
                other = tl.load(
                    other_start + b * other_step + half, mask=(columns < limit) & (b < other_count), other=0.0
                )
                imaginary = own_imaginary - other[None, :]
                scaled = weight / tl.sqrt(tl.maximum(difference * difference + imaginary * imaginary, TINY))
                total += scaled * difference
                total_imaginary += scaled * imaginary
    tl.store(out + places, total, mask=inside)
    if kind == 2:
        tl.store(out + places + half, total_imaginary, mask=inside)


def forward(queries: Tensor, candidates: Tensor, distance: str) -> Tensor:
    """Return the distances (G, C, M) of queries (G, C, D) to candidates (G, M, D), all float32 and contiguous."""
    groups, query_count, width = queries.shape
    candidate_count = candidates.shape[1]
    out = queries.new_empty(groups, query_count, candidate_count)
    query_tile, candidate_tile = _tile(query_count, TILE), _tile(candidate_count, TILE)
    grid = (groups * triton.cdiv(candidate_count, candidate_tile), triton.cdiv(query_count, query_tile))
    with torch.cuda.device_of(queries):
        _forward[grid](
            queries.transpose(1, 2).contiguous(), candidates.transpose(1, 2).contiguous(), out, query_count,
            candidate_count, width, KINDS[distance], query_tile, candidate_tile, UNROLL, num_warps=WARPS,
        )  # fmt: skip
    return out


def backward(queries: Tensor, candidates: Tensor, grad: Tensor, distance: str) -> tuple[Tensor, Tensor]:
    """Return the gradients of queries and candidates; `grad` (G, C, M), of l2 divided by the distances already."""
    query_grad = _sum_slopes(queries, candidates, grad.transpose(1, 2).contiguous(), distance)
    return query_grad, _sum_slopes(candidates, queries, grad, distance)


def _sum_slopes(rows: Tensor, others: Tensor, weights: Tensor, distance: str) -> Tensor:
    groups, row_count, width = rows.shape
    out = torch.empty_like(rows)
    columns = width // 2 if distance == "modulus" else width
    row_tile, column_tile = _tile(row_count, TILE), _tile(columns, COLUMNS)
    grid = (groups * triton.cdiv(row_count, row_tile), triton.cdiv(columns, column_tile))
    with torch.cuda.device_of(rows):
        _slopes[grid](
            rows, others, weights, out, row_count, others.shape[1], width, KINDS[distance], row_tile, column_tile,
            UNROLL, num_warps=WARPS,
        )  # fmt: skip
    return out


def _tile(count: int, most: int) -> int:
    return min(most, triton.next_power_of_2(count))
