"""A step of one token for every cached sequence, in static memory, so that it can be recorded (nn/cuda_graphs.py).

The place of each new token lies on the device (nn/attention/step.py). A sequence that has ended keeps its place in the
batch and is not looked at.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from etude.nn.attention.kv_cache import KVCache
from etude.nn.attention.step import attend_step
from etude.nn.packed import Layout, Packed


class StaticStep(KVCache):
    """Static buffers under the interface that layers know, with tokens and places on the device."""

    def __init__(self, cache: KVCache, room: int, device: torch.device) -> None:
        """For as many sequences as those of `cache`, of up to `room` tokens."""
        super().__init__()
        self.room, sequences = room, len(cache.lengths)
        self.buffers = [  # (S, room, H, d) of each layer
            (key.new_zeros(sequences, room, *key.shape[2:]), value.new_zeros(sequences, room, *value.shape[2:]))
            for key, value in zip(cache.keys, cache.values, strict=True)
        ]
        self.tokens = torch.zeros(sequences, dtype=torch.int64, device=device)  # (S,)
        self.places = torch.zeros(sequences, dtype=torch.int64, device=device)  # (S,) of these tokens
        self.layout = Layout.from_bounds(np.arange(sequences + 1), 1).to(device)

    def suits(self, cache: KVCache, room: int) -> bool:
        """Whether a cache could be continued here, with this room."""
        mine, theirs = self.buffers[0][0], cache.keys[0]
        return (room, len(cache.lengths), theirs.dtype) == (self.room, len(self.tokens), mine.dtype)

    def uses(self, cache: KVCache) -> bool:
        """Whether these are the buffers of a cache."""
        return len(self.buffers) == len(cache.keys) and all(
            mine[0] is key and mine[1] is value
            for mine, key, value in zip(self.buffers, cache.keys, cache.values, strict=True)
        )

    def fill(self, tokens: np.ndarray, places: np.ndarray) -> None:
        """Copy the next token of each sequence and its place to the device, without waiting for it."""
        for target, values in ((self.tokens, tokens), (self.places, places)):
            source = torch.from_numpy(values.astype(np.int64))
            target.copy_(source.pin_memory() if target.is_cuda else source, non_blocking=True)

    def pack(self, tokens: list[list[int]] | None = None) -> Packed:
        """The batch of this step."""
        return Packed(self.tokens, self.places, None, self.layout)

    def start_step(self, layout: Layout, path: str | None = None) -> None:
        """Nothing: all of it lies on the device."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, window: int | None) -> Tensor:
        return attend_step(query, key.detach(), value.detach(), *self.buffers[layer], self.places, window=window)

    def finish_step(self) -> None:
        """Nothing: the host counts, and fills in the next places."""
