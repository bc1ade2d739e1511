"""Attention of a recurrent decoder to its source: a score for each source token, a softmax over them.

    additive   v . tanh(W query + U key)       Bahdanau et al. 2015; Luong's "concat" is the same function
    dot        query . key                     Luong et al. 2015, section 3.1
    general    query . W key                   the same

Local attention (Luong, section 3.2, local-p) predicts a place p = S * sigmoid(v_p . tanh(W_p query)) in a source of S
tokens, looks at most `window` tokens away from it, and multiplies the weights by a Gaussian around it of deviation
window / 2. So its weights sum to less than 1.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from etude.nn.packed import Layout
from etude.nn.rectangle import Rectangle

Score = Literal["additive", "dot", "general"]


class SourceKeys:
    """The states of sources as a dense batch, projected once for all steps of a decoder."""

    def __init__(self, states: Tensor, projected: Tensor, visible: Tensor) -> None:
        self.states, self.projected, self.visible = states, projected, visible  # (S, L, K), (S, L, A), (S, L) bool

    def select(self, rows: Tensor | slice) -> SourceKeys:
        """Those of some sources, in this order."""
        return SourceKeys(self.states[rows], self.projected[rows], self.visible[rows])


def pad_sources(values: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """(M, ...) -> (S, longest, ...) with zeros at padding, and where tokens are, (S, longest) bool."""
    if layout.rectangular:
        rectangle = Rectangle.from_layout(layout, len(values))
        visible = rectangle.is_inside.T
        return rectangle.spread(values).transpose(0, 1) * visible[..., None], visible
    lengths = layout.lengths
    inside = np.arange(int(lengths.max(initial=0)))[None, :] < lengths[:, None]
    slots = torch.from_numpy(np.flatnonzero(inside)).to(values.device)
    flat = values.new_zeros(inside.size, *values.shape[1:]).index_copy(0, slots, values)
    return flat.view(*inside.shape, *values.shape[1:]), torch.from_numpy(inside).to(values.device)


class Alignment(nn.Module):
    """Weights over the tokens of a source, for one query each."""

    def __init__(self, query: int, key: int, score: Score, align: int, window: int | None = None) -> None:
        """Widths of queries and keys; `align` is the inner width of an additive score and of a predicted place."""
        super().__init__()
        self.score, self.window, self.align, self.key_width = score, window, align, key
        self.query = nn.Linear(query, align) if score == "additive" else None
        self.key = None if score == "dot" else nn.Linear(key, align if score == "additive" else query, bias=False)
        self.value = nn.Linear(align, 1, bias=False) if score == "additive" else None
        self.place = nn.Linear(query, align, bias=False) if window is not None else None
        self.place_value = nn.Linear(align, 1, bias=False) if window is not None else None
        for part in (self.query, self.key, self.value, self.place, self.place_value):
            if part is not None:
                nn.init.xavier_uniform_(part.weight)

    def project(self, states: Tensor, layout: Layout) -> SourceKeys:
        """Prepare packed states of sources, (M, K)."""
        dense, visible = pad_sources(states, layout)
        return SourceKeys(dense, dense if self.key is None else self.key(dense), visible)

    def forward(self, query: Tensor, keys: SourceKeys) -> tuple[Tensor, Tensor]:
        """(S, Q) -> the weighted sum of the states (S, K), and the weights (S, L)."""
        if self.query is not None and self.value is not None:
            scores = self.value(torch.tanh(self.query(query)[:, None] + keys.projected))[..., 0]
        else:
            scores = torch.einsum("sq,slq->sl", query, keys.projected)
        visible = keys.visible
        gaussian = None
        if self.window is not None and self.place is not None and self.place_value is not None:
            lengths = visible.sum(1, keepdim=True)
            place = lengths * torch.sigmoid(self.place_value(torch.tanh(self.place(query))))  # (S, 1)
            distance = torch.arange(visible.shape[1], device=query.device) - place  # (S, L)
            # the nearest token stays visible where a place lies behind the last one
            visible = visible & (distance.abs() <= max(1.0, self.window))
            gaussian = torch.exp(-distance.square() / (2 * (self.window / 2) ** 2))
        weights = scores.masked_fill(~visible, torch.finfo(scores.dtype).min).softmax(-1).masked_fill(~visible, 0.0)
        if gaussian is not None:
            weights = weights * gaussian
        return torch.einsum("sl,slk->sk", weights, keys.states), weights

    def flops(self, source: np.ndarray, target: np.ndarray) -> int:
        """Of one forward pass over pairs of these lengths."""
        sources, targets, products = int(source.sum()), int(target.sum()), int((source * target).sum())
        total = 2 * products * self.key_width  # the weighted sum
        if self.key is not None:
            total += 2 * sources * self.key.weight.numel()
        if self.query is not None:
            total += 2 * targets * self.query.weight.numel() + 2 * products * self.align
        else:
            width = self.key_width if self.key is None else self.key.weight.shape[0]
            total += 2 * products * width
        if self.place is not None:
            total += 2 * targets * (self.place.weight.numel() + self.align)
        return total
