"""Attention of one new token of every sequence to its cached ones: a kernel for a CUDA device.

A program has a head of a sequence. It stores the new key and value in the cache, and runs through the cached tokens
with the softmax of flash attention (a running maximum, and sums that are scaled when it rises). It reads the tokens
that there are, not the room for them, so a long buffer costs nothing; and it reads each from the row where that token
was stored, so a beam search never copies the past of a hypothesis. Sums are in float32.

nn/attention/step.py has the formulas; only it imports this file, where Triton is installed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Cached tokens that a program reads at once, and its warps; the fastest of those tried on an H200 with heads of 64.
# Few programs have a multiprocessor each, and read much at once; of many, each has a warp.
FEW_PROGRAMS = 512
FEW, MANY = (128, 8), (64, 1)


@triton.jit
def _attend(  # type: ignore[no-untyped-def]
    query, key, value, keys, values, places, origins, mixed, query_row, key_row, value_row, buffer_row, buffer_token,
    place_row, origin_row, scale, window, has_origins: tl.constexpr, has_window: tl.constexpr, size: tl.constexpr,
    columns: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """query, key, value (S, H, d), keys, values (S, room, H, d), places (S,) or (1,), origins (S, room) -> mixed."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, columns)
    inside = column < size
    inner = head * size + column
    place = tl.load(places + row * place_row)
    q = tl.load(query + row * query_row + inner, mask=inside, other=0.0).to(tl.float32) * scale
    stored = keys + row * buffer_row + place * buffer_token + inner
    k = tl.load(key + row * key_row + inner, mask=inside, other=0.0).to(keys.dtype.element_ty)
    tl.store(stored, k, mask=inside)
    v = tl.load(value + row * value_row + inner, mask=inside, other=0.0).to(values.dtype.element_ty)
    tl.store(values + row * buffer_row + place * buffer_token + inner, v, mask=inside)
    # the new token sees itself, so the sums begin with it, and are never empty
    largest = tl.sum(q * k.to(tl.float32), 0)
    total = largest * 0.0 + 1.0
    sums = v.to(tl.float32)
    first = tl.maximum(place - window, 0) if has_window else place * 0
    for start in range(first, place, block):
        token = start + tl.arange(0, block)
        is_cached = token < place
        source = (
            tl.load(origins + row * origin_row + token, mask=is_cached, other=0).to(tl.int64) if has_origins else row
        )
        base = source * buffer_row + token * buffer_token
        address = base[:, None] + inner[None, :]
        readable = is_cached[:, None] & inside[None, :]
        past_keys = tl.load(keys + address, mask=readable, other=0.0)
        past_values = tl.load(values + address, mask=readable, other=0.0)  # under way while the scores are computed
        scores = tl.where(is_cached, tl.sum(past_keys.to(tl.float32) * q[None, :], 1), float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, 0))
        shrink, weights = tl.exp(largest - new_largest), tl.exp(scores - new_largest)
        sums = sums * shrink + tl.sum(past_values.to(tl.float32) * weights[:, None], 0)
        total = total * shrink + tl.sum(weights, 0)
        largest = new_largest
    tl.store(mixed + row * tl.num_programs(1) * size + inner, (sums / total).to(mixed.dtype.element_ty), mask=inside)


def attend_step(
    query: Tensor, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, places: Tensor, origins: Tensor | None,
    window: int | None,
) -> Tensor:  # fmt: skip
    """See nn/attention/step.py."""
    sequences, heads, size = query.shape
    query, key, value = (part if part.stride()[1:] == (size, 1) else part.contiguous() for part in (query, key, value))
    block, warps = FEW if sequences * heads <= FEW_PROGRAMS else MANY
    block = min(block, triton.next_power_of_2(keys.shape[1]))
    mixed = torch.empty((sequences, heads, size), dtype=query.dtype, device=query.device)
    with torch.cuda.device_of(query):
        _attend[(sequences, heads)](
            query, key, value, keys, values, places, places if origins is None else origins, mixed,
            query.stride(0), key.stride(0), value.stride(0), keys.stride(0), keys.stride(1),
            0 if len(places) == 1 else 1, 0 if origins is None else origins.stride(0), size**-0.5, window or 0,
            has_origins=origins is not None, has_window=window is not None, size=size,
            columns=triton.next_power_of_2(size), block=block, num_warps=warps,
        )  # fmt: skip
    return mixed
