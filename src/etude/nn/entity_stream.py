"""The entity stream of a packed batch: built on the host, and moved between the two streams on the device.

ERNIE (Zhang et al. 2019) computes an entity state at every position and multiplies most of them by 0: only positions
that carry an entity, and the first of a sequence, are visible to the others and reach the text. Here the stream holds
those positions alone (`EntityStream`, nn/packed.py). `spread` writes its states to the tokens they belong to, `gather`
reads the states of those tokens. Each is the other's derivative, and both are plain look-ups: torch would compute the
derivative of a look-up by atomic additions, though no token is met twice here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from etude.nn.packed import EntityStream, Layout, Packed

GRAIN = 64  # entries between two sizes of a stream whose batch is padded


def build_stream(entities: np.ndarray, layout: Layout, size: int | None = None) -> EntityStream:
    """Build the stream of a batch from the row of the entity table of each token, (N,), 0 where it has none.

    `size`: the entries of the stream where shapes are static; sequences of padding fill it.
    """
    bounds = layout.host.astype(np.int64)
    has_place = entities > 0
    has_place[bounds[:-1][np.diff(bounds) > 0]] = True
    positions = np.flatnonzero(has_place)
    rows = entities[positions].astype(np.int64)
    stream_bounds = np.searchsorted(positions, bounds)
    index = np.full(len(entities), -1, np.int64)
    index[positions] = np.arange(len(positions))
    if size is not None:
        missing = size - len(positions)
        if missing < 0:
            raise ValueError(f"{len(positions)} entries do not fit a stream of {size}")
        stream_bounds = np.concatenate([stream_bounds, _padding_bounds(len(positions), size, layout.longest, size)])
        rows, positions = np.pad(rows, (0, missing)), np.pad(positions, (0, missing))
    return EntityStream(
        torch.from_numpy(rows),
        torch.from_numpy(positions),
        None,
        Layout.from_bounds(stream_bounds, max(1, layout.longest)),
        index=torch.from_numpy(index),
    )


def _padding_bounds(start: int, size: int, longest: int, most: int) -> np.ndarray:
    """The ends of the sequences of padding from `start` to `size`, none longer than `longest`.

    There are as many as `most` entries of padding would need: their number is part of the shapes.
    """
    count = -(-most // longest)
    return np.minimum(start + longest * np.arange(1, count + 1), size)


def pad_stream(stream: EntityStream, tokens: int) -> EntityStream:
    """The stream of a batch with so many tokens of padding behind it, its size that of few others."""
    count, longest = len(stream.tokens), stream.layout.longest
    size = -(-(count + 1) // GRAIN) * GRAIN
    bounds = np.concatenate([stream.layout.host, _padding_bounds(count, size, longest, GRAIN)])
    return EntityStream(
        F.pad(stream.tokens, (0, size - count)),
        F.pad(stream.positions, (0, size - count)),
        None,
        Layout.from_bounds(bounds, longest),
        index=F.pad(stream.index, (0, tokens), value=-1),
    )


def first_tokens(packed: Packed) -> EntityStream:
    """The stream of a batch without entities: the first token of each sequence, with no entity."""
    bounds, tokens = packed.layout.bounds.long(), packed.tokens
    sequences = len(bounds) - 1
    numbers = torch.arange(sequences, device=bounds.device)
    # an empty sequence has no first token; it keeps a place in the stream that no token points to
    target = torch.where(bounds.diff() > 0, bounds[:-1], len(tokens))
    index = torch.full((len(tokens) + 1,), -1, device=bounds.device).scatter(0, target, numbers)[: len(tokens)]
    layout = Layout(
        torch.arange(sequences + 1, dtype=torch.int32, device=bounds.device), np.arange(sequences + 1), 1, equal=True
    )
    positions = target.clamp(max=max(0, len(tokens) - 1))
    return EntityStream(torch.zeros_like(numbers), positions, None, layout, index=index)


def spread(values: Tensor, stream: EntityStream) -> Tensor:
    """Write entries of the stream to their tokens, (M, F) -> (N, F); zeros at all others."""
    result: Tensor = _Spread.apply(values, stream.positions, stream.index)
    return result


def gather(states: Tensor, stream: EntityStream) -> Tensor:
    """Read the states of the tokens that the stream holds, (N, F) -> (M, F); arbitrary rows in its padding."""
    result: Tensor = _Gather.apply(states, stream.positions, stream.index)
    return result


def select(values: Tensor, stream: EntityStream, only: Tensor) -> Tensor:
    """Entries of the stream at some tokens, (M, F), (K,) -> (K, F); zeros at tokens that have none."""
    return _look_up(values, stream.index.index_select(0, only))


def _look_up(values: Tensor, index: Tensor) -> Tensor:
    """(M, F), (N,) -> (N, F): rows of `values`, zeros where the index is negative."""
    if not values.shape[0]:
        return values.new_zeros(len(index), values.shape[1])
    return values.index_select(0, index.clamp(min=0)).masked_fill((index < 0)[:, None], 0.0)


def _read_entries(states: Tensor, positions: Tensor, index: Tensor) -> Tensor:
    """(N, F) -> (M, F): the states of the stream's tokens, zeros in its padding."""
    if not positions.shape[0] or not states.shape[0]:
        return states.new_zeros(len(positions), states.shape[1])
    is_used = index.index_select(0, positions) == torch.arange(len(positions), device=positions.device)
    return states.index_select(0, positions).masked_fill(~is_used[:, None], 0.0)


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, positions: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(positions, index)
        return _look_up(values, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _read_entries(grad, *ctx.saved_tensors), None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, positions: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        if not states.shape[0]:  # sequences without a token keep their places in the stream of `first_tokens`
            return states.new_zeros(len(positions), states.shape[1])
        return states.index_select(0, positions)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (index,) = ctx.saved_tensors
        return _look_up(grad, index), None, None
