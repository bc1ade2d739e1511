"""Attention within sequences of any length, tile by tile: for Hopper and later GPUs.

The flash algorithm (Dao et al. 2022; Dao 2023) in kernels of our own. torch's flash kernels were made for the previous
generation and reach a third of what Hopper can do at heads of 64; and they leave the gradients of queries, keys and
values in three tensors, to be copied together. Here queries, keys and values are read as the projection leaves them,
(N, 3, H, d), and the gradient is written the same way. Each of its numbers is summed by one program in one order, so
that results repeat to the bit.

    forward      a block of queries passes over the keys; stored is log2 of each row's sum of exponentials
    query grad   the gradient of a block of queries; and sum(gradient * output) of each row, which "key grad" needs
    key grad     the gradients of a block of keys and values, which passes over the queries

A softmax does not depend on the reference its scores are measured from, and a float is as exact at one scale as at
another. So the forward pass measures from the score of a query with its own key, which it always sees, and needs no
running maximum: a third fewer instructions. Where a sum reaches 2^100, because a score is 69 above that one, the block
starts again, with a maximum; so does every block in float16, whose range is narrow.

Sequences lie between bounds; trailing ones may be empty. Tiles that cross the diagonal or the end of a sequence are
masked, the others are not. To a compiler all three are operators that it does not trace into: it cannot set how many
registers a kernel may use. Triton comes with torch where that is built for CUDA; only `nn/attention/dispatch.py`
imports this file, and only there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import custom_op

from etude.nn.triton.dropout import STEPS, dropout_factor, head_key

LOG2E = 1.4426950408889634  # the hardware's exponential is a power of two
# Of a launch: CUDA has 65,535 programs along an axis that is not the first. A multiple of 16, as the address of bounds.
MAX_SEQUENCES = 65_520


class Tiles(NamedTuple):
    """The tile sizes and launch settings of a kernel.

    `edge` is the number of stages of loops over masked tiles, which are short. `registers` is the most a thread may
    use, where 0 leaves it to the compiler; it is ignored with dropout and for heads wider than 64. Operands that stay
    `in_registers` are not read from shared memory for every product.
    """

    rows: int
    columns: int
    warps: int
    stages: int
    edge: int
    registers: int
    in_registers: bool = False


# The fastest of those benchmarks/tiled_attention.py tried on an H200.
FORWARD, QUERY_GRAD = Tiles(64, 64, 4, 3, 1, 128), Tiles(64, 32, 4, 3, 3, 0)
KEY_GRAD, KEY_GRAD_CAUSAL = Tiles(32, 64, 4, 3, 1, 128), Tiles(32, 64, 4, 3, 1, 168, in_registers=True)

_LARGEST_SUM = tl.constexpr(2.0**100)  # of a sum of exponentials: products with it are still finite in float32


@triton.jit
def _read(at, row, length, step: tl.constexpr, size: tl.constexpr, width: tl.constexpr, masked: tl.constexpr):  # type: ignore[no-untyped-def]
    """Read rows of one head, (rows, width); zeros after the end of the sequence and of the head."""
    lane = tl.arange(0, width)
    pointers = at + row[:, None] * step + lane[None, :]
    if size == width:
        if masked:
            return tl.load(pointers, mask=(row < length)[:, None], other=0.0)
        return tl.load(pointers)
    return tl.load(pointers, mask=(row < length)[:, None] & (lane < size)[None, :], other=0.0)


@triton.jit
def _write(at, row, length, tile, step: tl.constexpr, size: tl.constexpr, width: tl.constexpr):  # type: ignore[no-untyped-def]
    lane = tl.arange(0, width)
    in_bounds = (row < length)[:, None] & (lane < size)[None, :]
    tl.store(at + row[:, None] * step + lane[None, :], tile.to(at.dtype.element_ty), mask=in_bounds)


@triton.jit
def _hold_in_registers(tile, width: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the same numbers as the result of a product, which leaves them in registers."""
    identity = tl.arange(0, width)[:, None] == tl.arange(0, width)[None, :]
    return tl.dot(tile, identity.to(tile.dtype)).to(tile.dtype)


@triton.jit
def _visible(row, length, first, columns: tl.constexpr, causal: tl.constexpr):  # type: ignore[no-untyped-def]
    """(rows, columns): whether a query sees a key of the tile that starts at `first`.

    One comparison for each.
    """
    last = row * 0 + length - 1
    if causal:
        last = tl.minimum(last, row)
    return tl.arange(0, columns)[None, :] <= (last - first)[:, None]


