"""A learned mix of layers: gamma * sum_j s_j h_j with s = softmax(w).

ELMo (Peters et al. 2018, section 3.2, equation 1). All layers start with the same share and gamma at 1. `norm` brings
each layer to mean 0 and deviation 1 first, token by token and without weights of its own, which the paper says helps
where the scales of layers differ.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etude.nn.precision import wide


class Mix(nn.Module):
    def __init__(self, layers: int, norm: bool = False) -> None:
        super().__init__()
        if layers < 1:
            raise ValueError(f"a mix of {layers} layers is nothing")
        self.norm = norm
        self.weights = nn.Parameter(torch.zeros(layers))
        self.gamma = nn.Parameter(torch.ones(()))

    @property
    def shares(self) -> Tensor:
        """(layers,) which sum to 1."""
        return wide(self.weights).softmax(0)

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        """(N, D) each -> (N, D)."""
        if len(layers) != len(self.weights):
            raise ValueError(f"{len(layers)} layers for a mix of {len(self.weights)}")
        mixed = torch.zeros_like(layers[0], dtype=wide(layers[0][:0]).dtype)
        for share, layer in zip(self.shares, layers, strict=True):
            layer = wide(layer)
            mixed = mixed + share * (F.layer_norm(layer, layer.shape[-1:]) if self.norm else layer)
        return (self.gamma * mixed).to(layers[0].dtype)
