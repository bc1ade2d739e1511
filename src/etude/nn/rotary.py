"""Rotary positions (Su et al. 2021, RoFormer, section 3.4): queries and keys are turned by their place.

Pairs are (i, i + d/2), as the published Llama and ModernBERT weights have them; the paper pairs neighbours,
which is the same up to a fixed order of the columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

Rotation = tuple[Tensor, Tensor]  # cosines and sines, (N, 1, d/2) each, float32


def compute_rotation(positions: Tensor, head_size: int, base: float = 10_000.0) -> Rotation:
    """The turn of each token: angle = position / base^(2i/d). Made once a batch, used by every layer."""
    # float64 on the host side of the power, then float32: far positions keep their phase
    exponent = torch.arange(0, head_size, 2, dtype=torch.float64) / head_size
    frequency = (base**-exponent).to(positions.device, torch.float32)  # (d/2,)
    angle = positions.to(torch.float32)[:, None] * frequency  # (N, d/2)
    return angle.cos()[:, None, :], angle.sin()[:, None, :]


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """(N, H, d) turned, in float32 inside."""
    cosine, sine = rotation
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1).to(x.dtype)
