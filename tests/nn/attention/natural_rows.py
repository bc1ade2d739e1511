"""Layouts of several lengths, and what attention works on, for the tests of rows that sequences share."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from etude.nn.packed import Layout

NATURAL = [33, 16, 5, 16, 1, 0, 30, 64, 64, 0]
MASKS = [(False, None), (True, None), (False, 3), (True, 3), (False, 0)]


def make_layout(lengths: list[int]) -> Layout:
    return Layout.from_bounds(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32), max(lengths, default=0))


def random_qkv(layout: Layout, dtype: torch.dtype = torch.float64, heads: int = 2, size: int = 8) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(layout.total, 3, heads, size, generator=generator, dtype=dtype).requires_grad_()
