"""Normalisation in float32, whatever the precision around it.

Layer norm: Ba et al. 2016. Root-mean-square norm: Zhang and Sennrich 2019 (no centring, no bias).
Under mixed precision the mean and the variance of a long vector lose too many bits in bfloat16.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etude.nn.precision import wide

Kind = Literal["layer", "rms"]


class Norm(nn.Module):
    def __init__(self, width: int, epsilon: float = 1e-5, bias: bool = True, kind: Kind = "layer") -> None:
        super().__init__()
        self.width, self.epsilon, self.kind = width, epsilon, kind
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias and kind == "layer" else None

    def forward(self, x: Tensor) -> Tensor:
        inner = wide(x)
        weight = self.weight.to(inner.dtype)
        if self.kind == "rms":
            return F.rms_norm(inner, (self.width,), weight, self.epsilon).to(x.dtype)
        bias = None if self.bias is None else self.bias.to(inner.dtype)
        return F.layer_norm(inner, (self.width,), weight, bias, self.epsilon).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.width}, epsilon={self.epsilon}, kind={self.kind}"
