"""The two residual branches of a Transformer layer, each a module with its own norm.

How a branch reads the residual stream and is added to it, before or after a norm, is in nn/residual.py. A branch with
its norm is the unit of parameter sharing (ALBERT, section 3.1): a layer is "attention i, feed-forward j".
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etude.nn import few_rows_linear, residual
from etude.nn import norm as norms
from etude.nn.activations import ACTIVATIONS, Activation, apply_dropout
from etude.nn.attention import query_subset
from etude.nn.attention.dispatch import attend, attend_packed, attend_reference
from etude.nn.attention.kv_cache import KVCache
from etude.nn.feedforward import feedforward, gated_activation, linear_activation
from etude.nn.few_rows_linear import StepStream
from etude.nn.packed import Layout
from etude.nn.recompute import Recomputable, recomputable
from etude.nn.residual import BranchStream, Placement, Stream
from etude.nn.rotary import Rotation, rotate_packed, rotate_query_key, supports_packed


class AttentionBranch(Recomputable):
    """Multi-head self-attention (Vaswani et al. 2017, section 3.2) with its norm and residual connection."""

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

    @recomputable
    def forward(
        self,
        x: Stream,
        layout: Layout,
        *,
        causal: bool,
        window: int | None = None,
        rotation: Rotation | None = None,
        path: str | None = None,
        record_weights: list[list[Tensor]] | None = None,
        cache: KVCache | None = None,
        layer: int = 0,
        only: Tensor | None = None,
        record_query_key: list[Tensor] | None = None,
    ) -> Stream:
        """(N, D) -> (N, D).

        `record_weights`: a list to which this layer's attention weights are appended (reference path, slow).
        `record_query_key`: a list to which its queries and keys are appended, (N, 2, H, d).
        `cache`: the tokens follow those cached for `layer` and attend to them too. `only` (M,): indices of the tokens
        whose states are needed, (M, D). All tokens are attended to, but nothing else is computed for the others.
        """
        is_step = cache is not None and not self.training and only is None and record_query_key is None
        if is_step and few_rows_linear.fits(x, self.norm, self.qkv, self.out):
            assert cache is not None
            return self._take_step(x, cache, layer, window, rotation)
        x, normed = residual.branch_input(x, self.norm, self.placement)
        dropout = self.attention_dropout if self.training else 0.0
        is_packed = cache is None and record_weights is None
        is_plain = is_packed and rotation is None
        if is_plain and only is not None and query_subset.supports_query_subset(normed, path):
            mixed = self.attend_query_subset(normed, layout, only, causal=causal, window=window, dropout=dropout)
            return self.project_output(residual.select_tokens(x, only), mixed)
        qkv = self.qkv(normed).view(-1, 3, self.heads, self.size)
        if is_packed and (rotation is None or supports_packed(qkv)):
            if record_query_key is not None:
                if rotation is not None:  # rotated ones are asked for
                    qkv, rotation = rotate_packed(qkv, rotation), None
                record_query_key.append(qkv[:, :2])
            mixed = self.mix(qkv, layout, causal=causal, window=window, dropout=dropout, path=path, rotation=rotation)
            return self.project_output(x, mixed, only)
        query, key, value = rotate_query_key(qkv, rotation)
        if record_query_key is not None:
            record_query_key.append(torch.stack([query, key], 1))
        if cache is not None:
            mixed = cache.attend(layer, query, key, value, window)
        elif record_weights is None:
            mixed = attend(query, key, value, layout, causal=causal, window=window, dropout=dropout, path=path)
        else:
            mixed, maps = attend_reference(
                query, key, value, layout, causal=causal, window=window, dropout=dropout, weights=True
            )
            record_weights.append(maps or [])
        return self.project_output(x, mixed, only)

    def _take_step(
        self, x: Tensor | StepStream, cache: KVCache, layer: int, window: int | None, rotation: Rotation | None
    ) -> Stream:
        """The same for few tokens on a GPU: norm and projection are one kernel, output and sum another."""
        is_pre = self.placement == "pre"
        qkv = few_rows_linear.linear(x, self.qkv, norm=self.norm if is_pre else None)
        query, key, value = rotate_query_key(qkv.view(-1, 3, self.heads, self.size), rotation)
        mixed = cache.attend(layer, query, key, value, window).reshape(len(qkv), -1)
        total = few_rows_linear.add_linear(x, mixed, self.out)
        result: Stream = total if is_pre else self.norm(total)
        return result

    def mix(
        self,
        qkv: Tensor,
        layout: Layout,
        *,
        causal: bool,
        window: int | None,
        dropout: float,
        path: str | None,
        rotation: Rotation | None,
    ) -> Tensor:
        """Attend with queries, keys and values of all tokens: (N, 3, H, d) -> (N, H, d)."""
        return attend_packed(qkv, layout, causal=causal, window=window, dropout=dropout, path=path, rotation=rotation)

    def attend_query_subset(
        self, x: Tensor, layout: Layout, only: Tensor, *, causal: bool, window: int | None, dropout: float
    ) -> Tensor:
        """Attend with the queries of some tokens and the keys and values of all: (N, D), (M,) -> (M, H, d)."""
        width = self.heads * self.size
        query_projection, key_value_projection = (
            (self.qkv.weight[rows], None if self.qkv.bias is None else self.qkv.bias[rows])
            for rows in (slice(0, width), slice(width, None))
        )
        query = F.linear(x.index_select(0, only), *query_projection).view(-1, self.heads, self.size)
        key_value = F.linear(x, *key_value_projection).view(-1, 2, self.heads, self.size)
        return query_subset.attend_query_subset(
            query, key_value, layout, only, causal=causal, window=window, dropout=dropout
        )

    def project_output(self, x: BranchStream, mixed: Tensor, only: Tensor | None = None) -> Stream:
        """Apply the output projection and add the result to the residual stream."""
        if only is not None:
            x, mixed = residual.select_tokens(x, only), mixed.index_select(0, only)
        branch = residual.project_branch(x, self.out, mixed.reshape(-1, self.heads * self.size))
        dropout = self.dropout if self.training else 0.0
        return residual.add(x, branch, self.out.bias, dropout, self.norm, self.placement)


class FeedForwardBranch(Recomputable):
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
        self.activation, self.activation_name = ACTIVATIONS[activation], activation
        self.norm = norm
        self.up = nn.Linear(width, inner, bias=bias)
        self.gate = nn.Linear(width, inner, bias=bias) if gated else None
        self.down = nn.Linear(inner, width, bias=bias)

    @recomputable
    def forward(self, x: Stream) -> Stream:
        """(N, D) -> (N, D)."""
        if not self.training and few_rows_linear.fits(x, self):
            return self._compute_few(x)
        x, normed = residual.branch_input(x, self.norm, self.placement)
        dropout = self.dropout if self.training else 0.0
        return residual.add(x, self.compute_branch(x, normed), self.down.bias, dropout, self.norm, self.placement)

    def _compute_few(self, x: Tensor | StepStream) -> Stream:
        """The same for few tokens on a GPU, in a kernel for each product."""
        is_pre = self.placement == "pre"
        norm = self.norm if is_pre else None
        if self.gate is None:
            inner = few_rows_linear.linear(x, self.up, norm=norm, activation=self.activation_name)
        else:
            gate = few_rows_linear.linear(x, self.gate, norm=norm, activation=self.activation_name)
            inner = few_rows_linear.linear(x, self.up, norm=norm, times=gate)
        total = few_rows_linear.add_linear(x, inner, self.down)
        result: Stream = total if is_pre else self.norm(total)
        return result

    def compute_branch(self, x: BranchStream, normed: Tensor) -> Tensor:
        """Compute the branch itself, (N, D) -> (N, D), before dropout and the residual connection."""
        if self.gate is None and (self.inner_dropout == 0 or not self.training):
            return feedforward(normed, self.up, self.down, self.activation, residual.branch_bias(x, self.down.bias))
        if self.gate is None:
            inner = linear_activation(normed, self.up, self.activation)
        else:
            inner = gated_activation(normed, self.gate, self.up, self.activation)
        inner = apply_dropout(inner, self.inner_dropout, self.training)  # after the activation: Baevski et al. 2019
        return residual.project_branch(x, self.down, inner)


def first_token_indices(layout: Layout, tokens: int) -> Tensor:
    """Return the index of each sequence's first token, (S,); any valid index for an empty sequence."""
    return layout.bounds[:-1].long().clamp(max=max(0, tokens - 1))


def pool_first(x: Tensor, layout: Layout) -> Tensor:
    """Return the state of each sequence's first token, (S, D); an arbitrary row for an empty sequence."""
    first = first_token_indices(layout, x.shape[0])
    return x.index_select(0, first) if x.shape[0] else x.new_zeros(len(first), x.shape[1])
