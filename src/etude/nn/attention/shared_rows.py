"""Attention by plain products where lengths differ: rows of one size, and short sequences share one.

On a CPU with fast matrix units (AMX) the products of nn/attention/dense.py are so quick that all the rest is what counts: copies,
calls, and shapes that were never seen before, for which oneDNN first writes a program. Buckets by length
(nn/attention/grouped.py) have much of all three. So here sequences are laid end to end into rows as long as the longest, in
which none sees another, as many into each as it holds. A batch of natural lengths then is about as many rows as it
would have at full length: one product in place of many, a shape that comes again, hardly any padding. Rows of several
sequences have a mask of their own; a sequence that fills its row needs none.

Queries, keys and values of all heads lie in one projection, (N, 3, H, d). One gather brings its pieces of `d` numbers
into the order of the products, (3, R, H, L, d), and one takes the result back; each is the other's derivative. Nothing
is stacked, split, transposed or joined on the way.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from etude.nn.attention.dense import Mask, Saved, hiding, mix, unmix
from etude.nn.attention.length_groups import cheapest_runs, rounded
from etude.nn.packed import Layout

# What one more size of rows costs, in units of one score of all heads: about twenty calls, and now and then a shape
# that is new
_PRICE = 1e5
_GRAIN = 16  # rows are a multiple of this: few sizes, and whole tiles of a matrix unit


@dataclass
class Rows:
    """Rows of one length; those of several sequences, or with padding, come first."""

    tokens: np.ndarray  # (R, L) the token in each slot, -1 at padding
    owners: np.ndarray  # (P, L) whose token it is in each of the first P rows, -1 at padding

    @property
    def length(self) -> int:
        return int(self.tokens.shape[1])


@dataclass
class Exchange:
    """Between pieces as they lie in the projection and pieces in rows. Every piece has one slot."""

    take: Tensor  # (slots,) the piece of each slot; any at padding
    back: Tensor  # (pieces,) the slot of each piece
    empty: Tensor  # the slots without a piece

    def fill(self, pieces: Tensor) -> Tensor:
        """(pieces, d) -> (slots, d), with zeros at padding."""
        slots = pieces.index_select(0, self.take)
        return slots.index_fill_(0, self.empty, 0.0) if len(self.empty) else slots

    def drain(self, slots: Tensor) -> Tensor:
        return slots.index_select(0, self.back)


@dataclass
class Plan:
    """How the tokens of one layout are laid out in rows: made once a batch, for every layer."""

    rows: list[Rows]
    exchanges: dict[tuple[int, int], Exchange] = field(default_factory=dict)
    masks: dict[Any, list[Mask]] = field(default_factory=dict)

    def exchange(self, parts: int, heads: int) -> Exchange:
        """For tensors (N, parts, heads, d): slots in the order (parts, R, heads, L) of each size of rows."""
        if (parts, heads) not in self.exchanges:
            self.exchanges[parts, heads] = exchange_of([rows.tokens for rows in self.rows], parts, heads)
        return self.exchanges[parts, heads]

    def mask(self, number: int, causal: bool, window: int | None, dtype: torch.dtype) -> list[Mask]:
        """What is added to which scores."""
        key = (number, causal, window, dtype)
        if key not in self.masks:
            rows = self.rows[number]
            place, shared = np.arange(rows.length), len(rows.owners)
            seen = visible(place[:, None] - place[None, :], causal, window)
            masks = []
            if shared:
                same = rows.owners[:, :, None] == rows.owners[:, None, :]
                masks.append(Mask(slice(0, shared), hiding(same & seen, dtype)[:, None]))
            if shared < len(rows.tokens) and not seen.all():
                masks.append(Mask(slice(shared, None), hiding(seen, dtype)))
            self.masks[key] = masks
        return self.masks[key]


def visible(apart: np.ndarray, causal: bool, window: int | None) -> np.ndarray:
    """By how far a query is behind a key. Distances within a sequence are those within its row."""
    seen = np.ones(apart.shape, bool)
    if causal:
        seen &= apart >= 0
    if window is not None:
        seen &= np.abs(apart) <= window
    return seen


def plan_of(layout: Layout) -> Plan:
    """The plan of a layout, made once."""
    if "shared rows" not in layout.cache:
        layout.cache["shared rows"] = make_plan(layout.host)
    plan: Plan = layout.cache["shared rows"]
    return plan


def make_plan(bounds: np.ndarray) -> Plan:
    lengths = np.diff(bounds).astype(np.int64)
    order = np.argsort(lengths, kind="stable")
    order = order[lengths[order] > 0]  # empty sequences hold no token and need no slot
    starts = bounds[:-1].astype(np.int64)
    return Plan([fill_rows(order[some], starts, lengths, length) for some, length in sizes_of(lengths[order])])


def sizes_of(lengths: np.ndarray) -> list[tuple[slice, int]]:
    """Which of the sequences, sorted by length, go into rows of which size, for the least cost: scores, and a price
    for every size. Rows are taken to be full."""
    sizes, starts = rounded(lengths, _GRAIN)
    tokens = np.append(0, np.cumsum(lengths))[starts]

    def cost(end: int) -> np.ndarray:
        length = int(sizes[end - 1])
        return -(-(tokens[end] - tokens[:end]) // length) * float(length) ** 2 + _PRICE

    runs = cheapest_runs(len(sizes), cost)[::-1]  # the long rows first
    return [(slice(int(starts[begin]), int(starts[end])), int(sizes[end - 1])) for begin, end in runs]


def fill_rows(members: np.ndarray, starts: np.ndarray, lengths: np.ndarray, length: int) -> Rows:
    """Each sequence, the longest first, into the fullest row that still has room for it (best fit)."""
    whole = lengths[members] == length
    room: list[tuple[int, int]] = []  # (tokens left, row), sorted
    homes, offsets = [], []
    parts = members[~whole][::-1]
    for size in lengths[parts].tolist():
        at = bisect_left(room, (size, 0))
        left, row = room.pop(at) if at < len(room) else (length, len(room))
        homes.append(row)
        offsets.append(length - left)
        insort(room, (left - size, row))
    owners = np.full((len(room), length), -1, np.int64)
    tokens = np.full((len(room), length), -1, np.int64)
    for sequence, row, offset in zip(parts.tolist(), homes, offsets, strict=True):
        here = slice(offset, offset + int(lengths[sequence]))
        owners[row, here] = sequence
        tokens[row, here] = starts[sequence] + np.arange(lengths[sequence])
    full = starts[members[whole]][:, None] + np.arange(length)
    return Rows(np.concatenate([tokens, full]), owners)


def exchange_of(tokens: list[np.ndarray], parts: int, heads: int) -> Exchange:
    piece = np.arange(parts * heads).reshape(parts, 1, heads, 1)
    # a token's pieces lie together: (N, parts, heads)
    slots = [np.where(some < 0, -1, some * (parts * heads))[None, :, None, :] for some in tokens]
    flat = np.concatenate([np.where(some < 0, -1, some + piece).ravel() for some in slots])
    filled = flat >= 0
    back = np.empty(int(filled.sum()), np.int64)
    back[flat[filled]] = np.flatnonzero(filled)
    return Exchange(*(torch.from_numpy(one) for one in (np.maximum(flat, 0), back, np.flatnonzero(~filled))))


def attend_shared(qkv: Tensor, layout: Layout, *, causal: bool, window: int | None, dropout: float) -> Tensor:
    """Attention within each sequence, on a CPU. (N, 3, H, d) -> (N, H, d)"""
    result: Tensor = _Shared.apply(qkv, plan_of(layout), causal, window, dropout)
    return result


class _Shared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, plan: Plan, causal: bool, window: int | None, dropout: float) -> Tensor:
        tokens, parts, heads, size = qkv.shape
        pieces, mixed = plan.exchange(parts, heads), plan.exchange(1, heads)
        filled = pieces.fill(qkv.reshape(-1, size))
        result = filled.new_empty(len(mixed.take), size)
        kept: list[Tensor | None] = []
        ctx.plan, ctx.heads, ctx.scale = plan, heads, 1.0
        scores_dtype = torch.promote_types(qkv.dtype, torch.float32)
        sides = (in_rows(filled, plan, 3, heads), in_rows(result, plan, 1, heads))
        for number, (inside, out) in enumerate(zip(*sides, strict=True)):
            masks = plan.mask(number, causal, window, scores_dtype)
            query, key, value = inside.unbind(0)
            _, saved = mix(query, key, value, masks, dropout, out[0])
            kept += [saved.weights, saved.kept]
            ctx.scale = saved.scale
        ctx.save_for_backward(filled, *kept)
        return mixed.drain(result).view(tokens, heads, size)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        filled, *kept = ctx.saved_tensors
        plan, heads = ctx.plan, ctx.heads
        tokens, _, size = grad.shape
        steep = plan.exchange(1, heads).fill(grad.reshape(-1, size))
        slopes = torch.empty_like(filled)
        sides = (in_rows(filled, plan, 3, heads), in_rows(steep, plan, 1, heads), in_rows(slopes, plan, 3, heads))
        for number, (inside, out, slope) in enumerate(zip(*sides, strict=True)):
            query, key, value = inside.unbind(0)
            saved = Saved(kept[2 * number], kept[2 * number + 1], ctx.scale)
            unmix(query, key, value, saved, out[0], slope.unbind(0))
        return plan.exchange(3, heads).drain(slopes).view(tokens, 3, heads, size), None, None, None, None


def in_rows(slots: Tensor, plan: Plan, parts: int, heads: int) -> list[Tensor]:
    """(slots, d) -> (parts, R, H, L, d) of each size of rows."""
    return cut(slots, [(parts, len(rows.tokens), heads, rows.length) for rows in plan.rows])


def cut(slots: Tensor, shapes: list[tuple[int, ...]]) -> list[Tensor]:
    """(slots, d) -> (*shape, d) of each shape, one behind the other."""
    pieces = slots.split([math.prod(shape) for shape in shapes])
    return [piece.view(*shape, slots.shape[1]) for piece, shape in zip(pieces, shapes, strict=True)]
