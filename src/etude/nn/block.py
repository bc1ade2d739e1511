"""The two residual branches of a Transformer layer, each one module with its own norm.

Post-LN (Vaswani et al. 2017; GPT-1, BERT):   x = norm(x + branch(x))
Pre-LN  (GPT-2, section 2.3):                 x = x + branch(norm(x))

A branch with its norm is the unit of sharing (ALBERT, section 3.1): a layer is "attention i, feedforward j".
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from etude.nn import norm as norms
from etude.nn.attention import attend, attend_packed, attend_reference
from etude.nn.cache import Cache
from etude.nn.packed import Layout
from etude.nn.pointwise import ACTIVATIONS, Activation, activated, drop, fed_forward
from etude.nn.rotary import Rotation, rotate

Placement = Literal["pre", "post"]


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
        x: Tensor,
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
    ) -> Tensor:
        """(N, D) -> (N, D). With `record`, the weights of this layer are appended to it (slow path).

        With `cache`, the tokens follow those kept of `layer` and see them too. With `only` (M,), the tokens at these
        places alone go on, (M, D): all are seen, and what nobody asks for is not computed.
        """
        normed = self.norm(x) if self.placement == "pre" else x
        dropout = self.attention_dropout if self.training else 0.0
        if cache is None and record is None and turn is None:
            qkv = self.qkv(normed).view(x.shape[0], 3, self.heads, self.size)
            mixed = attend_packed(qkv, layout, causal=causal, window=window, dropout=dropout, path=path)
            return self.join(x, mixed, only)
        query, key, value = self.project(normed, turn)
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

    def project(self, x: Tensor, turn: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, (N, H, d) each, turned by their positions where those are rotary."""
        query, key, value = self.qkv(x).view(x.shape[0], 3, self.heads, self.size).unbind(1)
        if turn is not None:
            query, key = rotate(query, turn), rotate(key, turn)
        return query, key, value

    def join(self, x: Tensor, mixed: Tensor, only: Tensor | None = None) -> Tensor:
        """The output projection, and back onto the residual stream."""
        if only is not None:
            x, mixed = x.index_select(0, only), mixed.index_select(0, only)
        branch = drop(self.out(mixed.reshape(x.shape[0], self.heads * self.size)), self.dropout, self.training)
        return x + branch if self.placement == "pre" else self.norm(x + branch)


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

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x) if self.placement == "pre" else x
        branch = drop(self.feed(normed), self.dropout, self.training)
        return x + branch if self.placement == "pre" else self.norm(x + branch)

    def feed(self, x: Tensor) -> Tensor:
        """(N, D) -> (N, D), the branch itself."""
        if self.gate is None and (self.inner_dropout == 0 or not self.training):
            return fed_forward(x, self.up, self.down, self.activation)
        if self.gate is None:
            inner = activated(x, self.up, self.activation)
        else:
            inner = self.activation(self.gate(x)) * self.up(x)
        inner = drop(inner, self.inner_dropout, self.training)  # behind the activation: Baevski et al. 2019
        return self.down(inner)


def first_places(layout: Layout, tokens: int) -> Tensor:
    """(S,) where each sequence begins; a place that means nothing for an empty one."""
    return layout.bounds[:-1].long().clamp(max=max(0, tokens - 1))


def pool_first(x: Tensor, layout: Layout) -> Tensor:
    """The state of the first token of each sequence, (S, D); a row that means nothing for an empty one."""
    first = first_places(layout, x.shape[0])
    return x.index_select(0, first) if x.shape[0] else x.new_zeros(len(first), x.shape[1])
