"""Exact attention over several sets of keys at once, without an attention mask in memory.

The combiner of two towers attends to two sets: the tokens before a token, and those after it (Baevski et al. 2019). A
softmax over several sets is the softmaxes over each, weighted by their parts of the normalizer:

    out = sum_p exp(lse_p - L) out_p,    L = log sum_p exp(lse_p)

So each set is an ordinary attention within packed sequences, by the kernel that every other model uses, and memory
stays linear in the tokens. The backward pass calls the same kernel once for each set, with `out` and `L` of the whole
instead of its own: with p = exp(score - L) its formulas are those of the whole softmax, and no derivative of a
logarithm is needed.

    past      a query sees the keys up to its own position
    future    the keys from its own position on: the same, with everything in reversed order
    all       every key of its sequence
    edge      False: the first key (past) or the last (future) does not count. Sets whose keys were shifted by one
              position, so that a query does not see its own token, have nothing there.
    slot      one more key and value that every query sees, so that it can attend to nothing else

A query that sees nothing gives zeros. Paths are those of nn/attention/dispatch.py: `varlen`, `grouped`, `reference`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.autograd.function import once_differentiable

from etude.errors import UserError
from etude.nn.attention.dispatch import choose_path
from etude.nn.attention.grouped import Plan, _Rearrange, get_plan
from etude.nn.packed import Layout

Reach = Literal["past", "future", "all"]
SlotKind = Literal["none", "learned", "zero"]


@dataclass(frozen=True)
class KeySet:
    """One set of keys and values."""

    key: Tensor  # (N, H, d)
    value: Tensor  # (N, H, d)
    reach: Reach
    edge: bool = True


class NullSlot(nn.Module):
    """A key and value that every query sees: learned, or zeros (fairseq's bias_kv and zero_attn [code])."""

    def __init__(self, heads: int, size: int, kind: Literal["learned", "zero"]) -> None:
        super().__init__()
        if kind == "learned":
            self.key, self.value = nn.Parameter(torch.zeros(heads, size)), nn.Parameter(torch.zeros(heads, size))
        else:
            self.register_buffer("key", torch.zeros(heads, size), persistent=False)
            self.register_buffer("value", torch.zeros(heads, size), persistent=False)

    def forward(self) -> tuple[Tensor, Tensor]:
        """Return the key and the value, (H, d) each."""
        return self.key, self.value


def attend_multi_set(
    query: Tensor,
    parts: Sequence[KeySet],
    layout: Layout,
    *,
    slot: tuple[Tensor, Tensor] | None = None,
    dropout: float = 0.0,
    path: str | None = None,
) -> Tensor:
    """(N, H, d) -> (N, H, d). Scores are divided by sqrt(d); for another scale, scale the query."""
    if not torch.compiler.is_compiling() and query.shape[0] != layout.total:
        raise ValueError(f"got {query.shape[0]} tokens, but the layout ends at {layout.total}")
    if query.shape[0] == 0:
        return query.clone()
    path = path or choose_path(query.device, query.dtype, query.shape[-1])
    if slot is not None:
        slot = (slot[0].to(query.dtype), slot[1].to(query.dtype))
    if path == "varlen":
        return _varlen(query, parts, layout, slot, dropout)
    if path == "grouped":
        grouped = _grouped_outside_graph if torch.compiler.is_compiling() else _grouped
        result: Tensor = grouped(query, parts, layout, slot, dropout)
        return result
    if path == "reference":
        return _reference(query, parts, layout, slot, dropout)
    raise UserError(f"unknown attention path '{path}'. Known: varlen, grouped, reference.")


def sequence_edges(layout: Layout, tokens: int) -> tuple[Tensor, Tensor]:
    """Return whether each token is the first, and whether it is the last of its sequence: (N,) bool each."""
    marks = torch.zeros(tokens + 1, dtype=torch.bool, device=layout.bounds.device)
    marks = marks.index_fill(0, layout.bounds.long(), True)  # an empty sequence marks the start of the next one
    return marks[:-1], marks[1:]


def shift(x: Tensor, layout: Layout, by: Literal[1, -1]) -> Tensor:
    """(N, D) -> (N, D): the previous (1) or next (-1) row of the same sequence, zeros at its end."""
    first, last = sequence_edges(layout, x.shape[0])
    if by == 1:
        return torch.cat([torch.zeros_like(x[:1]), x[:-1]]).masked_fill(first[:, None], 0.0)
    return torch.cat([x[1:], torch.zeros_like(x[:1])]).masked_fill(last[:, None], 0.0)


# --- variable lengths -------------------------------------------------------------------------------


def _varlen(
    query: Tensor, parts: Sequence[KeySet], layout: Layout, slot: tuple[Tensor, Tensor] | None, dropout: float
) -> Tensor:
    first, last = sequence_edges(layout, query.shape[0])
    backwards = layout.bounds[-1] - layout.bounds.flip(0)
    reaches, bounds, blind, flat = [], [], [], []
    for part in parts:
        if part.reach == "all" and not part.edge:
            raise ValueError("edge=False needs reach 'past' or 'future', not 'all'")
        part_bounds = backwards if part.reach == "future" else layout.bounds
        bounds.append(part_bounds if part.edge else _without_first(part_bounds))
        blind.append(None if part.edge else last if part.reach == "future" else first)
        reaches.append(part.reach)
        flat += [part.key, part.value]
    key, value = slot if slot is not None else (None, None)
    return _apply_multi_set(query, key, value, tuple(reaches), layout.longest, dropout, *bounds, *blind, *flat)


def _apply_multi_set(*arguments: object) -> Tensor:
    """`_MultiSetAttention` as one node of a graph: `allow_in_graph` keeps the compiler from tracing into it."""
    mixed: Tensor = _MultiSetAttention.apply(*arguments)
    return mixed


def allow_in_graph() -> None:
    """Let a compiler treat this attention as one node; call it before compiling a model that uses it.

    torch 2.11 cannot trace an autograd function with several unused arguments. Not done at import, because it would
    load the compiler.
    """
    torch.compiler.allow_in_graph(_apply_multi_set)


def _without_first(bounds: Tensor) -> Tensor:
    """(S+1,) -> (2S+1,): split every sequence in two, its first token and the rest.

    In the rest no query sees the first key. The output of the first token is discarded.
    """
    start, stop = bounds[:-1], bounds[1:]
    return torch.cat([torch.stack([start, torch.minimum(start + 1, stop)], dim=1).flatten(), bounds[-1:]])


def _flash(
    query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, longest: int, causal: bool, dropout: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Run torch's flash kernel: output (N, H, d), log-sum-exp (H, N) float32, two states of dropout."""
    kernel = torch.ops.aten._flash_attention_forward
    out, lse, state, unused, _ = kernel(query, key, value, bounds, bounds, longest, longest, dropout, causal, False)
    return out, lse, state, unused


# An operator of our own around torch's kernel, which reads the log-sum-exp as if it were contiguous (H, N), whatever
# its strides are. A compiler that does not know this leaves it as it was computed, (N, H). The inputs of a custom
# operator have the strides that its trace promised.
@torch.library.custom_op("etude::flash_backward", mutates_args=())
def _flash_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    bounds: Tensor,
    longest: int,
    causal: bool,
    dropout: float,
    state: Tensor,
    unused: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run torch's flash backward kernel."""
    kernel = torch.ops.aten._flash_attention_backward
    lse = lse.contiguous()
    grads = kernel(grad, query, key, value, out, lse, bounds, bounds, longest, longest, dropout, causal, state, unused)
    return grads[0].contiguous(), grads[1].contiguous(), grads[2].contiguous()


@_flash_backward.register_fake
def _(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    return query.new_empty(query.shape), key.new_empty(key.shape), value.new_empty(value.shape)


class _MultiSetAttention(torch.autograd.Function):
    """`attend_multi_set` by flash kernels, with a backward pass of its own.

    Arguments after `dropout`: P bounds, P flags (N,) of queries that see nothing of a set, P keys and values.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        slot_key: Tensor | None,
        slot_value: Tensor | None,
        reaches: tuple[Reach, ...],
        longest: int,
        dropout: float,
        *rest: Any,  # tensors, and None for a set without blind queries
    ) -> Tensor:
        count = len(reaches)
        bounds, blind_queries, flat = rest[:count], rest[count : 2 * count], rest[2 * count :]
        mixed, log_sums, states = [], [], []
        for number, reach in enumerate(reaches):
            part_query, key, value = _ordered(reach, query, flat[2 * number], flat[2 * number + 1])
            out, lse, *state = _flash(part_query, key, value, bounds[number], longest, reach != "all", dropout)
            out, lse = _ordered(reach, out, lse.t())  # (N, H, d), (N, H)
            blind = blind_queries[number]
            log_sums.append(lse if blind is None else lse.masked_fill(blind[:, None], -torch.inf))
            mixed.append(out)
            states += state
        keep_mask = None
        if slot_key is not None and slot_value is not None:
            log_sums.append(_slot_scores(query, slot_key))
            slot_output = slot_value.float()
            if dropout:
                keep_mask = (torch.rand_like(log_sums[-1]) >= dropout) / (1 - dropout)  # (N, H)
                slot_output = keep_mask[:, :, None] * slot_output
            mixed.append(slot_output.expand(query.shape))
        total_log_sum = torch.stack(log_sums).logsumexp(0)  # (N, H); minus infinity where nothing is seen
        finite_log_sum = total_log_sum.masked_fill(total_log_sum == -torch.inf, 0.0)
        result = torch.zeros(query.shape, dtype=torch.float32, device=query.device)
        for out, log_sum in zip(mixed, log_sums, strict=True):
            result = result + (log_sum - finite_log_sum).exp()[:, :, None] * out
        result = result.to(query.dtype)
        # so high that its weight is 0: the kernel itself marks a query that sees nothing this way
        total_log_sum = total_log_sum.masked_fill(total_log_sum == -torch.inf, torch.inf)
        ctx.save_for_backward(query, slot_key, slot_value, keep_mask, result, total_log_sum, *rest, *states)
        ctx.reaches, ctx.longest, ctx.dropout = reaches, longest, dropout
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        query, slot_key, slot_value, keep_mask, result, total_log_sum, *rest = ctx.saved_tensors
        reaches, count = ctx.reaches, len(ctx.reaches)
        bounds, blind_queries, flat = rest[:count], rest[count : 2 * count], rest[2 * count : 4 * count]
        states = rest[4 * count :]
        grad_query: Tensor | None = None
        part_grads = []
        for number, reach in enumerate(reaches):
            blind = blind_queries[number]
            lse = total_log_sum if blind is None else total_log_sum.masked_fill(blind[:, None], torch.inf)
            part_grad, part_query, key, value, out, lse = _ordered(
                reach, grad, query, flat[2 * number], flat[2 * number + 1], result, lse
            )
            flash_grads = _flash_backward(
                part_grad,
                part_query,
                key,
                value,
                out,
                lse.t(),  # (H, N)
                bounds[number],
                ctx.longest,
                reach != "all",
                ctx.dropout,
                states[2 * number],
                states[2 * number + 1],
            )
            part_grad_query, part_grad_key, part_grad_value = _ordered(reach, *flash_grads)
            grad_query = part_grad_query if grad_query is None else grad_query + part_grad_query
            part_grads += [part_grad_key, part_grad_value]
        assert grad_query is not None
        grad_key = grad_value = None
        if slot_key is not None:
            part_grad = grad.float()
            weight = (_slot_scores(query, slot_key) - total_log_sum).exp()  # (N, H)
            dropped_weight = weight if keep_mask is None else weight * keep_mask
            grad_value = (dropped_weight[:, :, None] * part_grad).sum(0).to(slot_value.dtype)
            row_dot = (part_grad * slot_value.float()).sum(-1)
            row_dot = row_dot if keep_mask is None else row_dot * keep_mask
            grad_score = weight * (row_dot - (part_grad * result.float()).sum(-1)) * query.shape[-1] ** -0.5
            grad_query = grad_query + (grad_score[:, :, None] * slot_key.float()).to(grad_query.dtype)
            grad_key = (grad_score[:, :, None] * query.float()).sum(0).to(slot_key.dtype)
        return (grad_query, grad_key, grad_value, None, None, None, *[None] * (2 * count), *part_grads)


def _ordered(reach: Reach, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Reverse tensors for a "future" set, which then is a "past" one; doing so twice undoes it."""
    return tuple(tensor.flip(0) for tensor in tensors) if reach == "future" else tensors


def _slot_scores(query: Tensor, key: Tensor) -> Tensor:
    """Return (N, H) float32 scores; not by a matrix product, which autocast would round."""
    return (query.float() * key.float()).sum(-1) * query.shape[-1] ** -0.5


# --- dense buckets ----------------------------------------------------------------------------------


def _grouped(
    query: Tensor, parts: Sequence[KeySet], layout: Layout, slot: tuple[Tensor, Tensor] | None, dropout: float
) -> Tensor:
    plan = get_plan(layout, query.device)
    heads, size = query.shape[1:]
    flat = [query, *(tensor for part in parts for tensor in (part.key, part.value))]
    if plan.token_of_slot is not None:
        flat = [_Rearrange.apply(tensor, plan.token_of_slot, plan.slot_of_token) for tensor in flat]
    sizes = [len(bucket.lengths) * bucket.length for bucket in plan.buckets]
    mixed = []
    for number, pieces in enumerate(zip(*(tensor.split(sizes) for tensor in flat), strict=True)):
        length = plan.buckets[number].length
        rows = [piece.view(-1, length, heads, size).transpose(1, 2) for piece in pieces]  # (S, H, L, d)
        keys, values = rows[1::2], rows[2::2]
        if slot is not None:
            keys, values = (
                [*tensors, _broadcast(extra, rows[0])] for tensors, extra in zip((keys, values), slot, strict=True)
            )
        mask, blind = _mask(plan, number, parts, slot is not None, query.dtype)
        out = F.scaled_dot_product_attention(
            rows[0], torch.cat(keys, 2), torch.cat(values, 2), attn_mask=mask, dropout_p=dropout
        )
        if blind is not None:
            out = out.masked_fill(blind, 0.0)
        mixed.append(out.transpose(1, 2).reshape(-1, heads, size))
    joined = mixed[0] if len(mixed) == 1 else torch.cat(mixed)
    if plan.token_of_slot is None:
        return joined
    result: Tensor = _Rearrange.apply(joined, plan.slot_of_token, plan.token_of_slot)
    return result


def _broadcast(tensor: Tensor, like: Tensor) -> Tensor:
    """(H, d) -> (S, H, 1, d)"""
    return tensor[None, :, None].expand(like.shape[0], -1, -1, -1)


def _mask(
    plan: Plan, number: int, parts: Sequence[KeySet], slot: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    """Return the mask for a bucket's scores, (S|1, 1, L, K), and the queries that see nothing, if any."""
    kinds = tuple((part.reach, part.edge) for part in parts)
    key = ("union", number, kinds, slot, dtype)
    if key not in plan.masks:
        bucket = plan.buckets[number]
        lengths = bucket.lengths if bucket.ragged else bucket.lengths[:1]
        allowed = [_visible(reach, edge, bucket.length, lengths) for reach, edge in kinds]
        if slot:
            allowed.append(np.ones((len(lengths), bucket.length, 1), bool))
        visible = np.concatenate(allowed, axis=2)  # (S|1, L, K)
        low = torch.finfo(dtype).min / 2  # half, because a score is added to it; finite: never NaN
        added = torch.from_numpy(np.where(visible, 0.0, low)[:, None]).to(dtype)
        is_blind: np.ndarray = np.logical_not(visible.any(2))  # (S|1, L)
        plan.masks[key] = added.to(plan.device)
        plan.masks[(*key, "blind")] = (
            torch.from_numpy(is_blind[:, None, :, None]).to(plan.device) if is_blind.any() else None
        )
    mask = plan.masks[key]
    assert mask is not None
    return mask, plan.masks[(*key, "blind")]


def _visible(reach: Reach, edge: bool, length: int, lengths: np.ndarray) -> np.ndarray:
    """(S, L, L) bool: which query (rows) sees which key (columns) of a set, for these lengths."""
    query, key = np.arange(length)[None, :, None], np.arange(length)[None, None, :]
    stop = lengths[:, None, None]
    visible: np.ndarray = np.broadcast_to(key < stop, (len(lengths), length, length))
    if reach == "past":
        visible = visible & (key <= query) & (edge or key > 0)
    elif reach == "future":
        visible = visible & (key >= query) & (edge or key < stop - 1)
    return visible


# Shapes change with the lengths of every batch: a compiled model leaves its graph (as in nn/attention/dispatch.py)
_grouped_outside_graph = _disable_dynamo(_grouped)


# --- reference ----------------------------------------------------------------------------------


def _reference(
    query: Tensor, parts: Sequence[KeySet], layout: Layout, slot: tuple[Tensor, Tensor] | None, dropout: float
) -> Tensor:
    """Attend one sequence after the other with all scores at once: the reference for tests."""
    mixed = []
    for start, stop in zip(layout.host[:-1].tolist(), layout.host[1:].tolist(), strict=True):
        length = stop - start
        keys = [part.key[start:stop] for part in parts]
        values = [part.value[start:stop] for part in parts]
        visible_parts = [_visible(part.reach, part.edge, length, np.array([length]))[0] for part in parts]
        if slot is not None:
            keys.append(slot[0][None])
            values.append(slot[1][None])
            visible_parts.append(np.ones((length, 1), bool))
        visible = torch.from_numpy(np.concatenate(visible_parts, axis=1)).to(query.device)  # (L, K)
        scores = torch.einsum("qhd,khd->hqk", query[start:stop], torch.cat(keys)) * query.shape[-1] ** -0.5
        low = torch.finfo(scores.dtype).min
        probs = scores.masked_fill(~visible, low).softmax(-1).masked_fill(~visible, 0.0)
        mixed.append(torch.einsum("hqk,khd->qhd", F.dropout(probs, dropout), torch.cat(values)))
    return torch.cat(mixed)
