"""The output of every model."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass
class States:
    """Hidden states of a packed batch, and whatever else was requested."""

    last: Tensor  # (N, D)
    layers: list[Tensor] | None = None  # (N, D) each, on request: the embedding's output first, `last` last
    table: Tensor | None = None  # (V, E) the token table as this forward pass used it, for a tied output layer
    weights: list[list[Tensor]] | None = None  # on request: for each layer, for each sequence, attention (H, L, L)
    queries: list[Tensor] | None = None  # on request: queries and keys of each layer, (N, 2, H, d)
