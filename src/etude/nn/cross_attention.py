"""The cross-attention branch of a decoder layer, and its keys and values kept over the steps of a decoding.

Vaswani et al. 2017, section 3.2.3: queries come from the target, keys and values from the top of the encoder.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from etude.nn import norm as norms
from etude.nn import residual
from etude.nn.attention.cross import attend_cross, attend_cross_reference
from etude.nn.packed import Layout
from etude.nn.residual import Placement, Stream


class EncodedSource:
    """Sources that are being translated: their encoded states, and who attends to which.

    A decoding has hypotheses, several for each source; `owners` (S,) names the source of each. Keys and values of a
    layer are projected once, and kept as a dense batch of sources: a step has one query for each hypothesis.
    """

    def __init__(self, states: Tensor, layout: Layout) -> None:
        self.states, self.layout = states, layout
        self.owners = np.arange(len(layout.host) - 1)
        self._keys_values: dict[int, tuple[Tensor, Tensor]] = {}
        self._visible: Tensor | None = None

    def select(self, rows: np.ndarray) -> None:
        """Keep only these hypotheses, in this order; one may be named twice."""
        self.owners = self.owners[rows]

    def dense(self, values: Tensor) -> Tensor:
        """(M, ...) -> (sources, longest, ...), zeros at padding."""
        lengths = self.layout.lengths
        longest = int(lengths.max(initial=0))
        slots = torch.from_numpy(np.flatnonzero(np.arange(longest)[None, :] < lengths[:, None])).to(values.device)
        flat = values.new_zeros(len(lengths) * longest, *values.shape[1:]).index_copy(0, slots, values)
        return flat.view(len(lengths), longest, *values.shape[1:])

    @property
    def visible(self) -> Tensor:
        """(sources, longest) bool: is this place a token of the source?"""
        if self._visible is None:
            self._visible = self.dense(torch.ones(self.states.shape[0], dtype=torch.bool, device=self.states.device))
        return self._visible

    def attend(self, layer: int, query: Tensor, branch: CrossAttentionBranch) -> tuple[Tensor, Tensor]:
        """Attend with one query a hypothesis, (S, H, d) -> (S, H, d), and the weights (S, H, longest)."""
        if layer not in self._keys_values:
            key, value = branch.project_source(self.states)
            self._keys_values[layer] = self.dense(key), self.dense(value)
        key, value = self._keys_values[layer]  # (sources, longest, H, d)
        owners = torch.from_numpy(self.owners).to(query.device)
        key, value, visible = key[owners], value[owners], self.visible[owners]
        scores = torch.einsum("shd,slhd->shl", query, key) * query.shape[-1] ** -0.5
        weights = scores.masked_fill(~visible[:, None], torch.finfo(scores.dtype).min).softmax(-1)
        return torch.einsum("shl,slhd->shd", weights, value), weights


class CrossAttentionBranch(nn.Module):
    """Multi-head attention from target to source, with its norm and residual connection."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        placement: Placement,
        norm: norms.Norm,
        bias: bool = True,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.heads, self.size, self.placement = heads, width // heads, placement
        self.dropout, self.attention_dropout = dropout, attention_dropout
        self.norm = norm
        self.query = nn.Linear(width, width, bias=bias)
        self.key_value = nn.Linear(width, 2 * width, bias=bias)  # rows in the order key, value
        self.out = nn.Linear(width, width, bias=bias)

    def project_source(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the source, (M, D) -> (M, H, d) each."""
        key, value = self.key_value(states).view(-1, 2, self.heads, self.size).unbind(1)
        return key, value

    def forward(
        self,
        x: Stream,
        layout: Layout,
        states: Tensor,
        source: Layout,
        *,
        path: str | None = None,
        record_weights: list[list[Tensor]] | None = None,
        decoding: EncodedSource | None = None,
        layer: int = 0,
    ) -> Stream:
        """(N, D), (M, D) -> (N, D).

        `record_weights`: a list to which this layer's weights are appended, for each pair (H, T, S).
        `decoding`: the step of a decoding, with one token for each of its hypotheses.
        """
        x, normed = residual.branch_input(x, self.norm, self.placement)
        query = self.query(normed).view(-1, self.heads, self.size)
        dropout = self.attention_dropout if self.training else 0.0
        if decoding is not None:
            mixed, weights = decoding.attend(layer, query, self)
            if record_weights is not None:
                record_weights.append(list(weights))
        elif record_weights is not None:
            key, value = self.project_source(states)
            mixed, maps = attend_cross_reference(query, key, value, layout, source, dropout=dropout)
            record_weights.append(maps)
        else:
            key, value = self.project_source(states)
            mixed = attend_cross(query, key, value, layout, source, dropout=dropout, path=path)
        branch = residual.project_branch(x, self.out, mixed.reshape(-1, self.heads * self.size))
        return residual.add(x, branch, self.out.bias, self.dropout if self.training else 0.0, self.norm, self.placement)
