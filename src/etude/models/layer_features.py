"""Chosen layers of a model as one state a token, frozen and remembered, or trained with the rest.

    concat   the chosen layers side by side (BERT, section 5.3: the last four)
    mix      gamma * sum_j softmax(s)_j h_j with learned gamma and s (ELMo, equation 1; TagLM takes only the last)

The mix is new and belongs to the task, like its head: `Plan.build` hands it over, so that `train.head_lr` is its rate
too and a frozen model is frozen whole.

`LayerFeatures` wraps a model and is one, so every task runs over it. Frozen, the wrapped model sees each sequence
once: its states are cached by the sequence's ids, up to a number of bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Self

import numpy as np
import torch
from torch import Tensor

from etude.errors import UserError
from etude.models.base import Model
from etude.models.framing import Framing
from etude.models.transfer_settings import Combine, Layers, TransferSettings
from etude.nn.entity_stream import build_stream
from etude.nn.layer_mix import LayerMix, MixNorm
from etude.nn.packed import EntityStream, Layout, Packed, positions_from_bounds
from etude.nn.states import States
from etude.text.tokenizer.special_tokens import Specials
from etude.text.tokenizer.tokenizer import Tokenizer

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
    if not layers or any(not -count <= int(number) < count for number in layers):
        raise UserError(
            f"layers={layers}: this model has the layers 0 (its embedding) to {count - 1}; "
            "-1 is the last. Give at least one of them."
        )
    return [int(number) % count for number in layers]


class LayerFeatures(Model):
    """No pooler: that of the wrapped model belongs to its last layer, and to fine-tuning."""

    def __init__(
        self,
        wrapped: Model,
        layers: Layers,
        combine: Combine = "concat",
        frozen: bool = True,
        cache_bytes: int = 1 << 31,
        mix_norm: MixNorm = "none",
    ) -> None:
        super().__init__(wrapped.settings)
        self.wrapped, self.combine, self.frozen = wrapped, combine, frozen
        self.chosen = chosen_layers(layers, wrapped.state_count)
        self.context = wrapped.context
        self.last_only = self.chosen == [wrapped.state_count - 1]
        self.width = self.state_width * (len(self.chosen) if combine == "concat" else 1)
        # in a tuple, where it is no part of this module: its parameters have their one name in the task
        self._mix = (LayerMix(len(self.chosen), mix_norm),) if combine == "mix" else ()
        self.cache: dict[bytes, Tensor] = {}
        self.free_bytes = cache_bytes
        if frozen:
            wrapped.requires_grad_(False)
            wrapped.eval()

    @property
    def mix(self) -> LayerMix | None:
        return self._mix[0] if self._mix else None

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.frozen:
            self.wrapped.eval()  # no dropout: cached states are those of use
        return self

    def forward(self, packed: Packed, layers: bool = False) -> States:
        """`last` is the combination; with `layers`, the chosen layers that it is made of."""
        stack = self._cached_stack(packed) if self.frozen else self._stack(packed)  # (N, L, D)
        last = stack.flatten(1) if self.mix is None else self.mix(stack.unbind(1))
        return States(last=last, layers=list(stack.unbind(1)) if layers else None)

    def read(self, states: States) -> States:
        """The combination of states that the wrapped model has computed already, with all its layers."""
        stack = self._select(states)
        return States(last=stack.flatten(1) if self.mix is None else self.mix(stack.unbind(1)))

    def _stack(self, packed: Packed) -> Tensor:
        return self._select(self.wrapped(packed, layers=not self.last_only))

    def _select(self, states: States) -> Tensor:
        """(N, L, D) the chosen layers."""
        if self.last_only:
            return states.last[:, None]
        assert states.layers is not None
        return torch.stack([states.layers[number] for number in self.chosen], dim=1)

    @torch.no_grad()
    def _cached_stack(self, packed: Packed) -> Tensor:
        keys, spans = self._keys(packed), list(zip(packed.layout.host[:-1], packed.layout.host[1:], strict=True))
        uncached = list({key: number for number, key in enumerate(keys) if key not in self.cache}.values())
        computed: dict[bytes, Tensor] = {}
        device = packed.tokens.device
        if uncached:
            part = _select(packed, uncached)
            with torch.autocast(device.type, enabled=False):
                stack = self._stack(part.to(device)).float()
            computed = _divide([keys[number] for number in uncached], stack, part.layout.lengths.tolist())
            if self.free_bytes >= 0:  # all in one copy: a GPU is waited for at each
                self._store(_divide(list(computed), stack.cpu(), part.layout.lengths.tolist()))
        read = [key for key, (start, stop) in zip(keys, spans, strict=True) if stop > start]
        if not read:
            return self._stack(packed).float()  # no tokens: nothing to remember, but layers and widths
        if not computed:  # joined where they are remembered, and sent once: a copy to a GPU for each would take longer
            return torch.cat([self.cache[key] for key in read]).to(device)
        if others := [key for key in dict.fromkeys(read) if key not in computed]:
            joined = torch.cat([self.cache[key] for key in others]).to(device)
            computed |= _divide(others, joined, [len(self.cache[key]) for key in others])
        return torch.cat([computed[key] for key in read])

    def _store(self, pieces: dict[bytes, Tensor]) -> None:
        """Remember states (L, ...) of sequences, on the host, as long as there is room."""
        for key, states in pieces.items():
            size = states.numel() * states.element_size()
            if size <= self.free_bytes:
                self.free_bytes -= size
                self.cache[key] = states.clone()
            elif self.free_bytes >= 0:
                self.free_bytes = -1
                log.warning(
                    "The frozen states do not all fit into memory (transfer.cache_mb): the rest is computed anew."
                )

    def _keys(self, packed: Packed) -> list[bytes]:
        """The ids of a sequence, its segments and its entities: all that its states depend on."""
        columns = [packed.tokens.cpu().numpy()]
        if packed.segments is not None:
            columns.append(packed.segments.cpu().numpy().astype(np.uint8))
        if packed.entities is not None:
            columns.append(_entity_rows(packed.entities))
        spans = zip(packed.layout.host[:-1], packed.layout.host[1:], strict=True)
        return [b"/".join(column[start:stop].tobytes() for column in columns) for start, stop in spans]

    def flops(self, lengths: np.ndarray) -> int:
        """Of one pass in training. Frozen, a sequence is seen once in a whole run, which is counted apart from it."""
        return 0 if self.frozen else self.wrapped.flops(lengths)

    # --- what kind of model it is -------------------------------------------------------------------

    @property
    def base(self) -> Model:
        return self.wrapped

    @property
    def layers(self) -> int:
        return self.wrapped.layers

    @property
    def causal(self) -> bool:
        return self.wrapped.causal

    @property
    def state_count(self) -> int:
        return len(self.chosen)

    @property
    def state_width(self) -> int:
        return self.wrapped.width if self.last_only else self.wrapped.state_width

    @property
    def shares_layers(self) -> bool:
        return self.wrapped.shares_layers

    def frame(self, special: Specials) -> Framing:
        return self.wrapped.frame(special)

    def attach_tokenizer(self, tokenizer: Tokenizer) -> Tokenizer:
        return self.wrapped.attach_tokenizer(tokenizer)

    def parameter_depth(self, name: str) -> int | None:
        return self.wrapped.parameter_depth(name.removeprefix("wrapped."))

    def transfer_defaults(self, frozen: bool) -> dict[str, object]:
        return self.wrapped.transfer_defaults(frozen)

    def prepare_transfer(self, settings: TransferSettings) -> None:
        self.wrapped.prepare_transfer(settings)


def _divide(keys: list[bytes], states: Tensor, lengths: list[int]) -> dict[bytes, Tensor]:
    """Return the states of each sequence, by its key."""
    return dict(zip(keys, states.split(lengths), strict=True))


def _select(packed: Packed, numbers: Sequence[int]) -> Packed:
    """Some sequences of a batch as a batch of their own."""
    host = packed.layout.host
    tokens = np.concatenate([np.arange(host[n], host[n + 1]) for n in numbers])
    lengths = packed.layout.lengths[list(numbers)]
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    index = torch.from_numpy(tokens.astype(np.int64)).to(packed.tokens.device)
    layout = Layout.from_bounds(bounds, packed.layout.longest)
    return Packed(
        tokens=packed.tokens[index],
        positions=torch.from_numpy(positions_from_bounds(bounds)).to(packed.tokens.device),
        segments=None if packed.segments is None else packed.segments[index],
        layout=layout,
        entities=None if packed.entities is None else build_stream(_entity_rows(packed.entities)[tokens], layout),
    )


def _entity_rows(stream: EntityStream) -> np.ndarray:
    """(N,) int64, the row of the entity table of each token of the batch; 0 where it has none."""
    rows, index = stream.tokens.cpu().numpy(), stream.index.cpu().numpy()
    result: np.ndarray = np.where(index >= 0, rows[index], 0)
    return result
