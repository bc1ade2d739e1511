"""Rotary position embeddings of queries and keys (Su et al. 2021, RoFormer, section 3.4).

Pairs are (i, i + d/2), as in the published Llama and ModernBERT weights; the paper pairs neighbours, which is the same
up to a fixed order of the columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

Rotation = tuple[Tensor, Tensor]  # cosines and sines, (N, 1, d/2) each, float32


def compute_frequencies(head_size: int, base: float, device: torch.device | None = None) -> Tensor:
    """Compute base^(-2i/d), (d/2,) float32."""
    # float64 for the power, then float32: far positions keep their phase
    exponent = torch.arange(0, head_size, 2, dtype=torch.float64, device=device) / head_size
    return (base**-exponent).to(torch.float32)


def compute_rotation(positions: Tensor, head_size: int, base: float = 10_000.0) -> Rotation:
    """Compute cosines and sines of position / base^(2i/d).

    Done once for each batch and used by every layer.
    """
    angle = positions.to(torch.float32)[:, None] * compute_frequencies(head_size, base, positions.device)  # (N, d/2)
    return angle.cos()[:, None, :], angle.sin()[:, None, :]


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotate (N, H, d), in float32 inside."""
    cosine, sine = rotation
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1).to(x.dtype)
