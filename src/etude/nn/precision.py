"""Helpers for mixed precision: float32 for long sums, the autocast dtype for stored states."""

from __future__ import annotations

import torch
from torch import Tensor


def upcast(x: Tensor) -> Tensor:
    """Convert to float32, or leave float64 as it is. Nothing is copied if nothing changes."""
    return x if x.dtype == torch.float64 else x.float()


def to_autocast_dtype(x: Tensor) -> Tensor:
    """Convert to the dtype of autocast, where that is enabled.

    A residual stream in float32 doubles the memory traffic of everything that is not a matrix product. Norms, and sums
    over it, work in float32 anyway.
    """
    return x.to(matmul_dtype(x))


def matmul_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of a matrix product of x: that of autocast, where it is enabled."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
