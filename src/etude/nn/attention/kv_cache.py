"""A cache of keys and values, so that generating a token costs one token (causal models).

Sequences of different lengths share one cache: a dense buffer for each layer, (S, room, H, d), of which each sequence
fills its own part. A step may bring any number of new tokens for each sequence: whole prompts first, then one each, or
none for a sequence that has ended. Positions continue where the sequence stopped; `pack` sees to that.

    cache = KVCache()
    states = model(cache.pack([[5, 8, 2], [7]]), cache=cache)      # prompts
    states = model(cache.pack([[4], [9]]), cache=cache)            # one more token each
    cache.select(np.array([1]))                                    # the first sequence has ended
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from etude.nn.attention.dispatch import attend
from etude.nn.attention.step import attend_step
from etude.nn.packed import Layout, Packed, pack

_ROOM = 64  # the buffer grows by doubling from here: few copies, little waste


class KVCache:
    """Keys and values of all layers for the sequences that are being generated."""

    def __init__(self) -> None:
        self.lengths = np.zeros(0, np.int64)  # (S,) tokens kept of each sequence, on the host
        self.keys: list[Tensor] = []  # a layer each: (S, room, H, d)
        self.values: list[Tensor] = []
        self._step: _Step | None = None

    @property
    def longest(self) -> int:
        """Tokens kept of the longest sequence."""
        return int(self.lengths.max(initial=0)) if self.keys else 0

    def pack(self, tokens: list[list[int]]) -> Packed:
        """Pack new tokens of every sequence, at the positions that follow the cached ones."""
        if self.keys and len(tokens) != len(self.lengths):
            raise ValueError(f"got {len(tokens)} sequences, but the cache holds {len(self.lengths)}")
        packed = pack(tokens)
        past = self.lengths if self.keys else np.zeros(len(tokens), np.int64)
        return replace(packed, positions=packed.positions + torch.from_numpy(np.repeat(past, packed.layout.lengths)))

    def start_step(self, layout: Layout, path: str | None = None) -> None:
        """Prepare for the layers of one step."""
        if not self.keys:
            self.lengths = np.zeros(len(layout.lengths), np.int64)
        if len(layout.lengths) != len(self.lengths):
            raise ValueError(f"got {len(layout.lengths)} sequences, but the cache holds {len(self.lengths)}")
        self._step = _Step(self.lengths, layout, path)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, window: int | None) -> Tensor:
        """Cache the new keys and values of a layer, and attend to all cached ones. (N, H, d) -> (N, H, d)."""
        if self._step is None:
            raise RuntimeError("call start_step() before the layers of a step")
        step = self._step
        if layer == len(self.keys):
            shape = (len(self.lengths), max(step.longest, _ROOM), *key.shape[1:])
            self.keys.append(key.new_zeros(shape))
            self.values.append(value.new_zeros(shape))
        for buffers, new in ((self.keys, key), (self.values, value)):
            buffers[layer] = buffer = _grow(buffers[layer], step.longest)
            slots = step.slots(buffer.shape[1], buffer.device)
            buffer.view(-1, *buffer.shape[2:]).index_copy_(0, slots, new.detach().to(buffer.dtype))
        if step.first:
            return attend(query, key, value, step.layout, causal=True, window=window, path=step.path)
        return step.attend(query, self.keys[layer], self.values[layer], window)

    def finish_step(self) -> None:
        """Count the new tokens as cached, after the layers of one step."""
        if self._step is not None:
            self.lengths = self.lengths + self._step.layout.lengths
        self._step = None

    def select(self, rows: np.ndarray) -> None:
        """Keep only these sequences, in this order; one may be named twice (beam search)."""
        index = torch.from_numpy(np.asarray(rows, dtype=np.int64))
        self.lengths = self.lengths[rows]
        self.keys = [buffer.index_select(0, index.to(buffer.device)) for buffer in self.keys]
        self.values = [buffer.index_select(0, index.to(buffer.device)) for buffer in self.values]

    def move(self, keys: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        """Go on in other buffers, of as many sequences and with as much room or more."""
        for buffers, targets in ((self.keys, keys), (self.values, values)):
            for buffer, target in zip(buffers, targets, strict=True):
                target[:, : buffer.shape[1]] = buffer
        self.keys, self.values = list(keys), list(values)

    def append(self, count: int) -> None:
        """Add `count` sequences of which nothing is cached yet, behind the others."""
        if not self.keys:
            return  # the first step takes as many sequences as it gets
        self.lengths = np.concatenate([self.lengths, np.zeros(count, np.int64)])
        for buffers in (self.keys, self.values):
            for layer, buffer in enumerate(buffers):
                buffers[layer] = torch.cat([buffer, buffer.new_zeros(count, *buffer.shape[1:])])

    def reset(self, rows: np.ndarray) -> None:
        """Restart these sequences at position 0; their cached tokens are overwritten."""
        self.lengths = self.lengths.copy()
        self.lengths[rows] = 0


class LockstepCache(KVCache):
    """A cache of sequences of one length, each with one new token a step: nothing to mask, nothing to place.

    A step of a static one can be recorded (nn/cuda_graphs.py): its buffers stay where they are, and the place of the
    next token lies on the device. A token stays in the row where it was stored, however sequences are reordered.
    """

    def __init__(self) -> None:
        super().__init__()
        self.length = 0  # tokens kept of every sequence; not counted where the cache is static
        self.place: Tensor | None = None  # (1,) the same on the device, where the cache is static
        self._origins: Tensor | None = None  # (S, room) the row of each token of a sequence, where the cache is static

    @property
    def longest(self) -> int:
        return self.length if self.place is None else self.keys[0].shape[1] - 1

    def new_static(self, sequences: int, room: int) -> LockstepCache:
        """An empty cache with static room for tokens of so many sequences, of the shape of this one otherwise."""
        cache = LockstepCache()
        cache.keys, cache.values = (
            [buffer.new_zeros(sequences, room, *buffer.shape[2:]) for buffer in buffers]
            for buffers in (self.keys, self.values)
        )
        device = self.keys[0].device
        cache.place = torch.zeros(1, dtype=torch.int64, device=device)
        cache._origins = torch.zeros((sequences, room), dtype=torch.int32, device=device)
        return cache

    def load(self, cache: LockstepCache, rows: Tensor, length: int) -> None:
        """Take the first `length` tokens of these sequences, (S,), of another cache; this one is static."""
        assert self.place is not None and self._origins is not None
        tokens = torch.arange(length, device=rows.device)
        sources = rows[:, None] if cache._origins is None else cache._origins[rows, :length].long()
        for mine, theirs in ((self.keys, cache.keys), (self.values, cache.values)):
            for buffer, stored in zip(mine, theirs, strict=True):
                buffer[: len(rows), :length] = stored[sources, tokens]
        self._origins.copy_(torch.arange(len(self._origins), device=rows.device)[:, None])
        self.place.fill_(length)

    def start_step(self, layout: Layout, path: str | None = None) -> None:
        if not layout.equal or layout.longest != 1:
            raise ValueError("a step of this cache has one token of every sequence")

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, window: int | None) -> Tensor:
        if window is not None:
            raise ValueError("a cache of one length has no windows")
        if self.place is not None:
            keys, values = self.keys[layer], self.values[layer]
            return attend_step(query, key.detach(), value.detach(), keys, values, self.place, self._origins)
        if layer == len(self.keys):
            self.keys.append(key.new_zeros(len(key), 0, *key.shape[1:]))
            self.values.append(value.new_zeros(len(value), 0, *value.shape[1:]))
        stop = self.length + 1
        for buffers, new in ((self.keys, key), (self.values, value)):
            buffers[layer] = _grow(buffers[layer], stop)
            buffers[layer][:, self.length] = new.detach()
        if stop == 1:
            return value  # the only token sees itself
        return F.scaled_dot_product_attention(
            query[:, :, None],
            self.keys[layer][:, :stop].transpose(1, 2),
            self.values[layer][:, :stop].transpose(1, 2),
        )[:, :, 0]  # (S, H, d)

    def finish_step(self) -> None:
        if self.place is None:
            self.length += 1
        else:
            self.place.add_(1)  # in a new table of origins every row names itself, so the new token's is there

    def reorder(self, rows: Tensor) -> None:
        """Keep only these sequences, (S,), in this order; one may be named twice. A static cache keeps its number."""
        if self._origins is not None:
            self._reorder_origins(self._origins, rows)
            return
        for buffers in (self.keys, self.values):
            for layer, buffer in enumerate(buffers):
                selection = buffer.new_empty(len(rows), *buffer.shape[1:])
                # what lies beyond the tokens is never read
                torch.index_select(buffer[:, : self.length], 0, rows, out=selection[:, : self.length])
                buffers[layer] = selection

    def _reorder_origins(self, origins: Tensor, rows: Tensor) -> None:
        """A sequence has the past of another; its next tokens, in columns from `place` on, are its own."""
        assert self.place is not None
        is_past = torch.arange(origins.shape[1], device=origins.device) < self.place
        origins.copy_(torch.where(is_past, origins.index_select(0, rows), origins))


class _Step:
    """Where the new tokens of one step go, computed once for all layers."""

    def __init__(self, past: np.ndarray, layout: Layout, path: str | None) -> None:
        self.past, self.layout, self.path = past, layout, path
        self.first = not past.any()
        self.longest = int((past + layout.lengths).max(initial=0))
        self._row = np.repeat(np.arange(len(past)), layout.lengths)
        self._offset = np.arange(layout.total) - np.repeat(layout.host[:-1].astype(np.int64), layout.lengths)
        self._sent: dict[object, Tensor] = {}

    def rows(self, device: torch.device) -> Tensor:
        """Return the sequence of each new token, (N,)."""
        return self._send("rows", self._row, device)

    def slots(self, room: int, device: torch.device) -> Tensor:
        """Return where each new token goes in a buffer (S * room, H, d), (N,)."""
        if ("slots", room) not in self._sent:
            return self._send(("slots", room), self._row * room + self.past[self._row] + self._offset, device)
        return self._sent["slots", room]

    def _send(self, name: object, array: np.ndarray, device: torch.device) -> Tensor:
        if name not in self._sent:
            self._sent[name] = torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)
        return self._sent[name]

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, window: int | None) -> Tensor:
        """Attend with the new tokens' queries to all cached keys: dense, because a step has few queries."""
        sequences, width = len(self.past), int(self.layout.lengths.max(initial=0))
        rows, offsets = self.rows(query.device), self._send("offsets", self._offset, query.device)
        if width == 1 and len(rows) == sequences:
            dense = query[:, None]  # one new token each, the usual step: nothing to arrange
        else:
            dense = query.new_zeros(sequences, width, *query.shape[1:])
            dense[rows, offsets] = query
        mixed = F.scaled_dot_product_attention(
            dense.transpose(1, 2),
            keys[:, : self.longest].transpose(1, 2),
            values[:, : self.longest].transpose(1, 2),
            attn_mask=self._visible(width, window, query.device),
        ).transpose(1, 2)  # (S, width, H, d)
        return mixed[rows, offsets]

    def _visible(self, width: int, window: int | None, device: torch.device) -> Tensor:
        """(S, 1, width, longest) bool. A padding query sees the first key, so that no row is empty."""
        key = np.arange(self.longest)[None, None, :]
        position = self.past[:, None, None] + np.arange(width)[None, :, None]
        visible = key <= position
        if window is not None:
            visible &= key >= position - window
        visible |= (key == 0) & (np.arange(width)[None, :, None] >= self.layout.lengths[:, None, None])
        return self._send(("visible", window), visible[:, None], device)


def _grow(buffer: Tensor, longest: int) -> Tensor:
    """Return a buffer with room for the longest sequence."""
    room = buffer.shape[1]
    if longest <= room:
        return buffer
    grown = buffer.new_zeros(buffer.shape[0], max(longest, 2 * room, _ROOM), *buffer.shape[2:])
    grown[:, :room] = buffer
    return grown
