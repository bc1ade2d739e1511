"""The likeliest tokens of many rows of logits, with their log-probabilities: one kernel for a CUDA device.

A program has a row of logits in its registers: it sums their exponentials, and takes the largest again and again. torch
converts the row, normalises it, masks it and selects from it by a dozen kernels, and most of them read all of it.

The single likeliest token of a row needs no registers for all of it, and takes any vocabulary.

nn/top_tokens.py has the formulas; only it imports this file, where Triton is installed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_VOCAB = 16_384  # a row lies in registers
COLUMNS_OF_WARP = 1024
MAX_COLUMNS = 8192  # read at once, where one token is chosen


@triton.jit
def _choose(  # type: ignore[no-untyped-def]
    logits, banned, values, tokens, row_stride, vocab, has_banned: tl.constexpr, count: tl.constexpr,
    columns: tl.constexpr,
):  # fmt: skip
    """logits (S, V), banned (V,) -> values, tokens (S, count); what is no number counts as the largest, as in torch."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, columns)
    inside = column < vocab
    row_logits = tl.load(logits + row * row_stride + column, mask=inside, other=float("-inf")).to(tl.float32)
    # else nothing is above it, and the place of a column behind the vocabulary might be taken for a token
    row_logits = tl.where(row_logits != row_logits, float("inf"), row_logits)
    largest = tl.max(row_logits, 0)
    normalizer = largest + tl.log(tl.sum(tl.exp(row_logits - largest), 0))
    if has_banned:  # they have their share of the probability, and are never chosen
        is_banned = tl.load(banned + column, mask=inside, other=0)
        row_logits = tl.where(is_banned != 0, float("-inf"), row_logits)
    for place in tl.static_range(count):
        token = tl.argmax(row_logits, 0)
        tl.store(values + row * count + place, tl.max(row_logits, 0) - normalizer)
        tl.store(tokens + row * count + place, token.to(tl.int64))
        row_logits = tl.where(column == token, float("-inf"), row_logits)


@triton.jit
def _choose_likeliest(logits, tokens, row_stride, vocab, columns: tl.constexpr):  # type: ignore[no-untyped-def]
    """logits (S, V) -> tokens (S,): the first of equal ones; what is no number counts as the largest, as in torch."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, columns)
    largest = tl.full([columns], float("-inf"), tl.float32)
    token = lane
    for start in range(0, vocab, columns):
        column = start + lane
        value = tl.load(logits + row * row_stride + column, mask=column < vocab, other=float("-inf")).to(tl.float32)
        value = tl.where(value != value, float("inf"), value)
        token = tl.where(value > largest, column, token)
        largest = tl.maximum(largest, value)
    token = tl.min(tl.where(largest == tl.max(largest, 0), token, vocab), 0)
    tl.store(tokens + row, token.to(tl.int64))


def supports_vocab(vocab: int) -> bool:
    """Whether a row fits into the registers of a program."""
    return vocab <= MAX_VOCAB


def choose_tokens(logits: Tensor, banned: Tensor | None, count: int) -> tuple[Tensor, Tensor]:
    """See nn/top_tokens.py."""
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    rows, vocab = logits.shape
    values = torch.empty((rows, count), dtype=torch.float32, device=logits.device)
    tokens = torch.empty((rows, count), dtype=torch.int64, device=logits.device)
    columns = triton.next_power_of_2(vocab)
    with torch.cuda.device_of(logits):
        _choose[(rows,)](
            logits, logits if banned is None else banned.view(torch.int8), values, tokens, logits.stride(0), vocab,
            has_banned=banned is not None, count=count, columns=columns,
            num_warps=min(16, max(1, columns // COLUMNS_OF_WARP)),
        )  # fmt: skip
    return values, tokens


def choose_likeliest(logits: Tensor) -> Tensor:
    """See nn/top_tokens.py."""
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    rows, vocab = logits.shape
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    columns = min(MAX_COLUMNS, triton.next_power_of_2(vocab))
    with torch.cuda.device_of(logits):
        _choose_likeliest[(rows,)](
            logits, tokens, logits.stride(0), vocab, columns=columns, num_warps=max(1, columns // COLUMNS_OF_WARP)
        )
    return tokens
