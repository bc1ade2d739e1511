"""Distances of each query to candidates of its own, read from a table by number: three kernels for a CUDA device.

    forward    a program has a query and a tile of its candidates, and runs through the width, a block of columns of
               each candidate's row at a time. Nothing but distances is written
    queries    the gradient of a query: a program has a block of its columns and runs through its candidates
    table      the gradient of a row: a program has a block of its columns and runs through the queries that it was a
               candidate of, which `order` lists; a row that was none has the gradient 0

Candidates are never copied out of the table, and neither are their gradients: for TransE on FB15k-237 that array would
have 262,144 rows of 1,000 numbers, a gigabyte, which separate operations read or write eleven times in a step; here
rows are read three times, mostly from the cache, which holds nearly all of a table of 58 megabytes.

No program writes where another does, and sums have one order, so results repeat to the bit. nn/gathered_distances.py
has the formulas; only it imports this file, where Triton is installed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

KINDS = {"l1": 0, "l2": 1, "modulus": 2}
TILE = 16  # candidates, or queries, that a program reads at once
COLUMNS = 128  # of a block
WARPS = 4
TINY = tl.constexpr(1e-30)  # as in nn/pair_distances.py


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    queries, table, numbers, out, count, width, kind: tl.constexpr, tile: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    """queries (B, D), table (E, D), numbers (B, n) -> out (B, n)."""
    query = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * tile + tl.arange(0, tile)
    inside = places < count
    rows = tl.load(numbers + query * count + places, mask=inside, other=0).to(tl.int64)
    half = width // 2
    limit = half if kind == 2 else width
    total = tl.zeros((tile, block), tl.float32)
    for first in range(0, limit, block):
        columns = first + tl.arange(0, block)
        valid = columns < limit
        mask = inside[:, None] & valid[None, :]
        own = tl.load(queries + query * width + columns, mask=valid, other=0.0)
        starts = table + rows[:, None] * width + columns[None, :]
        # outside the width own and other are 0, so they add nothing but the root of TINY
        difference = own[None, :] - tl.load(starts, mask=mask, other=0.0)
        if kind == 0:
            total += tl.abs(difference)
        elif kind == 1:
            total += difference * difference
        else:  # modulus: imaginary parts lie half a width behind the real ones
            own = tl.load(queries + query * width + half + columns, mask=valid, other=0.0)
            imaginary = own[None, :] - tl.load(starts + half, mask=mask, other=0.0)
            modulus = tl.sqrt(tl.maximum(difference * difference + imaginary * imaginary, TINY))
            total += tl.where(mask, modulus, 0.0)
    distance = tl.sum(total, 1)
    if kind == 1:
        distance = tl.sqrt(distance)
    tl.store(out + query * count + places, distance, mask=inside)


@triton.jit
def _slope(own, partner, own_imaginary, partner_imaginary, weight, kind: tl.constexpr):  # type: ignore[no-untyped-def]
    """The slope of the distance along `own` times a weight: of the real and of the imaginary part."""
    difference = own - partner
    imaginary = own_imaginary - partner_imaginary
    if kind == 0:
        real_slope = tl.where(difference > 0, weight, tl.where(difference < 0, -weight, 0.0))
        imaginary_slope = real_slope
    elif kind == 1:
        real_slope = weight * difference
        imaginary_slope = real_slope
    else:
        scaled = weight / tl.sqrt(tl.maximum(difference * difference + imaginary * imaginary, TINY))
        real_slope = scaled * difference
        imaginary_slope = scaled * imaginary
    return real_slope, imaginary_slope


@triton.jit
def _slopes(  # type: ignore[no-untyped-def]
    rows, partners, partner_rows, places, bounds, weights, out, count, width, per_query, by_table: tl.constexpr,
    kind: tl.constexpr, tile: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """out (A, D): for each row the sum over its pairs of their weight times the slope.

    Of queries (`by_table` 0): pair k of row a is the place a * count + k, its partner is partners[partner_rows[place]].
    Of the table: pairs of row a are places[bounds[a] : bounds[a + 1]], its partner is partners[place // per_query].
    """
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * block + tl.arange(0, block)
    half = width // 2
    limit = half if kind == 2 else width
    valid = columns < limit
    own = tl.load(rows + row * width + columns, mask=valid, other=0.0)
    own_imaginary = own
    if kind == 2:
        own_imaginary = tl.load(rows + row * width + half + columns, mask=valid, other=0.0)
    total = tl.zeros((tile, block), tl.float32)
    total_imaginary = tl.zeros((tile, block), tl.float32)
    if by_table:
        start = tl.load(bounds + row).to(tl.int64)
        end = tl.load(bounds + row + 1).to(tl.int64)
    else:
        start = row * count
        end = start + count
    for first in range(start, end, tile):
        pairs = first + tl.arange(0, tile)
        inside = pairs < end
        if by_table:
            place = tl.load(places + pairs, mask=inside, other=0).to(tl.int64)
            partner_row = place // per_query
        else:
            place = pairs
            partner_row = tl.load(partner_rows + place, mask=inside, other=0).to(tl.int64)
        weight = tl.load(weights + place, mask=inside, other=0.0)[:, None]
        mask = inside[:, None] & valid[None, :]
        starts = partners + partner_row[:, None] * width + columns[None, :]
        partner = tl.load(starts, mask=mask, other=0.0)
        partner_imaginary = partner
        if kind == 2:
            partner_imaginary = tl.load(starts + half, mask=mask, other=0.0)
        real_slope, imaginary_slope = _slope(
            own[None, :], partner, own_imaginary[None, :], partner_imaginary, weight, kind
        )  # fmt: skip
        total += real_slope
        if kind == 2:
            total_imaginary += imaginary_slope
    tl.store(out + row * width + columns, tl.sum(total, 0), mask=valid)
    if kind == 2:
        tl.store(out + row * width + half + columns, tl.sum(total_imaginary, 0), mask=valid)


def forward(queries: Tensor, table: Tensor, numbers: Tensor, distance: str) -> Tensor:
    """Return the distances (B, n) of queries (B, D) to the rows `numbers` (B, n) of table (E, D), float32."""
    (batch, count), width = numbers.shape, table.shape[1]
    out = queries.new_empty(batch, count)
    tile, block = _sizes(count, width, distance)
    with torch.cuda.device_of(table):
        _forward[(batch, triton.cdiv(count, tile))](
            queries, table, numbers, out, count, width, KINDS[distance], tile, block, num_warps=WARPS
        )
    return out


def backward(queries: Tensor, table: Tensor, numbers: Tensor, grad: Tensor, distance: str) -> tuple[Tensor, Tensor]:
    """Return the gradients of queries and of the table; `grad` (B, n), of l2 divided by the distances already."""
    (batch, count), (entities, width) = numbers.shape, table.shape
    # the places of each row's pairs, in their order: int32 keys take half the passes of a radix sort
    keys, places = torch.sort(numbers.flatten().int(), stable=True)
    bounds = torch.searchsorted(keys, torch.arange(entities + 1, device=table.device, dtype=torch.int32))
    tile, block = _sizes(count, width, distance)
    columns = triton.cdiv(width // 2 if distance == "modulus" else width, block)
    query_grad, table_grad = torch.empty_like(queries), torch.empty_like(table)
    shared = (KINDS[distance], tile, block)
    with torch.cuda.device_of(table):
        _slopes[(batch, columns)](
            queries, table, numbers, numbers, numbers, grad, query_grad, count, width, count, False, *shared,
            num_warps=WARPS,
        )  # fmt: skip
        _slopes[(entities, columns)](
            table, queries, numbers, places, bounds, grad, table_grad, count, width, count, True, *shared,
            num_warps=WARPS,
        )  # fmt: skip
    return query_grad, table_grad


def _sizes(count: int, width: int, distance: str) -> tuple[int, int]:
    """Return the tile of candidates and the block of columns."""
    columns = width // 2 if distance == "modulus" else width
    return min(TILE, triton.next_power_of_2(count)), min(COLUMNS, triton.next_power_of_2(columns))
