"""Attention by plain products where lengths differ: rows of one size, shared by short sequences.

On a CPU with fast matrix units (AMX) the products of nn/attention/dense.py are so quick that everything else dominates:
copies, calls, and new shapes, for which oneDNN first generates code. Buckets by length (nn/attention/grouped.py) have
much of all three. So here sequences are packed end to end into rows as long as the longest, as many into each as fit,
and none sees another. A batch of natural lengths then has about as many rows as it would have at full length: one
product instead of many, a shape that comes again, hardly any padding. Rows of several sequences have a mask of their
own; a sequence that fills its row needs none.

Queries, keys and values of all heads are one projection, (N, 3, H, d). One gather brings its pieces of `d` numbers into
the order of the products, (3, R, H, L, d), and one brings the result back; each is the other's derivative. Nothing is
stacked, split, transposed or joined on the way.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from etude.nn.attention.dense import SavedAttention, ScoreMask, additive_mask, attention_backward, attention_forward
from etude.nn.attention.length_groups import find_cheapest_runs, round_lengths
from etude.nn.packed import Layout

# The cost of one more size of rows, in units of one score of all heads: about twenty calls, and sometimes a new shape
_PRICE = 1e5
_GRAIN = 16  # rows are a multiple of this: few sizes, and whole tiles of a matrix unit


@dataclass
class Rows:
    """Rows of one length; those of several sequences, or with padding, come first."""

    tokens: np.ndarray  # (R, L) the token in each slot, -1 at padding
    owners: np.ndarray  # (P, L) the sequence of each token in the first P rows, -1 at padding

    @property
    def length(self) -> int:
        return int(self.tokens.shape[1])


@dataclass
class SlotMap:
    """The mapping between pieces in the order of the projection and slots in rows.

    Every piece has one slot.
    """

    piece_of_slot: Tensor  # (slots,) the piece in each slot; any index at padding
    slot_of_piece: Tensor  # (pieces,) the slot of each piece
    empty_slots: Tensor  # the slots without a piece

    def to_slots(self, pieces: Tensor) -> Tensor:
        """(pieces, d) -> (slots, d), with zeros at padding."""
        slots = pieces.index_select(0, self.piece_of_slot)
        return slots.index_fill_(0, self.empty_slots, 0.0) if len(self.empty_slots) else slots

    def from_slots(self, slots: Tensor) -> Tensor:
        """(slots, d) -> (pieces, d)."""
        return slots.index_select(0, self.slot_of_piece)


@dataclass
class Plan:
    """The arrangement of a layout's tokens in rows, made once for each batch and used by every layer."""

    rows: list[Rows]
    slot_maps: dict[tuple[int, int], SlotMap] = field(default_factory=dict)
    masks: dict[Hashable, list[ScoreMask]] = field(default_factory=dict)

    def slot_map(self, parts: int, heads: int) -> SlotMap:
        """Return the map of tensors (N, parts, heads, d).

        Slots are in the order (parts, R, heads, L) of each size of rows.
        """
        if (parts, heads) not in self.slot_maps:
            self.slot_maps[parts, heads] = make_slot_map([rows.tokens for rows in self.rows], parts, heads)
        return self.slot_maps[parts, heads]

    def mask(self, number: int, causal: bool, window: int | None, dtype: torch.dtype) -> list[ScoreMask]:
        """Return the masks to add to the scores of one size of rows."""
        key = (number, causal, window, dtype)
        if key not in self.masks:
            rows = self.rows[number]
            position, shared = np.arange(rows.length), len(rows.owners)
            visible = visibility(position[:, None] - position[None, :], causal, window)
            masks = []
            if shared:
                same = rows.owners[:, :, None] == rows.owners[:, None, :]
                masks.append(ScoreMask(slice(0, shared), additive_mask(same & visible, dtype)[:, None]))
            if shared < len(rows.tokens) and not visible.all():
                masks.append(ScoreMask(slice(shared, None), additive_mask(visible, dtype)))
            self.masks[key] = masks
        return self.masks[key]


def visibility(distance: np.ndarray, causal: bool, window: int | None) -> np.ndarray:
    """Return which pairs see each other, by the distance of a query after a key.

    Distances within a sequence are those within its row.
    """
    visible = np.ones(distance.shape, bool)
    if causal:
        visible &= distance >= 0
    if window is not None:
        visible &= np.abs(distance) <= window
    return visible


def get_plan(layout: Layout) -> Plan:
    """Return the plan of a layout, made once."""
    if "shared rows" not in layout.cache:
        layout.cache["shared rows"] = make_plan(layout.host)
    plan: Plan = layout.cache["shared rows"]
    return plan


def make_plan(bounds: np.ndarray) -> Plan:
    lengths = np.diff(bounds).astype(np.int64)
    order = np.argsort(lengths, kind="stable")
    order = order[lengths[order] > 0]  # empty sequences hold no token and need no slot
    starts = bounds[:-1].astype(np.int64)
    return Plan(
        [fill_rows(order[members], starts, lengths, length) for members, length in choose_row_sizes(lengths[order])]
    )


