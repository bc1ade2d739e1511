"""Attention of the hypotheses of a source to it, one query each: a kernel for a CUDA device, in half precision.

A program has a head of a source. Its queries, one of each hypothesis, are the rows of a product with the source's keys,
so keys and values are read once for all of them, and the softmax is that of flash attention. Sums are in float32.

nn/attention/beams.py has the formulas; only it imports this file, where Triton is installed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 16  # the least of a product; hypotheses of a source at most
BLOCK = 32  # tokens of a source that a program reads at once
WARPS = 1


@triton.jit
def _attend(  # type: ignore[no-untyped-def]
    query, keys, values, mask, mixed, length, query_row, scale, heads: tl.constexpr, beams: tl.constexpr,
    size: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """query (G beams, H, d), keys, values (G, H, length, d), mask (G, length) -> mixed (G beams, H, d)."""
    source, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, column, lane = tl.arange(0, rows), tl.arange(0, columns), tl.arange(0, block)
    is_column = column < size
    is_query = (row < beams)[:, None] & is_column[None, :]
    inner = head * size + column[None, :]
    queries = tl.load(query + (source * beams + row)[:, None] * query_row + inner, mask=is_query, other=0.0)
    largest = tl.full([rows], float("-inf"), tl.float32)
    total = tl.zeros([rows], tl.float32)
    sums = tl.zeros([rows, columns], tl.float32)
    first = (source * heads + head) * length * size
    for start in range(0, length, block):
        token = start + lane
        is_token = token < length
        place = first + token[:, None] * size + column[None, :]
        inside = is_token[:, None] & is_column[None, :]
        part = tl.load(keys + place, mask=inside, other=0.0)
        scores = tl.dot(queries, tl.trans(part)) * scale
        scores += tl.load(mask + source * length + token, mask=is_token, other=float("-inf")).to(tl.float32)[None, :]
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        shrink, weights = tl.exp(largest - new_largest), tl.exp(scores - new_largest[:, None])
        part = tl.load(values + place, mask=inside, other=0.0)
        sums = sums * shrink[:, None] + tl.dot(weights.to(part.dtype), part)
        total = total * shrink + tl.sum(weights, 1)
        largest = new_largest
    out = mixed + (source * beams + row)[:, None] * heads * size + inner
    tl.store(out, (sums / total[:, None]).to(mixed.dtype.element_ty), mask=is_query)


def attend_beams(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, beams: int) -> Tensor:
    """See nn/attention/beams.py."""
    sources, heads, length, size = keys.shape
    query = query if query.stride()[1:] == (size, 1) else query.contiguous()
    keys, values, mask = keys.contiguous(), values.contiguous(), mask.contiguous()
    mixed = torch.empty((sources * beams, heads, size), dtype=query.dtype, device=query.device)
    with torch.cuda.device_of(query):
        _attend[(sources, heads)](
            query, keys, values, mask, mixed, length, query.stride(0), size**-0.5, heads=heads, beams=beams, size=size,
            rows=ROWS, columns=max(16, triton.next_power_of_2(size)), block=BLOCK, num_warps=WARPS,
        )  # fmt: skip
    return mixed
