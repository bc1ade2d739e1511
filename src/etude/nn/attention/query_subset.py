"""Attention for some tokens only, on a CPU: their queries, and the keys and values of all.

The last layer of a masked language model needs the states of one token in seven. The keys are arranged in rows as in
nn/attention/shared_rows.py, and the queries have rows of their own beside them, as long as the row with most of them.
On two Arm cores in float32 a step of a BERT of four layers is 1.026 times as fast with it, and with dropout 1.074
times.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from etude.nn.attention.dense import SavedAttention, ScoreMask, additive_mask, attention_backward, attention_forward
from etude.nn.attention.shared_rows import Plan, Rows, get_plan, make_slot_map, split_rows, split_shapes, visibility
from etude.nn.packed import Layout

_GRAIN = 8  # queries of a row are a multiple of this: few sizes


class RowQueries(NamedTuple):
    """The queries in each row, padded with other tokens of the row to the number of the fullest one."""

    queries: np.ndarray  # (R, P) the index of the query, -1 for padding
    slots: np.ndarray  # (R, P) its slot in the row


def supports_query_subset(x: Tensor, path: str | None) -> bool:
    """Whether this path applies; elsewhere kernels compute all tokens, and fake tensors have no values to sort by."""
    return x.device.type == "cpu" and path is None and type(x) is Tensor and not torch.compiler.is_compiling()


def attend_query_subset(
    query: Tensor,
    key_value: Tensor,
    layout: Layout,
    tokens: Tensor,
    *,
    causal: bool,
    window: int | None,
    dropout: float,
) -> Tensor:
    """Attend from the tokens (M,) only, on a CPU: (M, H, d), (N, 2, H, d) -> (M, H, d).

    The queries are those of these tokens, keys and values those of all. A token may be repeated, with the same query.
    """
    plan, indices = get_plan(layout), tokens.numpy()
    unique, first, inverse = np.unique(indices, return_index=True, return_inverse=True)
    mixed: Tensor
    if len(unique) == len(indices):
        mixed = _QuerySubsetAttention.apply(query, key_value, plan, indices, causal, window, dropout)
        return mixed
    query = query.index_select(0, torch.from_numpy(first))
    mixed = _QuerySubsetAttention.apply(query, key_value, plan, unique, causal, window, dropout)
    return mixed.index_select(0, torch.from_numpy(inverse))


class _QuerySubsetAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key_value: Tensor,
        plan: Plan,
        tokens: np.ndarray,
        causal: bool,
        window: int | None,
        dropout: float,
    ) -> Tensor:
        heads, size = query.shape[1:]
        row_queries = locate_queries(plan, tokens)
        query_map, key_map = make_slot_map([row.queries for row in row_queries], 1, heads), plan.slot_map(2, heads)
        queries, keys_values = (
            query_map.to_slots(query.reshape(-1, size)),
            key_map.to_slots(key_value.reshape(-1, size)),
        )
        result = torch.empty_like(queries)
        ctx.plan, ctx.query_map, ctx.heads, ctx.scale = plan, query_map, heads, 1.0
        ctx.shapes = [(len(row.slots), heads, row.slots.shape[1]) for row in row_queries]  # (R, H, P)
        saved_tensors: list[Tensor | None] = []
        scores_dtype = torch.promote_types(query.dtype, torch.float32)
        sides = (
            split_shapes(queries, ctx.shapes),
            split_rows(keys_values, plan, 2, heads),
            split_shapes(result, ctx.shapes),
        )
        for rows, in_row, row_query, (key, value), out in zip(plan.rows, row_queries, *sides, strict=True):
            _, saved = attention_forward(
                row_query, key, value, make_masks(rows, in_row.slots, causal, window, scores_dtype), dropout, out
            )
            saved_tensors += [saved.weights, saved.keep_mask]
            ctx.scale = saved.scale
        ctx.save_for_backward(queries, keys_values, *saved_tensors)
        return query_map.from_slots(result).view(query.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys_values, *saved_tensors = ctx.saved_tensors
        plan, query_map, heads = ctx.plan, ctx.query_map, ctx.heads
        grad_rows = query_map.to_slots(grad.reshape(-1, grad.shape[-1]))
        grad_queries, grad_keys_values = torch.empty_like(queries), torch.empty_like(keys_values)
        sides = [split_shapes(tensor, ctx.shapes) for tensor in (queries, grad_rows, grad_queries)]
        key_value_sides = [split_rows(tensor, plan, 2, heads) for tensor in (keys_values, grad_keys_values)]
        for number, (query, grad_out, grad_query, (key, value), (grad_key, grad_value)) in enumerate(
            zip(*sides, *key_value_sides, strict=True)
        ):
            saved = SavedAttention(saved_tensors[2 * number], saved_tensors[2 * number + 1], ctx.scale)
            attention_backward(query, key, value, saved, grad_out, (grad_query, grad_key, grad_value))
        grad_key_value = plan.slot_map(2, heads).from_slots(grad_keys_values).view(-1, 2, *grad.shape[1:])
        return query_map.from_slots(grad_queries).view(grad.shape), grad_key_value, None, None, None, None, None


def locate_queries(plan: Plan, tokens: np.ndarray) -> list[RowQueries]:
    """Find where distinct tokens (M,) are, in each size of rows."""
    number = np.full(sum(int((rows.tokens >= 0).sum()) for rows in plan.rows), -1, np.int64)
    number[tokens] = np.arange(len(tokens))
    located = []
    for rows in plan.rows:
        row_numbers = np.where(rows.tokens < 0, -1, number[rows.tokens])  # (R, L)
        most = -(-int((row_numbers >= 0).sum(1).max(initial=0)) // _GRAIN) * _GRAIN
        slots = np.argsort(row_numbers < 0, axis=1, kind="stable")[:, :most]
        located.append(RowQueries(np.take_along_axis(row_numbers, slots, 1), slots))
    return located


def make_masks(rows: Rows, slots: np.ndarray, causal: bool, window: int | None, dtype: torch.dtype) -> list[ScoreMask]:
    """Return the masks for the scores of the queries in these slots (R, P)."""
    shared = len(rows.owners)
    visible = visibility(slots[:, :, None] - np.arange(rows.length), causal, window)  # (R, P, L)
    if shared:
        owners = np.take_along_axis(rows.owners, slots[:shared], 1)
        visible[:shared] &= owners[:, :, None] == rows.owners[:, None, :]
    masked = np.flatnonzero(~visible.all((1, 2)))
    if not len(masked):
        return []
    sequences = slice(0, int(masked[-1]) + 1)
    return [ScoreMask(sequences, additive_mask(visible[sequences], dtype)[:, None])]
