"""Grouped attention: packed sequences of several lengths as a few dense batches (design decision 4).

Where all sequences of a batch have one length the flat tensors are reshaped and nothing is copied. Otherwise the
sequences are sorted into a few buckets of similar length and padded to the longest of their bucket. The buckets are
computed from the host's copy of the bounds, so a GPU is never waited for, once for each batch: the plan is stored in
the layout's cache and used by every layer.

Where a CPU trains by plain products (nn/attention/dense.py), few distinct shapes matter more, and
nn/attention/shared_rows.py arranges the sequences.

Each token fills exactly one slot of one bucket. So padding is a gather, removing the padding is another, and each is
the other's derivative: no scatter-add, the same bits every time.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from etude.nn.attention.dense import additive_mask, attend_dense, attend_matmul, prefers_matmul
from etude.nn.attention.length_groups import find_cheapest_runs, round_lengths
from etude.nn.attention.shared_rows import attend_shared_rows
from etude.nn.packed import Layout, send_array

# The cost of one more bucket, in units of one padded score (of all heads): on a CPU core a call takes as long as about
# a thousand; a GPU computes scores a thousand times faster and calls hardly faster.
_PRICE_CPU, _PRICE_GPU = 1e3, 1e6
_GRAIN = 8  # lengths are rounded up to a multiple of this: fewer distinct lengths, aligned rows


@dataclass
class Bucket:
    """Sequences of similar length, as rows of a dense batch."""

    lengths: np.ndarray  # (S,) real lengths, on the host
    length: int  # what they are padded to

    @property
    def ragged(self) -> bool:
        """Whether any sequence is padded."""
        return bool((self.lengths != self.length).any())


@dataclass
class Plan:
    """The arrangement of a layout's tokens in dense buckets."""

    buckets: list[Bucket]
    token_of_slot: Tensor | None  # (M,) the token in each slot, -1 at padding; None where a reshape suffices
    slot_of_token: Tensor | None  # (N,)
    device: torch.device
    masks: dict[Hashable, Tensor | None] = field(default_factory=dict)

    def mask(self, number: int, causal: bool, window: int | None, dtype: torch.dtype) -> Tensor | None:
        """Return the mask to add to the scores of a bucket, (S|1, 1, L|1, L), or None."""
        key = (number, causal, window, dtype)
        if key not in self.masks:
            self.masks[key] = self._mask(self.buckets[number], causal, window, dtype)
        return self.masks[key]

    def _mask(self, bucket: Bucket, causal: bool, window: int | None, dtype: torch.dtype) -> Tensor | None:
        position = np.arange(bucket.length)
        allowed: np.ndarray | None = None
        if window is not None and window < bucket.length - 1:
            allowed = (np.abs(position[:, None] - position[None, :]) <= window)[None, None]
        # Padding follows the real tokens: a causal query never reaches it
        if bucket.ragged and not causal:
            is_token = (position[None, :] < bucket.lengths[:, None])[:, None, None, :]
            allowed = is_token if allowed is None else allowed & is_token
        if allowed is None:
            return None
        if causal:
            allowed = allowed & (position[None, :] <= position[:, None])[None, None]
        return additive_mask(allowed, dtype).to(self.device)


def get_plan(layout: Layout, device: torch.device) -> Plan:
    """Return the plan of a layout, made once."""
    key = ("grouping", device)
    if key not in layout.cache:
        layout.cache[key] = make_plan(layout.host, device)
    plan: Plan = layout.cache[key]
    return plan


def make_plan(bounds: np.ndarray, device: torch.device) -> Plan:
    """Sort sequences into buckets, and compute the token of each slot and the slot of each token."""
    lengths = np.diff(bounds).astype(np.int64)
    nonempty = np.flatnonzero(lengths)  # empty sequences hold no token and need no slot
    if nonempty.size == 0:
        return Plan([], None, None, device)
    if (lengths[nonempty] == lengths[nonempty[0]]).all():
        return Plan([Bucket(lengths[nonempty], int(lengths[nonempty[0]]))], None, None, device)

    order = nonempty[np.argsort(lengths[nonempty], kind="stable")]
    buckets, tokens = [], []
    for members, length in choose_buckets(order, lengths[order], _PRICE_CPU if device.type == "cpu" else _PRICE_GPU):
        position = np.arange(length)[None, :]
        inside = position < lengths[members][:, None]
        tokens.append(np.where(inside, bounds[members].astype(np.int64)[:, None] + position, -1).ravel())
        buckets.append(Bucket(lengths[members], length))
    token_of_slot = np.concatenate(tokens)
    slot_of_token = np.empty(int(bounds[-1]), np.int64)
    filled = token_of_slot >= 0
    slot_of_token[token_of_slot[filled]] = np.flatnonzero(filled)
    return Plan(buckets, send_array(token_of_slot, device), send_array(slot_of_token, device), device)


