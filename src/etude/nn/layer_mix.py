"""A learned weighted sum of layers: gamma * sum_j s_j h_j with s = softmax(w).

ELMo (Peters et al. 2018, section 3.2, equation 1). All layers start with the same weight and gamma at 1. Where the
scales of layers differ, normalising each to mean 0 and deviation 1 first may help, without parameters of its own:

    token   each token's state by itself, so that the other tokens change nothing
    batch   one mean and one deviation for all tokens of a batch [code]: the result depends on the other tokens

`penalty` is the squared norm of w, which the paper adds to the loss: with a large weight the mix stays an average.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etude.nn.precision import upcast

MixNorm = Literal["none", "token", "batch"]
EPSILON = 1e-12  # added to a variance [code]


class LayerMix(nn.Module):
    """The scalar mix of ELMo."""

    def __init__(self, layers: int, norm: bool | MixNorm = False) -> None:
        """`norm=True` means "token"."""
        super().__init__()
        if layers < 1:
            raise ValueError(f"a mix needs at least one layer, not {layers}")
        self.norm: MixNorm = norm if isinstance(norm, str) else "token" if norm else "none"
        self.weights = nn.Parameter(torch.zeros(layers))
        self.gamma = nn.Parameter(torch.ones(()))

    @property
    def mixing_weights(self) -> Tensor:
        """The softmax of `weights`, (layers,)."""
        return upcast(self.weights).softmax(0)

    @property
    def penalty(self) -> Tensor:
        """The squared norm of `weights`, for the loss."""
        return upcast(self.weights).square().sum()

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        """(N, D) each -> (N, D)."""
        if len(layers) != len(self.weights):
            raise ValueError(f"got {len(layers)} layers for a mix of {len(self.weights)}")
        mixed = torch.zeros_like(layers[0], dtype=upcast(layers[0][:0]).dtype)
        for weight, layer in zip(self.mixing_weights, layers, strict=True):
            mixed = mixed + weight * self._normed(upcast(layer))
        return (self.gamma * mixed).to(layers[0].dtype)

    def _normed(self, layer: Tensor) -> Tensor:
        if self.norm == "token":
            return F.layer_norm(layer, layer.shape[-1:])
        if self.norm == "batch" and layer.numel():
            mean = layer.mean()
            return (layer - mean) * (layer.var(correction=0) + EPSILON).rsqrt()
        return layer
