"""Attention within sequences of any length, tile by tile: for a Hopper card and later ones.

The flash algorithm (Dao et al. 2022; Dao 2023) in kernels of our own. torch's flash kernels were made for the
generation before and reach a third of what a Hopper card can do at heads of 64; and they leave the gradients of
queries, keys and values in three places, to be copied together. Here queries, keys and values are read as the
projection leaves them, (N, 3, H, d), and the gradient is written the same way. Each number of it is added up by one
program in one order, so that results repeat to the bit.

    forward     a block of queries passes over the keys, with a running softmax; kept is log2 of each row's sum
    by_query    the gradient of a block of queries; and sum(gradient * output) of each row, which by_key needs
    by_key      the gradients of a block of keys and values, which passes over the queries

Sequences lie between bounds; trailing ones may be empty. Tiles that cross the diagonal or the end of a sequence are
masked, the others are not. Triton comes with torch where that is built for CUDA; only `nn/attention.py` imports this
file, and only there.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

from etude.nn.drop_kernel import STEPS, kept, key_of

LOG2E = 1.4426950408889634  # the hardware's exponential is a power of two

# (rows, columns, warps, stages) of each kernel, the fastest of those benchmarks/tiled_attention.py tried on an H200.
# There a layer of BERT-base at 512 (32,768 tokens, forward and backward) takes 0.63 ms (flash 0.96, cuDNN 0.68), at
# lengths of 128 to 512 0.58 (flash 1.01), and one of GPT-2 at 1,024 0.72 (flash 1.15, cuDNN 0.75).
FORWARD, BY_QUERY, BY_KEY = (64, 64, 4, 3), (64, 32, 4, 3), (32, 64, 4, 3)


@triton.jit
def _read(at, row, length, step: tl.constexpr, size: tl.constexpr, width: tl.constexpr, masked: tl.constexpr):  # type: ignore[no-untyped-def]
    """Rows of one head, (rows, width); zeros behind the end of the sequence and behind the head."""
    lane = tl.arange(0, width)
    where = at + row[:, None] * step + lane[None, :]
    if size == width:
        if masked:
            return tl.load(where, mask=(row < length)[:, None], other=0.0)
        return tl.load(where)
    return tl.load(where, mask=(row < length)[:, None] & (lane < size)[None, :], other=0.0)


@triton.jit
def _write(at, row, length, tile, step: tl.constexpr, size: tl.constexpr, width: tl.constexpr):  # type: ignore[no-untyped-def]
    lane = tl.arange(0, width)
    inside = (row < length)[:, None] & (lane < size)[None, :]
    tl.store(at + row[:, None] * step + lane[None, :], tile.to(at.dtype.element_ty), mask=inside)


@triton.jit
def _gather(  # type: ignore[no-untyped-def]
    mixed, highest, total, query, keys, drawn, row, length, low, high, scale: tl.constexpr, step: tl.constexpr,
    heads: tl.constexpr, size: tl.constexpr, width: tl.constexpr, columns: tl.constexpr, causal: tl.constexpr,
    drops: tl.constexpr, masked: tl.constexpr,
):  # fmt: skip
    """Adds keys low to high to the running softmax of a block of queries."""
    for first in range(low, high, columns):
        column = first + tl.arange(0, columns)
        key = _read(keys, column, length, step, size, width, masked)
        scores = tl.dot(query, tl.trans(key)) * scale
        if masked:
            seen = (column < length)[None, :]
            if causal:
                seen = seen & (column[None, :] <= row[:, None])
            scores = tl.where(seen, scores, -1e30)  # finite: a row that has seen nothing yet gives no NaN
        higher = tl.maximum(highest, tl.max(scores, 1))
        share = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(highest - higher)
        total = total * shrink + tl.sum(share, 1)
        if drops:  # behind the softmax: its sum is that of all weights
            share = share * kept(drawn, row[:, None], column[None, :], drops)
        value = _read(keys + heads * size, column, length, step, size, width, masked)
        mixed = tl.dot(share.to(value.dtype), value, mixed * shrink[:, None])
        highest = higher
    return mixed, highest, total


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    qkv, bounds, seed, out, sums, tokens, scale: tl.constexpr, heads: tl.constexpr, size: tl.constexpr,
    width: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr, causal: tl.constexpr, drops: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    # loaded here and not in a function: torch takes what a call returns for an address of what the call was given, and
    # a model whose bounds seem to be written is neither recorded nor free of copies
    start = tl.load(bounds + tl.program_id(2))
    length = tl.load(bounds + tl.program_id(2) + 1) - start
    start = start.to(tl.int64)
    first = tl.program_id(0) * rows
    if first >= length:
        return
    row = first + tl.arange(0, rows)
    step: tl.constexpr = 3 * heads * size
    queries = qkv + start * step + head * size
    query = _read(queries, row, length, step, size, width, True)
    mixed = tl.zeros([rows, width], tl.float32)
    highest = tl.full([rows], -1e30, tl.float32)
    total = tl.zeros([rows], tl.float32)
    keys = queries + heads * size
    if causal:  # up to here all queries of the block see all keys
        clear = (first + 1) // columns * columns
        end = tl.minimum(length, first + rows)
    else:
        clear = length // columns * columns
        end = length
    drawn = 0
    if drops:
        drawn = key_of(tl.load(seed), tl.program_id(2) * heads + head)
    mixed, highest, total = _gather(
        mixed, highest, total, query, keys, drawn, row, length, 0, clear, scale, step, heads, size, width, columns,
        causal, drops, False,
    )  # fmt: skip
    mixed, highest, total = _gather(
        mixed, highest, total, query, keys, drawn, row, length, clear, end, scale, step, heads, size, width, columns,
        causal, drops, True,
    )  # fmt: skip
    _write(out + (start * heads + head) * size, row, length, mixed / total[:, None], heads * size, size, width)
    tl.store(sums + head * tokens + start + row, highest + tl.log2(total), mask=row < length)


@triton.jit
def _pull_query(  # type: ignore[no-untyped-def]
    by_query, query, slope, row_sum, row_mean, keys, drawn, row, length, low, high, scale: tl.constexpr,
    step: tl.constexpr, heads: tl.constexpr, size: tl.constexpr, width: tl.constexpr, columns: tl.constexpr,
    causal: tl.constexpr, drops: tl.constexpr, masked: tl.constexpr,
):  # fmt: skip
    for first in range(low, high, columns):
        column = first + tl.arange(0, columns)
        key = _read(keys, column, length, step, size, width, masked)
        value = _read(keys + heads * size, column, length, step, size, width, masked)
        share = tl.exp2(tl.dot(query, tl.trans(key)) * scale - row_sum[:, None])
        if masked:
            seen = (column < length)[None, :]
            if causal:
                seen = seen & (column[None, :] <= row[:, None])
            share = tl.where(seen, share, 0.0)
        by_share = tl.dot(slope, tl.trans(value))
        if drops:
            by_share = by_share * kept(drawn, row[:, None], column[None, :], drops)
        by_score = share * (by_share - row_mean[:, None])
        by_query = tl.dot(by_score.to(key.dtype), key, by_query)
    return by_query


@triton.jit
def _by_query(  # type: ignore[no-untyped-def]
    grad, qkv, mixed, bounds, seed, sums, means, out, tokens, scale: tl.constexpr, back: tl.constexpr,
    heads: tl.constexpr, size: tl.constexpr, width: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr,
    causal: tl.constexpr, drops: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    start = tl.load(bounds + tl.program_id(2))
    length = tl.load(bounds + tl.program_id(2) + 1) - start
    start = start.to(tl.int64)
    first = tl.program_id(0) * rows
    if first >= length:
        return
    row = first + tl.arange(0, rows)
    step: tl.constexpr = 3 * heads * size
    queries = qkv + start * step + head * size
    keys = queries + heads * size
    query = _read(queries, row, length, step, size, width, True)
    place = (start * heads + head) * size
    slope = _read(grad + place, row, length, heads * size, size, width, True)
    result = _read(mixed + place, row, length, heads * size, size, width, True)
    # sum(share * derivative) over the keys, which the derivative of a softmax takes away, is this
    row_mean = tl.sum(slope.to(tl.float32) * result.to(tl.float32), 1)
    tl.store(means + head * tokens + start + row, row_mean, mask=row < length)
    row_sum = tl.load(sums + head * tokens + start + row, mask=row < length, other=float("inf"))
    if causal:
        clear = (first + 1) // columns * columns
        end = tl.minimum(length, first + rows)
    else:
        clear = length // columns * columns
        end = length
    drawn = 0
    if drops:
        drawn = key_of(tl.load(seed), tl.program_id(2) * heads + head)
    by_query = tl.zeros([rows, width], tl.float32)
    by_query = _pull_query(
        by_query, query, slope, row_sum, row_mean, keys, drawn, row, length, 0, clear, scale, step, heads, size,
        width, columns, causal, drops, False,
    )  # fmt: skip
    by_query = _pull_query(
        by_query, query, slope, row_sum, row_mean, keys, drawn, row, length, clear, end, scale, step, heads, size,
        width, columns, causal, drops, True,
    )  # fmt: skip
    _write(out + start * step + head * size, row, length, by_query * back, step, size, width)


@triton.jit
def _pull_key(  # type: ignore[no-untyped-def]
    by_key, by_value, key, value, queries, slopes, sums, means, drawn, column, length, low, high, scale: tl.constexpr,
    step: tl.constexpr, heads: tl.constexpr, size: tl.constexpr, width: tl.constexpr, rows: tl.constexpr,
    causal: tl.constexpr, drops: tl.constexpr, masked: tl.constexpr,
):  # fmt: skip
    """Scores lie turned here, (keys, queries): so they are the left factor of both products, as they are."""
    for first in range(low, high, rows):
        row = first + tl.arange(0, rows)
        query = _read(queries, row, length, step, size, width, masked)
        if masked:  # an infinite sum makes every share of a row behind the end 0
            row_sum = tl.load(sums + row, mask=row < length, other=float("inf"))
            row_mean = tl.load(means + row, mask=row < length, other=0.0)
        else:
            row_sum = tl.load(sums + row)
            row_mean = tl.load(means + row)
        share = tl.exp2(tl.dot(key, tl.trans(query)) * scale - row_sum[None, :])
        if masked and causal:
            share = tl.where(column[:, None] <= row[None, :], share, 0.0)
        slope = _read(slopes, row, length, heads * size, size, width, masked)
        by_share = tl.dot(value, tl.trans(slope))
        if drops:
            stays = kept(drawn, row[None, :], column[:, None], drops)
            by_value = tl.dot((share * stays).to(slope.dtype), slope, by_value)
            by_share = by_share * stays
        else:
            by_value = tl.dot(share.to(slope.dtype), slope, by_value)
        by_score = share * (by_share - row_mean[None, :])
        by_key = tl.dot(by_score.to(query.dtype), query, by_key)
    return by_key, by_value


@triton.jit
def _by_key(  # type: ignore[no-untyped-def]
    grad, qkv, bounds, seed, sums, means, out, tokens, scale: tl.constexpr, back: tl.constexpr,
    heads: tl.constexpr, size: tl.constexpr, width: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr,
    causal: tl.constexpr, drops: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    start = tl.load(bounds + tl.program_id(2))
    length = tl.load(bounds + tl.program_id(2) + 1) - start
    start = start.to(tl.int64)
    first = tl.program_id(0) * columns
    if first >= length:
        return
    column = first + tl.arange(0, columns)
    step: tl.constexpr = 3 * heads * size
    queries = qkv + start * step + head * size
    slopes = grad + (start * heads + head) * size
    sums += head * tokens + start
    means += head * tokens + start
    key = _read(queries + heads * size, column, length, step, size, width, True)
    value = _read(queries + 2 * heads * size, column, length, step, size, width, True)
    drawn = 0
    if drops:
        drawn = key_of(tl.load(seed), tl.program_id(2) * heads + head)
    by_key = tl.zeros([columns, width], tl.float32)
    by_value = tl.zeros([columns, width], tl.float32)
    clear = length // rows * rows  # whole blocks of queries
    low = 0
    if causal:  # the blocks of queries that cross the diagonal; those behind see every key of this block
        low = first // rows * rows
        crossed = tl.minimum((first + columns + rows - 1) // rows * rows, length)
        by_key, by_value = _pull_key(
            by_key, by_value, key, value, queries, slopes, sums, means, drawn, column, length, low, crossed, scale,
            step, heads, size, width, rows, causal, drops, True,
        )  # fmt: skip
        low = (first + columns + rows - 1) // rows * rows
        clear = tl.maximum(clear, low)
    by_key, by_value = _pull_key(
        by_key, by_value, key, value, queries, slopes, sums, means, drawn, column, length, low, clear, scale, step,
        heads, size, width, rows, causal, drops, False,
    )  # fmt: skip
    by_key, by_value = _pull_key(
        by_key, by_value, key, value, queries, slopes, sums, means, drawn, column, length, clear, length, scale, step,
        heads, size, width, rows, causal, drops, True,
    )  # fmt: skip
    to = out + start * step + head * size
    _write(to + heads * size, column, length, by_key * back, step, size, width)
    _write(to + 2 * heads * size, column, length, by_value, step, size, width)


def fits(size: int, dtype: torch.dtype) -> bool:
    """Whether these kernels serve: bf16 or float16, heads of 16 to 128."""
    return 16 <= size <= 128 and dtype in (torch.bfloat16, torch.float16)


def _shape(qkv: Tensor, causal: bool, dropout: float, tiles: tuple[int, int, int, int]) -> dict[str, Any]:
    _, _, heads, size = qkv.shape
    rows, columns, warps, stages = tiles
    shape = {"heads": heads, "size": size, "width": triton.next_power_of_2(size), "causal": causal}
    # scale is a constant of a kernel: as a number, a compiled graph hands it over in float64
    shape |= {"scale": size**-0.5 * LOG2E, "drops": round(dropout * STEPS)}
    return shape | {"rows": rows, "columns": columns, "num_warps": warps, "num_stages": stages}


@triton_op("etude::attend_tiled", mutates_args={})
def attend_tiled(
    qkv: Tensor, bounds: Tensor, seed: Tensor, longest: int, causal: bool, dropout: float
) -> tuple[Tensor, Tensor]:
    """(N, 3, H, d), (S+1,) -> (N, H, d), and log2 of the sum of each row's exponentials, (H, N).

    `seed` is one int64, on the device, and only read with dropout.
    """
    qkv = qkv.contiguous()
    tokens, _, heads, size = qkv.shape
    out = qkv.new_empty(tokens, heads, size)
    sums = qkv.new_empty(heads, tokens, dtype=torch.float32)
    grid = (triton.cdiv(longest, FORWARD[0]), heads, bounds.shape[0] - 1)
    wrap_triton(_forward)[grid](qkv, bounds, seed, out, sums, tokens, **_shape(qkv, causal, dropout, FORWARD))
    return out, sums


@triton_op("etude::attend_tiled_backward", mutates_args={})
def attend_tiled_backward(
    grad: Tensor, qkv: Tensor, mixed: Tensor, sums: Tensor, bounds: Tensor, seed: Tensor, longest: int, causal: bool,
    dropout: float,
) -> Tensor:  # fmt: skip
    """(N, H, d), (N, 3, H, d) -> the gradient of the latter."""
    grad, qkv = grad.contiguous(), qkv.contiguous()
    tokens, _, heads, size = qkv.shape
    out, means = torch.empty_like(qkv), torch.empty_like(sums)
    sequences, back = bounds.shape[0] - 1, size**-0.5
    wrap_triton(_by_query)[(triton.cdiv(longest, BY_QUERY[0]), heads, sequences)](
        grad, qkv, mixed, bounds, seed, sums, means, out, tokens, back=back, **_shape(qkv, causal, dropout, BY_QUERY)
    )
    wrap_triton(_by_key)[(triton.cdiv(longest, BY_KEY[1]), heads, sequences)](
        grad, qkv, bounds, seed, sums, means, out, tokens, back=back, **_shape(qkv, causal, dropout, BY_KEY)
    )
    return out


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    qkv, bounds, seed, *ctx.rest = inputs
    ctx.save_for_backward(qkv, *output, bounds, seed)
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return attend_tiled_backward(grad, *ctx.saved_tensors, *ctx.rest), None, None, None, None, None


attend_tiled.register_autograd(_differentiate, setup_context=_keep)