def choose_row_sizes(lengths: np.ndarray) -> list[tuple[slice, int]]:
    """Choose which sequences, sorted by length, go into rows of which size, for the least cost.

    The cost is that of the scores, with rows taken to be full, and a price for every size.
    """
    sizes, starts = round_lengths(lengths, _GRAIN)
    tokens = np.append(0, np.cumsum(lengths))[starts]

    def cost(end: int) -> np.ndarray:
        length = int(sizes[end - 1])
        return -(-(tokens[end] - tokens[:end]) // length) * float(length) ** 2 + _PRICE

    runs = find_cheapest_runs(len(sizes), cost)[::-1]  # the long rows first
    return [(slice(int(starts[begin]), int(starts[end])), int(sizes[end - 1])) for begin, end in runs]


def fill_rows(members: np.ndarray, starts: np.ndarray, lengths: np.ndarray, length: int) -> Rows:
    """Put each sequence, longest first, into the fullest row that has room for it (best fit)."""
    is_full = lengths[members] == length
    room: list[tuple[int, int]] = []  # (tokens left, row), sorted
    row_of_sequence, offsets = [], []
    shorter = members[~is_full][::-1]
    for size in lengths[shorter].tolist():
        index = bisect_left(room, (size, 0))
        left, row = room.pop(index) if index < len(room) else (length, len(room))
        row_of_sequence.append(row)
        offsets.append(length - left)
        insort(room, (left - size, row))
    owners = np.full((len(room), length), -1, np.int64)
    tokens = np.full((len(room), length), -1, np.int64)
    for sequence, row, offset in zip(shorter.tolist(), row_of_sequence, offsets, strict=True):
        span = slice(offset, offset + int(lengths[sequence]))
        owners[row, span] = sequence
        tokens[row, span] = starts[sequence] + np.arange(lengths[sequence])
    full = starts[members[is_full]][:, None] + np.arange(length)
    return Rows(np.concatenate([tokens, full]), owners)


def make_slot_map(tokens: list[np.ndarray], parts: int, heads: int) -> SlotMap:
    """Build the map from the token in each slot of each size of rows."""
    piece = np.arange(parts * heads).reshape(parts, 1, heads, 1)
    # the pieces of a token are contiguous: (N, parts, heads)
    slots = [np.where(row_tokens < 0, -1, row_tokens * (parts * heads))[None, :, None, :] for row_tokens in tokens]
    pieces = [np.where(row_tokens < 0, -1, row_tokens + piece).ravel() for row_tokens in slots]
    flat = np.concatenate([np.zeros(0, np.int64), *pieces])  # a batch without tokens has no rows
    filled = flat >= 0
    slot_of_piece = np.empty(int(filled.sum()), np.int64)
    slot_of_piece[flat[filled]] = np.flatnonzero(filled)
    return SlotMap(
        *(torch.from_numpy(array) for array in (np.maximum(flat, 0), slot_of_piece, np.flatnonzero(~filled)))
    )


def attend_shared_rows(qkv: Tensor, layout: Layout, *, causal: bool, window: int | None, dropout: float) -> Tensor:
    """Attend within each sequence, on a CPU: (N, 3, H, d) -> (N, H, d)."""
    result: Tensor = _SharedRowsAttention.apply(qkv, get_plan(layout), causal, window, dropout)
    return result


class _SharedRowsAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, plan: Plan, causal: bool, window: int | None, dropout: float) -> Tensor:
        tokens, parts, heads, size = qkv.shape
        qkv_map, out_map = plan.slot_map(parts, heads), plan.slot_map(1, heads)
        slots = qkv_map.to_slots(qkv.reshape(-1, size))
        result = slots.new_empty(len(out_map.piece_of_slot), size)
        saved_tensors: list[Tensor | None] = []
        ctx.plan, ctx.heads, ctx.scale = plan, heads, 1.0
        scores_dtype = torch.promote_types(qkv.dtype, torch.float32)
        sides = (split_rows(slots, plan, 3, heads), split_rows(result, plan, 1, heads))
        for number, (row_qkv, out) in enumerate(zip(*sides, strict=True)):
            masks = plan.mask(number, causal, window, scores_dtype)
            query, key, value = row_qkv.unbind(0)
            _, saved = attention_forward(query, key, value, masks, dropout, out[0])
            saved_tensors += [saved.weights, saved.keep_mask]
            ctx.scale = saved.scale
        ctx.save_for_backward(slots, *saved_tensors)
        return out_map.from_slots(result).view(tokens, heads, size)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        slots, *saved_tensors = ctx.saved_tensors
        plan, heads = ctx.plan, ctx.heads
        tokens, _, size = grad.shape
        grad_slots = plan.slot_map(1, heads).to_slots(grad.reshape(-1, size))
        grad_qkv = torch.empty_like(slots)
        sides = (
            split_rows(slots, plan, 3, heads),
            split_rows(grad_slots, plan, 1, heads),
            split_rows(grad_qkv, plan, 3, heads),
        )
        for number, (row_qkv, row_grad, row_grad_qkv) in enumerate(zip(*sides, strict=True)):
            query, key, value = row_qkv.unbind(0)
            saved = SavedAttention(saved_tensors[2 * number], saved_tensors[2 * number + 1], ctx.scale)
            attention_backward(query, key, value, saved, row_grad[0], row_grad_qkv.unbind(0))
        return plan.slot_map(3, heads).from_slots(grad_qkv).view(tokens, 3, heads, size), None, None, None, None


def split_rows(slots: Tensor, plan: Plan, parts: int, heads: int) -> list[Tensor]:
    """(slots, d) -> (parts, R, H, L, d) of each size of rows."""
    return split_shapes(slots, [(parts, len(rows.tokens), heads, rows.length) for rows in plan.rows])


def split_shapes(slots: Tensor, shapes: list[tuple[int, ...]]) -> list[Tensor]:
    """(slots, d) -> (*shape, d) of each shape, one after the other."""
    pieces = slots.split([math.prod(shape) for shape in shapes])
    return [piece.view(*shape, slots.shape[1]) for piece, shape in zip(pieces, shapes, strict=True)]
