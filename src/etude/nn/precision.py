"""Where mixed precision must not reach: sums over many numbers; and where it should: what is kept of every layer."""

from __future__ import annotations

import torch
from torch import Tensor


def upcast(x: Tensor) -> Tensor:
    """float32, or float64 where it is that already. Nothing is copied if there is nothing to widen."""
    return x if x.dtype == torch.float64 else x.float()


def to_autocast_dtype(x: Tensor) -> Tensor:
    """In the precision of autocast, where that is on.

    A residual stream in float32 doubles the memory traffic of all that is not a matrix product. Norms, and sums over
    it, work in float32 all the same.
    """
    return x.to(matmul_dtype(x))


def matmul_dtype(x: Tensor) -> torch.dtype:
    """What a matrix product of x comes out in: autocast's precision, where that is on."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
