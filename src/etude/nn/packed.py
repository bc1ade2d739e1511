"""Packed batches: sequences without padding (design decision 1).

All sequences of a batch lie end to end in flat tensors. `Layout` says where each one starts and ends; it keeps a copy
on the host, because grouping by length (CPU attention) and counting FLOPs happen on the host, and reading a bound back
from a GPU would stall it.

Symbols in every shape comment: N tokens, S sequences, H heads, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

# Metadata of a field whose value stays on the host and is no part of a batch's shapes: a computation must not read it
HOST_VALUE = {"host": True}


@dataclass
class Layout:
    """The boundaries of the sequences in a packed batch."""

    bounds: Tensor  # (S+1,) int32, on the device; trailing sequences may be empty (static shapes)
    host: np.ndarray  # (S+1,) the same on the host
    longest: int  # an upper bound on the length of a sequence, constant over batches
    equal: bool  # every sequence has `longest` tokens: the batch is dense
    # there is room for `longest` tokens of every sequence, behind the last bound: see nn/rectangle.py
    rectangular: bool = False
    # Computed once a batch and used by every layer (nn/attention/grouped.py). Not part of `replace`, so a layout moved
    # to another device starts with an empty cache.
    cache: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def from_bounds(cls, bounds: np.ndarray, longest: int) -> Self:
        """Build from bounds (S+1,) on the host and the longest length a sequence may have."""
        bounds = np.ascontiguousarray(bounds, dtype=np.int32)
        return cls(torch.from_numpy(bounds), bounds, longest, longest > 0 and bool((np.diff(bounds) == longest).all()))

    @property
    def lengths(self) -> np.ndarray:
        """The length of each sequence, (S,), on the host."""
        return np.diff(self.host)

    @property
    def total(self) -> int:
        """The number of tokens."""
        return int(self.host[-1])

    def to(self, device: torch.device | str) -> Self:
        """Move the bounds to a device."""
        return replace(self, bounds=self.bounds.to(device, non_blocking=True))

    def clone(self, pinned: bool) -> Self:
        """Copy the bounds, into page-locked memory with `pinned`."""
        return replace(self, bounds=copy_single_threaded(self.bounds, pinned))


@dataclass
class TensorGroup:
    """Tensors of one part of a batch (a graph beside the text), moved and copied with it; other fields stay."""

    def to(self, device: torch.device | str) -> Self:
        """Move every tensor to a device."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def clone(self, pinned: bool = False) -> Self:
        """Copy every tensor; with `pinned` into page-locked memory."""
        return self._map(lambda tensor: copy_single_threaded(tensor, pinned))

    def _map(self, change: Callable[[Tensor], Tensor]) -> Self:
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return replace(self, **{name: change(value) for name, value in values.items() if isinstance(value, Tensor)})


@dataclass
class Packed:
    """The input of every model."""

    tokens: Tensor  # (N,) int64
    positions: Tensor  # (N,) int64, from 0 in each sequence
    segments: Tensor | None  # (N,) int64, 0 or 1
    layout: Layout
    # the entities of some tokens, for a model that reads a knowledge graph beside the text; others pass them over
    entities: EntityStream | None = field(default=None, kw_only=True)

    def to(self, device: torch.device | str) -> Self:
        """Move every tensor and layout to a device; arrays of the host stay there."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=True), lambda part: part.to(device))

    def clone(self, pinned: bool = False) -> Self:
        """Copy every tensor; with `pinned` into page-locked memory, for asynchronous copies to a GPU."""
        return self._map(lambda tensor: copy_single_threaded(tensor, pinned), lambda part: part.clone(pinned))

    def _map(self, tensor: Callable[[Tensor], Tensor], nested: Callable[[Nested], Nested]) -> Self:
        """Replace every tensor by `tensor(value)` and every layout, group or nested batch by `nested(value)`."""
        moved: dict[str, Any] = {}  # fields of any subclass
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, Tensor):
                moved[entry.name] = tensor(value)
            elif isinstance(value, (Layout, Packed, TensorGroup)):
                moved[entry.name] = nested(value)
        return replace(self, **moved)


@dataclass
class EntityStream(Packed):
    """The entities of a packed batch, packed themselves: of each sequence its first token and those with an entity.

    `tokens` (M,) are rows of an entity table, 0 for none; `positions` (M,) say which token of the batch each belongs
    to; the layout has the same sequences, and sequences of padding behind them where shapes are static. Nothing else
    of the text has a place here, so that no layer computes an entity state that nobody reads (nn/entity_fusion.py).
    """

    index: Tensor  # (N,) int64: where each token of the batch stands in this stream, or -1


Nested = Layout | TensorGroup | Packed  # the parts of a batch that hold tensors themselves


def positions_from_bounds(bounds: np.ndarray) -> np.ndarray:
    """Return the position of each token in its own sequence, (N,)."""
    lengths = np.diff(bounds)
    return np.arange(int(bounds[-1]), dtype=np.int64) - np.repeat(bounds[:-1].astype(np.int64), lengths)


def pack(sequences: list[list[int]] | list[np.ndarray], longest: int | None = None) -> Packed:
    """Build a Packed from plain lists of ids: for prediction, tests and the Python interface."""
    lengths = [len(sequence) for sequence in sequences]
    bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    flat = np.concatenate([np.asarray(s, dtype=np.int64) for s in sequences]) if sequences else np.zeros(0, np.int64)
    layout = Layout.from_bounds(bounds, longest or max(lengths, default=0))
    return Packed(torch.from_numpy(flat), torch.from_numpy(positions_from_bounds(bounds)), None, layout)


def send_array(array: np.ndarray, device: torch.device) -> Tensor:
    """Copy an array of the host to a device, without waiting for what a GPU does at the moment.

    From memory that may be swapped out, such a copy waits for all that was launched before it.
    """
    source = torch.from_numpy(array)
    if device.type != "cuda":
        return source.to(device)
    return copy_single_threaded(source, pinned=True).to(device, non_blocking=True)


def copy_single_threaded(tensor: Tensor, pinned: bool) -> Tensor:
    """Copy a tensor in this thread alone; torch would split more than 32,768 elements among its threads.

    Where the processes that build batches use all cores, such a copy waits until each of those threads gets one: 19 ms
    for a step of ELECTRA that one thread copies in 0.6, on a host of 16 cores, while its GPU was idle.
    """
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)
    copy.numpy()[...] = tensor.numpy()
    return copy
