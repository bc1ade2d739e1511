"""Where mixed precision must not reach: sums over many numbers."""

from __future__ import annotations

import torch
from torch import Tensor


def wide(x: Tensor) -> Tensor:
    """float32, or float64 where it is that already. Nothing is copied if there is nothing to widen."""
    return x if x.dtype == torch.float64 else x.float()
