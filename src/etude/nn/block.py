"""The two residual branches of a Transformer layer, each one module with its own norm.

How a branch reads the stream and adds to it, before or behind a norm, is in nn/residual.py. A branch with its norm is
the unit of sharing (ALBERT, section 3.1): a layer is "attention i, feedforward j".
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etude.nn import norm as norms
from etude.nn import residual
from etude.nn.activations import ACTIVATIONS, Activation, drop
from etude.nn.attention import query_subset as places
from etude.nn.attention.dispatch import attend, attend_packed, attend_reference
from etude.nn.attention.kv_cache import Cache
from etude.nn.feedforward import activated, fed_forward
from etude.nn.packed import Layout
from etude.nn.residual import Placement, Stream
from etude.nn.rotary import Rotation, rotate


class AttentionBranch(nn.Module):
    """Self-attention: project, attend, join."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        placement: Placement,
        norm: norms.Norm | nn.Identity,
        bias: bool = True,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.heads, self.size, self.placement = heads, width // heads, placement
        self.dropout, self.attention_dropout = dropout, attention_dropout
        self.norm = norm
        self.qkv = nn.Linear(width, 3 * width, bias=bias)  # rows in the order query, key, value
        self.out = nn.Linear(width, width, bias=bias)

    def forward(
        self,
        x: Stream,
        layout: Layout,
        *,
        causal: bool,
        window: int | None = None,
        turn: Rotation | None = None,
        path: str | None = None,
        record: list[list[Tensor]] | None = None,
        cache: Cache | None = None,
        layer: int = 0,
        only: Tensor | None = None,
        asked: list[Tensor] | None = None,
    ) -> Stream:
        """(N, D) -> (N, D). With `record`, the weights of this layer are appended to it (slow path).

        With `asked`, its queries and keys are, (N, 2, H, d). With `cache`, the tokens follow those kept of `layer` and
        see them too. With `only` (M,), the tokens at these places alone go on, (M, D): all are seen, and what nobody
        asks for is not computed.
        """
        x, normed = residual.read(x, self.norm, self.placement)
        dropout = self.attention_dropout if self.training else 0.0
        plain = cache is None and record is None and turn is None
        if plain and only is not None and places.serves(normed, path):
            mixed = self.attend_at(normed, layout, only, causal=causal, window=window, dropout=dropout)
            return self.join(residual.at(x, only), mixed)
        if plain:
            qkv = self.qkv(normed).view(-1, 3, self.heads, self.size)
            if asked is not None:
                asked.append(qkv[:, :2])
            mixed = attend_packed(qkv, layout, causal=causal, window=window, dropout=dropout, path=path)
            return self.join(x, mixed, only)
        query, key, value = self.project(normed, turn)
        if asked is not None:
            asked.append(torch.stack([query, key], 1))
        if cache is not None:
            mixed = cache.attend(layer, query, key, value, window)
        elif record is None:
            mixed = attend(query, key, value, layout, causal=causal, window=window, dropout=dropout, path=path)
        else:
            mixed, maps = attend_reference(
                query, key, value, layout, causal=causal, window=window, dropout=dropout, weights=True
            )
            record.append(maps or [])
        return self.join(x, mixed, only)

    def attend_at(
        self, x: Tensor, layout: Layout, only: Tensor, *, causal: bool, window: int | None, dropout: float
    ) -> Tensor:
        """Queries of some tokens alone, keys and values of all: (N, D), (M,) -> (M, H, d)."""
        width = self.heads * self.size
        first, others = (
            (self.qkv.weight[rows], None if self.qkv.bias is None else self.qkv.bias[rows])
            for rows in (slice(0, width), slice(width, None))
        )
        query = F.linear(x.index_select(0, only), *first).view(-1, self.heads, self.size)
        key_value = F.linear(x, *others).view(-1, 2, self.heads, self.size)
        return places.attend_at(query, key_value, layout, only, causal=causal, window=window, dropout=dropout)

    def project(self, x: Tensor, turn: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, (N, H, d) each, turned by their positions where those are rotary."""
        query, key, value = self.qkv(x).view(x.shape[0], 3, self.heads, self.size).unbind(1)
        if turn is not None:
            query, key = rotate(query, turn), rotate(key, turn)
        return query, key, value

    def join(self, x: Stream, mixed: Tensor, only: Tensor | None = None) -> Stream:
        """The output projection, and back onto the residual stream."""
        if only is not None:
            x, mixed = residual.at(x, only), mixed.index_select(0, only)
        branch = residual.projected(x, self.out, mixed.reshape(-1, self.heads * self.size))
        dropout = self.dropout if self.training else 0.0
        return residual.add(x, branch, self.out.bias, dropout, self.norm, self.placement)


class FeedForwardBranch(nn.Module):
    """down(activation(up(x))), or gated: down(activation(gate(x)) * up(x)) (Shazeer 2020)."""

    def __init__(
        self,
        width: int,
        inner: int,
        *,
        placement: Placement,
        norm: norms.Norm,
        activation: Activation = "gelu",
        gated: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
        inner_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.placement, self.dropout, self.inner_dropout = placement, dropout, inner_dropout
        self.activation = ACTIVATIONS[activation]
        self.norm = norm
        self.up = nn.Linear(width, inner, bias=bias)
        self.gate = nn.Linear(width, inner, bias=bias) if gated else None
        self.down = nn.Linear(inner, width, bias=bias)

    def forward(self, x: Stream) -> Stream:
        """(N, D) -> (N, D)."""
        x, normed = residual.read(x, self.norm, self.placement)
        dropout = self.dropout if self.training else 0.0
        return residual.add(x, self.feed(x, normed), self.down.bias, dropout, self.norm, self.placement)

    def feed(self, x: Stream, normed: Tensor) -> Tensor:
        """The branch itself, (N, D) -> (N, D)."""
        if self.gate is None and (self.inner_dropout == 0 or not self.training):
            return fed_forward(normed, self.up, self.down, self.activation, residual.lent(x, self.down.bias))
        if self.gate is None:
            inner = activated(normed, self.up, self.activation)
        else:
            inner = self.activation(self.gate(normed)) * self.up(normed)
        inner = drop(inner, self.inner_dropout, self.training)  # behind the activation: Baevski et al. 2019
        return residual.projected(x, self.down, inner)


def first_places(layout: Layout, tokens: int) -> Tensor:
    """(S,) where each sequence begins; a place that means nothing for an empty one."""
    return layout.bounds[:-1].long().clamp(max=max(0, tokens - 1))


def pool_first(x: Tensor, layout: Layout) -> Tensor:
    """The state of the first token of each sequence, (S, D); a row that means nothing for an empty one."""
    first = first_places(layout, x.shape[0])
    return x.index_select(0, first) if x.shape[0] else x.new_zeros(len(first), x.shape[1])
