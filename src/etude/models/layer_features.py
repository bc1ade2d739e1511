"""Chosen layers of a model as one state a token, frozen and remembered, or trained with the rest.

    concat   the chosen layers side by side (BERT, section 5.3: the last four)
    mix      gamma * sum_j softmax(s)_j h_j with learned gamma and s (ELMo, equation 1; TagLM takes only the last)

The mix is new and belongs to the task, like its head: `Plan.build` hands it over, so that `train.head_lr` is its rate
too and a frozen model is frozen whole.

`Features` wraps a model and looks like one, so every task runs over it. Frozen, the wrapped model sees each
sequence once: what it says of it is kept by the sequence's ids, up to a number of bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from etude.errors import UserError
from etude.nn.layer_mix import Mix, Norm
from etude.nn.packed import Layout, Packed, positions_of
from etude.nn.states import States

Layers = Literal["last", "last4", "all"] | list[int]
Combine = Literal["concat", "mix"]

log = logging.getLogger("etude")


def chosen_layers(layers: Layers, count: int) -> list[int]:
    """Numbers of layers from 0, the embedding's output, to count - 1."""
    if layers == "last":
        return [count - 1]
    if layers == "all":
        return list(range(count))
    if layers == "last4":
        if count < 4:
            log.warning(f"The last four layers of a model that has {count} with its embedding: all of them are taken.")
        return list(range(max(0, count - 4), count))
    wrong = [number for number in layers if not -count <= int(number) < count]
    if wrong or not layers:
        raise UserError(
            f"transfer.layers={layers}: this model has the layers 0 (its embedding) to {count - 1}; "
            "-1 is the last, and at least one is wanted."
        )
    return [int(number) % count for number in layers]


def layer_count(model: Any) -> int:
    """How many states a token has, the embedding's among them."""
    return int(getattr(model, "layer_count", 1 + getattr(model.settings, "layers", 0)))


class Features(nn.Module):
    pooler = None  # of the wrapped model: belongs to its last layer, and to fine-tuning

    def __init__(
        self,
        wrapped: Any,
        layers: Layers,
        combine: Combine = "concat",
        frozen: bool = True,
        cache_bytes: int = 1 << 31,
        mix_norm: Norm = "none",
    ) -> None:
        super().__init__()
        self.wrapped, self.combine, self.frozen = wrapped, combine, frozen
        self.chosen = chosen_layers(layers, layer_count(wrapped))
        self.settings, self.context, self.vocab = wrapped.settings, wrapped.context, wrapped.vocab
        alone = self.chosen == [layer_count(wrapped) - 1]
        each = wrapped.width if alone else getattr(wrapped, "layer_width", wrapped.width)  # two towers: wider below
        self.width = each * (len(self.chosen) if combine == "concat" else 1)
        # in a tuple, where it is no part of this module: its parameters have their one name in the task
        self._mix = (Mix(len(self.chosen), mix_norm),) if combine == "mix" else ()
        self.cache: dict[bytes, Tensor] = {}
        self.room = cache_bytes
        if frozen:
            wrapped.requires_grad_(False)
            wrapped.eval()

    @property
    def mix(self) -> Mix | None:
        return self._mix[0] if self._mix else None

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.frozen:
            self.wrapped.eval()  # no dropout: what is remembered is what the model says
        return self

    def forward(self, packed: Packed, layers: bool = False) -> States:
        """`last` is the combination, `layers` on request what it is made of; which ones is settled here."""
        stack = self._remembered(packed) if self.frozen else self._stack(packed)  # (N, L, D)
        last = stack.flatten(1) if self.mix is None else self.mix(stack.unbind(1))
        return States(last=last, layers=list(stack.unbind(1)) if layers else None)

    def _stack(self, packed: Packed) -> Tensor:
        if self.chosen == [layer_count(self.wrapped) - 1]:
            return self.wrapped(packed).last[:, None]
        states = self.wrapped(packed, layers=True).layers
        return torch.stack([states[number] for number in self.chosen], dim=1)

    @torch.no_grad()
    def _remembered(self, packed: Packed) -> Tensor:
        keys, spans = self._keys(packed), list(zip(packed.layout.host[:-1], packed.layout.host[1:], strict=True))
        missing = list({key: number for number, key in enumerate(keys) if key not in self.cache}.values())
        fresh: dict[bytes, Tensor] = {}
        if missing:
            part = _select(packed, missing)
            device = packed.tokens.device
            with torch.autocast(device.type, enabled=False):
                stack = self._stack(part.to(device)).float()
            for number, piece in zip(missing, stack.split(part.layout.lengths.tolist()), strict=True):
                fresh[keys[number]] = piece
                self._keep(keys[number], piece)
        parts = [
            fresh[key] if key in fresh else self.cache[key].to(packed.tokens.device)
            for key, (start, stop) in zip(keys, spans, strict=True)
            if stop > start
        ]
        return torch.cat(parts)

    def _keep(self, key: bytes, states: Tensor) -> None:
        size = states.numel() * states.element_size()
        if size <= self.room:
            self.room -= size
            self.cache[key] = states.cpu().clone()
        elif self.room >= 0:
            self.room = -1
            log.warning("The frozen states do not all fit into memory (transfer.cache_mb): the rest is computed anew.")

    def _keys(self, packed: Packed) -> list[bytes]:
        """The ids of a sequence, and its segments: all that its states depend on."""
        tokens = packed.tokens.cpu().numpy()
        segments = None if packed.segments is None else packed.segments.cpu().numpy().astype(np.uint8)
        found = []
        for start, stop in zip(packed.layout.host[:-1], packed.layout.host[1:], strict=True):
            key = tokens[start:stop].tobytes()
            found.append(key if segments is None else key + b"/" + segments[start:stop].tobytes())
        return found

    def flops(self, lengths: np.ndarray) -> int:
        """Of one pass in training. Frozen, a sequence is seen once in a whole run, which is told apart from it."""
        return 0 if self.frozen else self.wrapped.flops(lengths)


def _select(packed: Packed, numbers: Sequence[int]) -> Packed:
    """Some sequences of a batch as a batch of their own."""
    host = packed.layout.host
    places = np.concatenate([np.arange(host[n], host[n + 1]) for n in numbers])
    lengths = packed.layout.lengths[list(numbers)]
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    index = torch.from_numpy(places.astype(np.int64)).to(packed.tokens.device)
    return Packed(
        tokens=packed.tokens[index],
        positions=torch.from_numpy(positions_of(bounds)).to(packed.tokens.device),
        segments=None if packed.segments is None else packed.segments[index],
        layout=Layout.of(bounds, packed.layout.longest),
    )