@triton.jit
def _add_keys(  # type: ignore[no-untyped-def]
    mixed, total, query, reference, keys, dropout_key, row, length, low, high, scale: tl.constexpr,
    step: tl.constexpr, heads: tl.constexpr, size: tl.constexpr, width: tl.constexpr, columns: tl.constexpr,
    causal: tl.constexpr, drops: tl.constexpr, edge: tl.constexpr, masked: tl.constexpr,
):  # fmt: skip
    """Add keys low to high to the sums of a block of queries, all of them relative to `reference`."""
    for first in tl.range(low, high, columns, num_stages=edge if masked else None):
        column = first + tl.arange(0, columns)
        key = _read(keys, column, length, step, size, width, masked)
        probs = tl.exp2(tl.dot(query, tl.trans(key)) * scale - reference[:, None])
        if masked:
            probs = tl.where(_visible(row, length, first, columns, causal), probs, 0.0)
        total += tl.sum(probs, 1)
        if drops:  # after the softmax: its sum is that of all weights
            probs = probs * dropout_factor(dropout_key, row[:, None], column[None, :], drops)
        value = _read(keys + heads * size, column, length, step, size, width, masked)
        mixed = tl.dot(probs.to(value.dtype), value, mixed)
    return mixed, total


@triton.jit
def _add_keys_running_max(  # type: ignore[no-untyped-def]
    query, keys, dropout_key, row, length, end, scale: tl.constexpr, step: tl.constexpr, heads: tl.constexpr,
    size: tl.constexpr, width: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr, causal: tl.constexpr,
    drops: tl.constexpr,
):  # fmt: skip
    """Compute the same sums with a running maximum, for scores of any size and dtypes of any range."""
    mixed = tl.zeros([rows, width], tl.float32)
    highest = tl.full([rows], -1e30, tl.float32)
    total = tl.zeros([rows], tl.float32)
    for first in tl.range(0, end, columns, num_stages=1):
        column = first + tl.arange(0, columns)
        key = _read(keys, column, length, step, size, width, True)
        scores = tl.dot(query, tl.trans(key)) * scale
        # finite: a row that has seen nothing yet gives no NaN
        scores = tl.where(_visible(row, length, first, columns, causal), scores, -1e30)
        higher = tl.maximum(highest, tl.max(scores, 1))
        probs = tl.exp2(scores - higher[:, None])
        rescale = tl.exp2(highest - higher)
        total = total * rescale + tl.sum(probs, 1)
        if drops:
            probs = probs * dropout_factor(dropout_key, row[:, None], column[None, :], drops)
        value = _read(keys + heads * size, column, length, step, size, width, True)
        mixed = tl.dot(probs.to(value.dtype), value, mixed * rescale[:, None])
        highest = higher
    return mixed, highest, total


