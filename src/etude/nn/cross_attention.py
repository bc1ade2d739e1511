"""The cross-attention branch of a decoder layer, and its keys and values kept over the steps of a decoding.

Vaswani et al. 2017, section 3.2.3: queries come from the target, keys and values from the top of the encoder.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from etude.nn import few_rows_linear, residual
from etude.nn import norm as norms
from etude.nn.alignment import pad_sources
from etude.nn.attention.beams import attend_beams
from etude.nn.attention.cross import attend_cross, attend_cross_reference
from etude.nn.few_rows_linear import StepStream
from etude.nn.packed import Layout
from etude.nn.recompute import Recomputable, recomputable
from etude.nn.residual import Placement, Stream


class EncodedSource:
    """Sources that are being translated: their encoded states, and keys and values of each layer, projected once.

    A decoding has `beams` hypotheses of each source, side by side.
    """

    def __init__(self, states: Tensor, layout: Layout, beams: int = 1) -> None:
        self.states, self.layout, self.beams = states, layout, beams
        self._keys_values: dict[int, tuple[Tensor, Tensor]] = {}  # (G, H, longest, d) each
        self._mask: Tensor | None = None  # (G, 1, 1, longest), added to scores
        self._numbers: Tensor | None = None  # (G,) of the sources that are left, among all

    def select(self, sources: Tensor) -> None:
        """Keep only these sources, (G,), in this order."""
        self._keys_values = {
            layer: (key.index_select(0, sources), value.index_select(0, sources))
            for layer, (key, value) in self._keys_values.items()
        }
        self._mask = None if self._mask is None else self._mask.index_select(0, sources)
        self._numbers = sources if self._numbers is None else self._numbers.index_select(0, sources)

    def new_static(self, sources: int, length: int) -> EncodedSource:
        """Room for the keys and values of so many sources of up to `length` tokens, of the shape of these otherwise."""
        static = EncodedSource(self.states.new_empty(0, self.states.shape[1]), self.layout, self.beams)
        static._keys_values = {
            layer: (
                key.new_zeros(sources, key.shape[1], length, key.shape[3]),
                value.new_zeros(sources, value.shape[1], length, value.shape[3]),
            )
            for layer, (key, value) in self._keys_values.items()
        }
        assert self._mask is not None  # every step makes it
        static._mask = self._mask.new_zeros(sources, 1, 1, length)
        return static

    def load(self, encoded: EncodedSource, sources: Tensor) -> None:
        """Take these sources, (G,), of others, in place; nothing behind their tokens is seen."""
        assert self._mask is not None and encoded._mask is not None
        length = encoded._mask.shape[-1]
        for layer, (key, value) in self._keys_values.items():
            for mine, theirs in zip((key, value), encoded._keys_values[layer], strict=True):
                mine[: len(sources), :, :length] = theirs.index_select(0, sources)
        self._mask.fill_(torch.finfo(self._mask.dtype).min)
        self._mask[: len(sources), ..., :length] = encoded._mask.index_select(0, sources)

    def _pad(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """(M, ...) -> (G, longest, ...) of the sources that are left, and where tokens are, (G, longest)."""
        dense, visible = pad_sources(values, self.layout)
        return (dense, visible) if self._numbers is None else (dense[self._numbers], visible[self._numbers])

    def _project(self, branch: CrossAttentionBranch) -> tuple[Tensor, Tensor]:
        key, value = (self._pad(part)[0].transpose(1, 2).contiguous() for part in branch.project_source(self.states))
        return key, value

    def _get_mask(self, like: Tensor) -> Tensor:
        if self._mask is None:
            _, visible = self._pad(self.states[:, 0])
            mask = torch.zeros(visible.shape, dtype=like.dtype, device=like.device)
            self._mask = mask.masked_fill(~visible, torch.finfo(like.dtype).min)[:, None, None]
        return self._mask

    def attend(
        self, layer: int, query: Tensor, branch: CrossAttentionBranch, weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Attend with one query a hypothesis, (S, H, d) -> (S, H, d); on request the weights, (S, H, longest)."""
        if layer not in self._keys_values:
            self._keys_values[layer] = self._project(branch)
        key, value = self._keys_values[layer]
        mask = self._get_mask(query)
        if not weights:
            return attend_beams(query, key, value, mask, self.beams), None
        queries = query.unflatten(0, (-1, self.beams)).transpose(1, 2)  # (G, H, beams, d)
        scores = (queries @ key.transpose(2, 3)) * query.shape[-1] ** -0.5 + mask
        shares = scores.softmax(-1)  # (G, H, beams, longest)
        return (shares @ value).transpose(1, 2).flatten(0, 1), shares.transpose(1, 2).flatten(0, 1)


class CrossAttentionBranch(Recomputable):
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

    @recomputable
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
        is_step = decoding is not None and not self.training and record_weights is None
        if is_step and few_rows_linear.fits(x, self.norm, self.query, self.out):
            assert decoding is not None
            return self._take_step(x, decoding, layer)
        x, normed = residual.branch_input(x, self.norm, self.placement)
        query = self.query(normed).view(-1, self.heads, self.size)
        dropout = self.attention_dropout if self.training else 0.0
        if decoding is not None:
            mixed, weights = decoding.attend(layer, query, self, record_weights is not None)
            if record_weights is not None and weights is not None:
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

    def _take_step(self, x: Tensor | StepStream, decoding: EncodedSource, layer: int) -> Stream:
        """The same for few hypotheses on a GPU: norm and projection are one kernel, output and sum another."""
        is_pre = self.placement == "pre"
        query = few_rows_linear.linear(x, self.query, norm=self.norm if is_pre else None)
        mixed, _ = decoding.attend(layer, query.view(-1, self.heads, self.size), self, weights=False)
        total = few_rows_linear.add_linear(x, mixed.reshape(len(query), -1), self.out)
        result: Stream = total if is_pre else self.norm(total)
        return result
