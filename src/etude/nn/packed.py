"""Sequences without padding (design decision 1).

All sequences of a batch lie end to end in flat tensors. `Layout` says where each one starts and ends; it
keeps a copy on the host, because grouping by length (CPU attention) and counting FLOPs are host work, and
reading a bound back from a GPU would stall it.

Letters used in every shape comment: N tokens, S sequences, H heads, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor


@dataclass
class Layout:
    """Where the sequences of a flat batch lie."""

    bounds: Tensor  # (S+1,) int32, on the device; trailing sequences may be empty (static shapes)
    host: np.ndarray  # (S+1,) the same on the host
    longest: int  # a constant bound on the length of a sequence, not the maximum of this batch
    equal: bool  # every sequence is `longest` tokens long: then the batch is dense as it lies
    # What is worked out once a batch and used by every layer (nn/attention/grouped.py). Not part of `replace`, so a
    # layout moved to another device starts afresh.
    cache: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def from_bounds(cls, bounds: np.ndarray, longest: int) -> Self:
        bounds = np.ascontiguousarray(bounds, dtype=np.int32)
        return cls(torch.from_numpy(bounds), bounds, longest, longest > 0 and bool((np.diff(bounds) == longest).all()))

    @property
    def lengths(self) -> np.ndarray:
        """(S,) on the host."""
        return np.diff(self.host)

    @property
    def total(self) -> int:
        return int(self.host[-1])

    def to(self, device: torch.device | str) -> Self:
        return replace(self, bounds=self.bounds.to(device, non_blocking=True))

    def clone(self, pinned: bool) -> Self:
        return replace(self, bounds=copy_single_threaded(self.bounds, pinned))


@dataclass
class Packed:
    """What every model takes."""

    tokens: Tensor  # (N,) int64
    positions: Tensor  # (N,) int64, from 0 in each sequence
    segments: Tensor | None  # (N,) int64, 0 or 1
    layout: Layout

    def to(self, device: torch.device | str) -> Self:
        """Moves every tensor and layout; what lives on the host stays there."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=True), lambda part: part.to(device))

    def clone(self, pinned: bool = False) -> Self:
        """Tensors with memory of their own; `pinned`, page-locked: a copy to a GPU from there waits for nobody."""
        return self._map(lambda tensor: copy_single_threaded(tensor, pinned), lambda part: part.clone(pinned))

    def _map(self, tensor: Callable[[Tensor], Tensor], nested: Callable[[Any], Any]) -> Self:
        moved: dict[str, Any] = {}
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, Tensor):
                moved[entry.name] = tensor(value)
            elif isinstance(value, (Layout, Packed)):
                moved[entry.name] = nested(value)
        return replace(self, **moved)


def positions_from_bounds(bounds: np.ndarray) -> np.ndarray:
    """(N,) the place of each token in its own sequence."""
    lengths = np.diff(bounds)
    return np.arange(int(bounds[-1]), dtype=np.int64) - np.repeat(bounds[:-1].astype(np.int64), lengths)


def pack(sequences: list[list[int]] | list[np.ndarray], longest: int | None = None) -> Packed:
    """A Packed from plain lists of ids: for prediction, tests and the Python interface."""
    lengths = [len(sequence) for sequence in sequences]
    bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    flat = np.concatenate([np.asarray(s, dtype=np.int64) for s in sequences]) if sequences else np.zeros(0, np.int64)
    layout = Layout.from_bounds(bounds, longest or max(lengths, default=0))
    return Packed(torch.from_numpy(flat), torch.from_numpy(positions_from_bounds(bounds)), None, layout)


def copy_single_threaded(tensor: Tensor, pinned: bool) -> Tensor:
    """By this thread alone, and so not by torch, which shares a copy of more than 32,768 numbers among its threads.

    Where processes that build batches have the cores, such a copy waits until each of those threads had one: 19 ms for
    a step of ELECTRA's that one thread copies in 0.6, on a host of 16 cores, while its GPU had nothing to do.
    """
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)
    copy.numpy()[...] = tensor.numpy()
    return copy