@triton.jit
def _forward_kernel(  # type: ignore[no-untyped-def]
    qkv, bounds, seed, out, sums, tokens, scale: tl.constexpr, heads: tl.constexpr, size: tl.constexpr,
    width: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr, causal: tl.constexpr, drops: tl.constexpr,
    edge: tl.constexpr,
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
    if causal:  # up to here all queries of the block see all keys
        unmasked_end = (first + 1) // columns * columns
        end = tl.minimum(length, first + rows)
    else:
        unmasked_end = length // columns * columns
        end = length
    dropout_key = 0
    if drops:
        dropout_key = head_key(tl.load(seed), tl.program_id(2) * heads + head)
    if qkv.dtype.element_ty == tl.float16:
        mixed, reference, total = _add_keys_running_max(
            query, keys, dropout_key, row, length, end, scale, step, heads, size, width, rows, columns, causal, drops
        )  # fmt: skip
    else:
        own_key = _read(keys, row, length, step, size, width, True)
        reference = tl.sum(query.to(tl.float32) * own_key.to(tl.float32), 1) * scale
        mixed = tl.zeros([rows, width], tl.float32)
        total = tl.zeros([rows], tl.float32)
        mixed, total = _add_keys(
            mixed, total, query, reference, keys, dropout_key, row, length, 0, unmasked_end, scale, step,
            heads, size, width, columns, causal, drops, edge, False,
        )  # fmt: skip
        mixed, total = _add_keys(
            mixed, total, query, reference, keys, dropout_key, row, length, unmasked_end, end, scale, step,
            heads, size, width, columns, causal, drops, edge, True,
        )  # fmt: skip
        if not (tl.max(total, 0) < _LARGEST_SUM):
            mixed, reference, total = _add_keys_running_max(
                query, keys, dropout_key, row, length, end, scale, step, heads, size, width, rows, columns, causal,
                drops,
            )  # fmt: skip
    _write(out + (start * heads + head) * size, row, length, mixed / total[:, None], heads * size, size, width)
    tl.store(sums + head * tokens + start + row, reference + tl.log2(total), mask=row < length)


@triton.jit
def _add_query_grad(  # type: ignore[no-untyped-def]
    grad_query, query, grad_out, row_log_sum, row_dot, keys, dropout_key, row, length, low, high,
    scale: tl.constexpr, step: tl.constexpr, heads: tl.constexpr, size: tl.constexpr, width: tl.constexpr,
    columns: tl.constexpr, causal: tl.constexpr, drops: tl.constexpr, edge: tl.constexpr, masked: tl.constexpr,
):  # fmt: skip
    for first in tl.range(low, high, columns, num_stages=edge if masked else None):
        column = first + tl.arange(0, columns)
        key = _read(keys, column, length, step, size, width, masked)
        value = _read(keys + heads * size, column, length, step, size, width, masked)
        probs = tl.exp2(tl.dot(query, tl.trans(key)) * scale - row_log_sum[:, None])
        if masked:
            probs = tl.where(_visible(row, length, first, columns, causal), probs, 0.0)
        grad_probs = tl.dot(grad_out, tl.trans(value))
        if drops:
            grad_probs = grad_probs * dropout_factor(dropout_key, row[:, None], column[None, :], drops)
        grad_scores = probs * (grad_probs - row_dot[:, None])
        grad_query = tl.dot(grad_scores.to(key.dtype), key, grad_query)
    return grad_query


@triton.jit
def _query_grad_kernel(  # type: ignore[no-untyped-def]
    grad, qkv, mixed, bounds, seed, sums, row_dots, out, tokens, scale: tl.constexpr, grad_scale: tl.constexpr,
    heads: tl.constexpr, size: tl.constexpr, width: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr,
    causal: tl.constexpr, drops: tl.constexpr, edge: tl.constexpr,
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
    offset = (start * heads + head) * size
    grad_out = _read(grad + offset, row, length, heads * size, size, width, True)
    result = _read(mixed + offset, row, length, heads * size, size, width, True)
    # sum(probs * grad_probs) over the keys, which the derivative of a softmax subtracts
    row_dot = tl.sum(grad_out.to(tl.float32) * result.to(tl.float32), 1)
    tl.store(row_dots + head * tokens + start + row, row_dot, mask=row < length)
    row_log_sum = tl.load(sums + head * tokens + start + row, mask=row < length, other=float("inf"))
    if causal:
        unmasked_end = (first + 1) // columns * columns
        end = tl.minimum(length, first + rows)
    else:
        unmasked_end = length // columns * columns
        end = length
    dropout_key = 0
    if drops:
        dropout_key = head_key(tl.load(seed), tl.program_id(2) * heads + head)
    grad_query = tl.zeros([rows, width], tl.float32)
    grad_query = _add_query_grad(
        grad_query, query, grad_out, row_log_sum, row_dot, keys, dropout_key, row, length, 0,
        unmasked_end, scale, step, heads, size, width, columns, causal, drops, edge, False,
    )  # fmt: skip
    grad_query = _add_query_grad(
        grad_query, query, grad_out, row_log_sum, row_dot, keys, dropout_key, row, length,
        unmasked_end, end, scale, step, heads, size, width, columns, causal, drops, edge, True,
    )  # fmt: skip
    _write(out + start * step + head * size, row, length, grad_query * grad_scale, step, size, width)


@triton.jit
def _add_key_grad(  # type: ignore[no-untyped-def]
    grad_key, grad_value, key, value, queries, grad_outs, sums, row_dots, dropout_key, column, length,
    low, high, scale: tl.constexpr, step: tl.constexpr, heads: tl.constexpr, size: tl.constexpr, width: tl.constexpr,
    rows: tl.constexpr, causal: tl.constexpr, drops: tl.constexpr, edge: tl.constexpr, masked: tl.constexpr,
):  # fmt: skip
    """Add the gradients from queries low to high. Scores are transposed, (keys, queries).

    So they are the left factor of both products as they are.
    """
    for first in tl.range(low, high, rows, num_stages=edge if masked else None):
        row = first + tl.arange(0, rows)
        query = _read(queries, row, length, step, size, width, masked)
        if masked:  # an infinite sum makes every probability of a row after the end 0
            row_log_sum = tl.load(sums + row, mask=row < length, other=float("inf"))
            row_dot = tl.load(row_dots + row, mask=row < length, other=0.0)
        else:
            row_log_sum = tl.load(sums + row)
            row_dot = tl.load(row_dots + row)
        probs = tl.exp2(tl.dot(key, tl.trans(query)) * scale - row_log_sum[None, :])
        if masked and causal:
            probs = tl.where(column[:, None] <= row[None, :], probs, 0.0)
        grad_out = _read(grad_outs, row, length, heads * size, size, width, masked)
        grad_probs = tl.dot(value, tl.trans(grad_out))
        if drops:
            factor = dropout_factor(dropout_key, row[None, :], column[:, None], drops)
            grad_value = tl.dot((probs * factor).to(grad_out.dtype), grad_out, grad_value)
            grad_probs = grad_probs * factor
        else:
            grad_value = tl.dot(probs.to(grad_out.dtype), grad_out, grad_value)
        grad_scores = probs * (grad_probs - row_dot[None, :])
        grad_key = tl.dot(grad_scores.to(query.dtype), query, grad_key)
    return grad_key, grad_value


@triton.jit
def _key_grad_kernel(  # type: ignore[no-untyped-def]
    grad, qkv, bounds, seed, sums, row_dots, out, tokens, scale: tl.constexpr, grad_scale: tl.constexpr,
    heads: tl.constexpr, size: tl.constexpr, width: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr,
    causal: tl.constexpr, drops: tl.constexpr, edge: tl.constexpr, in_registers: tl.constexpr,
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
    grad_outs = grad + (start * heads + head) * size
    sums += head * tokens + start
    row_dots += head * tokens + start
    key = _read(queries + heads * size, column, length, step, size, width, True)
    value = _read(queries + 2 * heads * size, column, length, step, size, width, True)
    if in_registers:
        key = _hold_in_registers(key, width)
        value = _hold_in_registers(value, width)
    dropout_key = 0
    if drops:
        dropout_key = head_key(tl.load(seed), tl.program_id(2) * heads + head)
    grad_key = tl.zeros([columns, width], tl.float32)
    grad_value = tl.zeros([columns, width], tl.float32)
    unmasked_end = length // rows * rows  # whole blocks of queries
    low = 0
    if causal:  # the blocks of queries that cross the diagonal; later ones see every key of this block
        low = first // rows * rows
        diagonal_end = tl.minimum((first + columns + rows - 1) // rows * rows, length)
        grad_key, grad_value = _add_key_grad(
            grad_key, grad_value, key, value, queries, grad_outs, sums, row_dots, dropout_key, column,
            length, low, diagonal_end, scale, step, heads, size, width, rows, causal, drops, edge, True,
        )  # fmt: skip
        low = (first + columns + rows - 1) // rows * rows
        unmasked_end = tl.maximum(unmasked_end, low)
    grad_key, grad_value = _add_key_grad(
        grad_key, grad_value, key, value, queries, grad_outs, sums, row_dots, dropout_key, column,
        length, low, unmasked_end, scale, step, heads, size, width, rows, causal, drops, edge, False,
    )  # fmt: skip
    grad_key, grad_value = _add_key_grad(
        grad_key, grad_value, key, value, queries, grad_outs, sums, row_dots, dropout_key, column,
        length, unmasked_end, length, scale, step, heads, size, width, rows, causal, drops, edge, True,
    )  # fmt: skip
    target = out + start * step + head * size
    _write(target + heads * size, column, length, grad_key * grad_scale, step, size, width)
    _write(target + 2 * heads * size, column, length, grad_value, step, size, width)


def supports_shape(size: int, dtype: torch.dtype) -> bool:
    """Whether these kernels apply: bf16 or float16, heads of 16 to 128."""
    return 16 <= size <= 128 and dtype in (torch.bfloat16, torch.float16)


def _shape(qkv: Tensor, causal: bool, dropout: float, tiles: Tiles) -> dict[str, int | float]:
    _, _, heads, size = qkv.shape
    shape = {"heads": heads, "size": size, "width": triton.next_power_of_2(size), "causal": causal}
    # scale is a constant of a kernel: as a number, a compiled graph hands it over in float64
    shape |= {"scale": size**-0.5 * LOG2E, "drops": round(dropout * STEPS)}
    shape |= {"rows": tiles.rows, "columns": tiles.columns, "edge": tiles.edge}
    if tiles.registers and not dropout and size <= 64:
        shape["maxnreg"] = tiles.registers
    return shape | {"num_warps": tiles.warps, "num_stages": tiles.stages}


def _parts(bounds: Tensor, seed: Tensor, dropout: float) -> Iterator[tuple[Tensor, int, Tensor]]:
    """Yield the bounds of as many sequences as a launch may have, their number, and the seed of their dropout."""
    sequences = bounds.shape[0] - 1
    for first in range(0, sequences, MAX_SEQUENCES):
        count = min(MAX_SEQUENCES, sequences - first)
        yield bounds[first:], count, seed + first if dropout and first else seed


@custom_op("etude::attend_tiled", mutates_args={})
def attend_tiled(
    qkv: Tensor, bounds: Tensor, seed: Tensor, longest: int, causal: bool, dropout: float
) -> tuple[Tensor, Tensor]:
    """(N, 3, H, d), (S+1,) -> (N, H, d), and log2 of the sum of each row's exponentials, (H, N).

    `seed` is one int64, on the device, and only read with dropout.
    """
    qkv = qkv.contiguous()
    out, sums = _like_results(qkv)
    tokens, heads, _ = out.shape
    blocks, shape = triton.cdiv(longest, FORWARD.rows), _shape(qkv, causal, dropout, FORWARD)
    with torch.cuda.device_of(qkv):
        for part, sequences, part_seed in _parts(bounds, seed, dropout):
            _forward_kernel[(blocks, heads, sequences)](qkv, part, part_seed, out, sums, tokens, **shape)
    return out, sums


@attend_tiled.register_fake
def _(qkv: Tensor, bounds: Tensor, seed: Tensor, longest: int, causal: bool, dropout: float) -> tuple[Tensor, Tensor]:
    return _like_results(qkv)


def _like_results(qkv: Tensor) -> tuple[Tensor, Tensor]:
    tokens, _, heads, size = qkv.shape
    return qkv.new_empty(tokens, heads, size), qkv.new_empty(heads, tokens, dtype=torch.float32)


@custom_op("etude::attend_tiled_backward", mutates_args={})
def attend_tiled_backward(
    grad: Tensor, qkv: Tensor, mixed: Tensor, sums: Tensor, bounds: Tensor, seed: Tensor, longest: int, causal: bool,
    dropout: float,
) -> Tensor:  # fmt: skip
    """(N, H, d), (N, 3, H, d) -> the gradient of `qkv`."""
    grad, qkv = grad.contiguous(), qkv.contiguous()
    tokens, _, heads, size = qkv.shape
    out, row_dots = torch.empty_like(qkv), torch.empty_like(sums)
    shape = _shape(qkv, causal, dropout, QUERY_GRAD) | {"grad_scale": size**-0.5}
    keys = KEY_GRAD_CAUSAL if causal else KEY_GRAD
    key_shape = _shape(qkv, causal, dropout, keys) | {"grad_scale": size**-0.5, "in_registers": keys.in_registers}
    blocks, key_blocks = triton.cdiv(longest, QUERY_GRAD.rows), triton.cdiv(longest, keys.columns)
    with torch.cuda.device_of(qkv):
        for part, sequences, part_seed in _parts(bounds, seed, dropout):
            _query_grad_kernel[(blocks, heads, sequences)](
                grad, qkv, mixed, part, part_seed, sums, row_dots, out, tokens, **shape
            )
            _key_grad_kernel[(key_blocks, heads, sequences)](
                grad, qkv, part, part_seed, sums, row_dots, out, tokens, **key_shape
            )
    return out


@attend_tiled_backward.register_fake
def _(grad: Tensor, qkv: Tensor, *_: object) -> Tensor:
    return qkv.new_empty(qkv.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    qkv, bounds, seed, *ctx.rest = inputs
    ctx.save_for_backward(qkv, *output, bounds, seed)
    ctx.mark_non_differentiable(output[1])


def _autograd_backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return attend_tiled_backward(grad, *ctx.saved_tensors, *ctx.rest), None, None, None, None, None


attend_tiled.register_autograd(_autograd_backward, setup_context=_setup_context)
