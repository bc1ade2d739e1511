"""Attention from one packed side to another: the tokens of target i attend to those of source i, and to no others.

Vaswani et al. 2017, section 3.2.3 ("encoder-decoder attention"). The paths are those of attention within sequences
(nn/attention/dispatch.py), with two layouts in place of one:

    varlen      torch's flash kernels over the bounds of both sides: on a CUDA device, in half precision
    grouped     dense batches of pairs of similar lengths, the padding of the source side masked: CPU, float32
    reference   one pair after the other, weights on request: slow, and the reference for tests

A target with tokens needs a source with tokens; the slow path gives zeros where there is none, as flash kernels do, and
the grouped one raises ValueError.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._compile import _disable_dynamo

from etude.errors import UserError
from etude.nn.attention.dense import additive_mask
from etude.nn.attention.dispatch import attend_varlen, choose_path
from etude.nn.attention.grouped import move_rows
from etude.nn.attention.length_groups import find_cheapest_runs
from etude.nn.packed import Layout, send_array

_PRICE_CPU, _PRICE_GPU = 1e3, 1e6  # of one more bucket, in padded scores: as in nn/attention/grouped.py
_CLASSES = 32  # of pairs by their length at most, between which buckets may end


def attend_cross(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: Layout,
    source: Layout,
    *,
    dropout: float = 0.0,
    path: str | None = None,
) -> Tensor:
    """Attend from the targets of `layout` to the sources: (N, H, d), (M, H, d) twice -> (N, H, d)."""
    _check(query, key, layout, source)
    if path is None:
        path = choose_path(query.device, query.dtype, query.shape[-1])
    if path == "varlen":
        return attend_varlen(query, key, value, layout, causal=False, dropout=dropout, keys=source)
    if path == "grouped":
        grouped = _grouped_outside_graph if torch.compiler.is_compiling() else attend_cross_grouped
        result: Tensor = grouped(query, key, value, layout, source, dropout)
        return result
    if path == "reference":
        return attend_cross_reference(query, key, value, layout, source, dropout=dropout)[0]
    raise UserError(f"unknown attention path '{path}' between two sides. Known: varlen, grouped, reference.")


def _check(query: Tensor, key: Tensor, layout: Layout, source: Layout) -> None:
    """Raise if tokens and layouts do not fit each other."""
    if torch.compiler.is_compiling():
        return
    if len(layout.bounds) != len(source.bounds):
        raise ValueError(f"got {len(layout.bounds) - 1} targets, but {len(source.bounds) - 1} sources")
    for tokens, side in ((query, layout), (key, source)):
        if tokens.shape[0] != side.total:
            raise ValueError(f"got {tokens.shape[0]} tokens, but the layout ends at {side.total}")


def attend_cross_reference(
    query: Tensor, key: Tensor, value: Tensor, layout: Layout, source: Layout, *, dropout: float = 0.0
) -> tuple[Tensor, list[Tensor]]:
    """Attend one pair after the other; also return the weights of each pair, (H, T, S), before dropout."""
    scale = query.shape[-1] ** -0.5
    mixed, maps = [query.new_zeros(0, *value.shape[1:])], []
    for number in range(len(layout.host) - 1):
        target_span, source_span = (slice(*side.host[number : number + 2].tolist()) for side in (layout, source))
        queries, keys, values = (
            part.transpose(0, 1) for part in (query[target_span], key[source_span], value[source_span])
        )  # (H, L, d)
        weights = ((queries @ keys.transpose(1, 2)) * scale).softmax(-1)  # (H, T, S)
        maps.append(weights)
        mixed.append((F.dropout(weights, dropout) @ values).transpose(0, 1))  # (T, H, d)
    return torch.cat(mixed), maps


# --- dense batches ----------------------------------------------------------------------------------


@dataclass
class Side:
    """The slots of one side of all buckets, in order, and the lengths that sequences are padded to."""

    lengths: list[int]
    token_of_slot: Tensor  # (slots,) -1 at padding
    slot_of_token: Tensor  # (N,)

    def fill(self, values: Tensor) -> Tensor:
        """Bring (N, ...) into the order of the slots, with zeros at padding."""
        return move_rows(values, self.token_of_slot, self.slot_of_token)


@dataclass
class Plan:
    """The arrangement of pairs in dense buckets."""

    counts: list[int]  # pairs in each bucket
    target: Side
    source: Side
    visible: list[np.ndarray]  # (pairs, 1, 1, S) in each bucket: is this slot of the source a token?
    masks: dict[torch.dtype, list[Tensor | None]]


def attend_cross_grouped(
    query: Tensor, key: Tensor, value: Tensor, layout: Layout, source: Layout, dropout: float
) -> Tensor:
    """Attend by dense batches of pairs of similar lengths."""
    plan = _get_plan(layout, source, query.device)
    if query.shape[0] == 0:
        return query + 0 * value.sum()  # no tokens, but part of the graph
    queries, keys, values = plan.target.fill(query), plan.source.fill(key), plan.source.fill(value)
    masks = _get_masks(plan, query.dtype, query.device)
    mixed, target_slot, source_slot = [], 0, 0
    for number, count in enumerate(plan.counts):
        sizes = count * plan.target.lengths[number], count * plan.source.lengths[number]
        target_part, source_part = (
            slice(target_slot, target_slot + sizes[0]),
            slice(source_slot, source_slot + sizes[1]),
        )
        dense = [
            part.view(count, -1, *part.shape[1:]).transpose(1, 2)
            for part in (queries[target_part], keys[source_part], values[source_part])
        ]  # (S, H, L, d)
        bucket = F.scaled_dot_product_attention(
            dense[0], dense[1], dense[2], attn_mask=masks[number], dropout_p=dropout
        )
        mixed.append(bucket.transpose(1, 2).flatten(0, 1))
        target_slot, source_slot = target_part.stop, source_part.stop
    return move_rows(torch.cat(mixed), plan.target.slot_of_token, plan.target.token_of_slot)


_grouped_outside_graph = _disable_dynamo(attend_cross_grouped)


def _get_masks(plan: Plan, dtype: torch.dtype, device: torch.device) -> list[Tensor | None]:
    if dtype not in plan.masks:
        plan.masks[dtype] = [
            None if visible.all() else additive_mask(visible, dtype).to(device) for visible in plan.visible
        ]
    return plan.masks[dtype]


def _get_plan(layout: Layout, source: Layout, device: torch.device) -> Plan:
    """Return the plan of two layouts, made once for each batch."""
    key = ("cross", id(source), device)
    if key not in layout.cache:
        layout.cache[key] = (make_plan(layout.host, source.host, device), source)  # the layout lives as long as its id
    plan: Plan = layout.cache[key][0]
    return plan


def make_plan(target_bounds: np.ndarray, source_bounds: np.ndarray, device: torch.device) -> Plan:
    """Sort pairs into buckets of least cost: padded scores plus a price for each bucket."""
    bounds = [np.asarray(side).astype(np.int64) for side in (target_bounds, source_bounds)]
    lengths = [np.diff(side) for side in bounds]
    empty = np.flatnonzero((lengths[0] > 0) & (lengths[1] == 0))
    if len(empty):
        raise ValueError(f"target {empty[0]} has tokens, and its source has none")
    pairs = np.flatnonzero(lengths[0] > 0)
    pairs = pairs[np.lexsort((lengths[1][pairs], lengths[0][pairs]))]
    members = _choose_buckets(pairs, lengths, _PRICE_CPU if device.type == "cpu" else _PRICE_GPU)
    sides = []
    for side_bounds, side_lengths in zip(bounds, lengths, strict=True):
        padded = [int(side_lengths[bucket].max()) for bucket in members]
        slots = [
            np.where(
                np.arange(length)[None, :] < side_lengths[bucket][:, None],
                side_bounds[:-1][bucket][:, None] + np.arange(length)[None, :],
                -1,
            ).ravel()
            for bucket, length in zip(members, padded, strict=True)
        ]
        token_of_slot = np.concatenate([np.zeros(0, np.int64), *slots])
        # a source whose target is empty has no slot: nothing attends to it
        slot_of_token = np.full(int(side_bounds[-1]), -1, np.int64)
        filled = np.flatnonzero(token_of_slot >= 0)
        slot_of_token[token_of_slot[filled]] = filled
        arrays = (send_array(array, device) for array in (token_of_slot, slot_of_token))
        sides.append(Side(padded, *arrays))
    visible = [
        (np.arange(length)[None, :] < lengths[1][bucket][:, None])[:, None, None, :]
        for bucket, length in zip(members, sides[1].lengths, strict=True)
    ]
    return Plan([len(bucket) for bucket in members], sides[0], sides[1], visible, {})


def _choose_buckets(pairs: np.ndarray, lengths: list[np.ndarray], price: float) -> list[np.ndarray]:
    """Split sorted pairs into runs of least cost."""
    if not len(pairs):
        return []
    starts = np.unique(np.linspace(0, len(pairs), min(_CLASSES, len(pairs)) + 1).astype(np.int64))
    # the longest of each class on each side; a run's longest is the greatest of its classes
    longest = [np.maximum.reduceat(side[pairs], starts[:-1]) for side in lengths]

    def cost(end: int) -> np.ndarray:
        target, source = (np.maximum.accumulate(side[:end][::-1])[::-1].astype(float) for side in longest)
        return (starts[end] - starts[:end]) * target * source + price

    runs = find_cheapest_runs(len(starts) - 1, cost)
    return [pairs[starts[begin] : starts[end]] for begin, end in runs]