def choose_buckets(order: np.ndarray, lengths: np.ndarray, price: float) -> list[tuple[np.ndarray, int]]:
    """Split sorted sequences into buckets of least cost: padded scores plus a price for each bucket."""
    sizes, starts = round_lengths(lengths, _GRAIN)

    def cost(end: int) -> np.ndarray:
        return (starts[end] - starts[:end]) * float(sizes[end - 1]) ** 2 + price

    runs = [slice(int(starts[begin]), int(starts[end])) for begin, end in find_cheapest_runs(len(sizes), cost)]
    return [(order[members], int(lengths[members].max())) for members in runs]


class _Rearrange(torch.autograd.Function):
    """out[i] = values[index[i]], 0 where index[i] < 0; `inverse` undoes it, and is its derivative.

    Exact because no row is read twice. Autograd's own rule for a gather is a scatter-add, which is slower and, on a
    GPU, not repeatable.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return _gather(values, index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        return _gather(grad, inverse), None, None


def move_rows(values: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
    """Return values[index], with zeros where the index is negative; `inverse` maps back, and is the derivative."""
    result: Tensor = _Rearrange.apply(values, index, inverse)
    return result


def rearrange(values: Tensor, plan: Plan) -> Tensor:
    """Bring (N, ...) into the order of the slots, with zeros at padding: one bucket after the other."""
    if plan.token_of_slot is None:
        return values
    result: Tensor = _Rearrange.apply(values, plan.token_of_slot, plan.slot_of_token)
    return result


def _gather(values: Tensor, index: Tensor) -> Tensor:
    """Gather rows, with zeros where the index is negative."""
    gathered = values.index_select(0, index.clamp(min=0))
    # counting the empty slots would wait for the GPU, and fake tensors have none to count
    if index.device.type != "cpu" or type(values) is not Tensor:
        return gathered.masked_fill_((index < 0).view(-1, *[1] * (values.dim() - 1)), 0.0)
    # on a CPU a mask over all takes three times as long as the gather
    empty = (index < 0).nonzero().view(-1)
    return gathered.index_fill_(0, empty, 0.0) if len(empty) else gathered


def attend_grouped(
    qkv: Tensor, layout: Layout, *, causal: bool, window: int | None = None, dropout: float = 0.0
) -> Tensor:
    """Attend within each sequence by dense batches: (N, 3, H, d) -> (N, H, d)."""
    if prefers_matmul((qkv,), dropout) and len(np.unique(layout.lengths[layout.lengths > 0])) > 1:
        return attend_shared_rows(qkv, layout, causal=causal, window=window, dropout=dropout)
    plan = get_plan(layout, qkv.device)
    if not plan.buckets:
        return qkv[:, 0].clone()  # no tokens, but part of the graph
    if plan.token_of_slot is None:
        return _attend_bucket(qkv, plan, 0, causal, window, dropout)
    padded = rearrange(qkv, plan)
    sizes = [len(bucket.lengths) * bucket.length for bucket in plan.buckets]
    mixed = [
        _attend_bucket(part, plan, number, causal, window, dropout) for number, part in enumerate(padded.split(sizes))
    ]
    result: Tensor = _Rearrange.apply(torch.cat(mixed), plan.slot_of_token, plan.token_of_slot)
    return result


def attend_equal_packed(qkv: Tensor, length: int, causal: bool, dropout: float) -> Tensor:
    """`attend_equal` with queries, keys and values in one tensor, (N, 3, H, d)."""
    heads, size = qkv.shape[2:]
    if not prefers_matmul((qkv,), dropout):
        query, key, value = qkv.unbind(1)
        return attend_equal(query, key, value, length, causal, dropout)
    parts = qkv.view(-1, length, 3, heads, size).permute(2, 0, 3, 1, 4)  # (3, S, H, L, d)
    return attend_matmul(parts, None, causal, dropout).transpose(1, 2).reshape(-1, heads, size)


def attend_equal(query: Tensor, key: Tensor, value: Tensor, length: int, causal: bool, dropout: float) -> Tensor:
    """Attend where all sequences have `length` tokens: (N, H, d) is a dense batch already."""
    heads, size = query.shape[1:]
    query, key, value = (part.view(-1, length, heads, size).transpose(1, 2) for part in (query, key, value))
    return attend_dense(query, key, value, None, causal, dropout).transpose(1, 2).reshape(-1, heads, size)


def _attend_bucket(qkv: Tensor, plan: Plan, number: int, causal: bool, window: int | None, dropout: float) -> Tensor:
    """Attend in one bucket, tokens in rows of equal length: (S*L, 3, H, d) -> (S*L, H, d)."""
    heads, size = qkv.shape[2:]
    length = plan.buckets[number].length
    query, key, value = (part.view(-1, length, heads, size).transpose(1, 2) for part in qkv.unbind(1))
    mask = plan.mask(number, causal, window, qkv.dtype)
    mixed = attend_dense(query, key, value, mask, causal, dropout)  # (S, H, L, d)
    return mixed.transpose(1, 2).reshape(-1, heads, size)
