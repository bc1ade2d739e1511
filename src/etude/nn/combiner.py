"""The combiner of two towers, forward and backward (Baevski et al. 2019, section 3).

    F' = norm(F), B' = norm(B)                        two norms, of the top states of the forward and backward tower
    query i     F'[i-1] + B'[i+1], or both concatenated; zeros where there is no neighbour
    keys        F' and B', one projection for both
    mask        full      F'[j] for j < i and B'[j] for j > i: token i itself is in none of them
                current   F'[j] for j <= i and B'[j] for j >= i
                none      all of both, for fine-tuning
    y = a + feedforward(norm(a)), a = the attention output: no residual around the attention, no final norm [code]

Keys of the full mask come from states shifted by one position, which the query needs anyway. So "before i" becomes "up
to i", and each set is a plain causal attention (nn/attention/multi_set.py). The released code defines 1/sqrt(head
size) and never applies it here: `scaled=False` does the same.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from etude.nn.activations import Activation, apply_dropout
from etude.nn.attention.multi_set import KeySet, NullSlot, SlotKind, attend_multi_set, shift
from etude.nn.block import FeedForwardBranch
from etude.nn.norm import Norm
from etude.nn.packed import Layout

QueryKind = Literal["sum", "concat"]
MaskKind = Literal["full", "current", "none"]


class Combiner(nn.Module):
    """Attention over the states of both towers, and a feed-forward branch."""

    def __init__(
        self,
        width: int,
        heads: int,
        inner: int,
        *,
        query: QueryKind = "sum",
        scaled: bool = True,
        slot: SlotKind = "none",
        activation: Activation = "relu",
        epsilon: float = 1e-5,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        inner_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.heads, self.size, self.joined, self.scaled = heads, width // heads, query == "concat", scaled
        self.dropout, self.attention_dropout = dropout, attention_dropout
        self.norm_forward, self.norm_backward = Norm(width, epsilon), Norm(width, epsilon)
        self.query = nn.Linear(2 * width if self.joined else width, width)
        self.keys = nn.Linear(width, 2 * width)  # rows in the order key, value
        self.slot = None if slot == "none" else NullSlot(heads, width // heads, slot)
        self.out = nn.Linear(width, width)
        self.feedforward = FeedForwardBranch(
            width,
            inner,
            placement="pre",
            norm=Norm(width, epsilon),
            activation=activation,
            dropout=dropout,
            inner_dropout=inner_dropout,
        )

    def forward(
        self, forward_states: Tensor, backward_states: Tensor, layout: Layout, mask: MaskKind, path: str | None = None
    ) -> Tensor:
        """(N, D) the top states of both towers -> (N, D)."""
        forward_states, backward_states = self.norm_forward(forward_states), self.norm_backward(backward_states)
        left, right = shift(forward_states, layout, 1), shift(backward_states, layout, -1)
        query = self.query(torch.cat([left, right], dim=-1) if self.joined else left + right)
        query = query.view(-1, self.heads, self.size)
        if not self.scaled:
            query = query * self.size**0.5
        if mask == "full":
            key_sets = [self._keys(left, "past", edge=False), self._keys(right, "future", edge=False)]
        elif mask == "current":
            key_sets = [self._keys(forward_states, "past"), self._keys(backward_states, "future")]
        else:
            key_sets = [self._keys(forward_states, "all"), self._keys(backward_states, "all")]
        mixed = attend_multi_set(
            query,
            key_sets,
            layout,
            slot=None if self.slot is None else self.slot(),
            dropout=self.attention_dropout if self.training else 0.0,
            path=path,
        )
        mixed = self.out(mixed.reshape(-1, self.heads * self.size))
        result: Tensor = self.feedforward(apply_dropout(mixed, self.dropout, self.training))
        return result

    def _keys(self, x: Tensor, reach: Literal["past", "future", "all"], edge: bool = True) -> KeySet:
        key, value = self.keys(x).view(-1, 2, self.heads, self.size).unbind(1)
        return KeySet(key, value, reach, edge)

    def flops(self, tokens: int, pairs: int) -> int:
        """Count the forward pass: matrix products, two operations each.

        There are 2 keys for each pair of positions, whatever the mask.
        """
        width, inner = self.out.in_features, self.feedforward.up.out_features
        slot = 0 if self.slot is None else 4 * tokens * width
        weights = (self.query.in_features + 5 * width) * width + 2 * width * inner  # keys and values of both towers
        return 2 * tokens * weights + 2 * 4 * pairs * width + slot


class LinearCombiner(nn.Module):
    """The alternative of the released code: W [F[i-1]; B[i+1]], without attention or norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(2 * width, width)

    def forward(
        self, forward_states: Tensor, backward_states: Tensor, layout: Layout, mask: MaskKind, path: str | None = None
    ) -> Tensor:
        """(N, D) each -> (N, D). Only neighbours are read, so no mask changes the result."""
        result: Tensor = self.project(
            torch.cat([shift(forward_states, layout, 1), shift(backward_states, layout, -1)], dim=-1)
        )
        return result

    def flops(self, tokens: int, pairs: int) -> int:
        return 2 * tokens * self.project.in_features * self.project.out_features
