"""A kernel that writes down which weights stay, for the tests of nn/triton/dropout.py. Needs Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from etude.nn.triton.dropout import STEPS, dropout_factor, head_key


@triton.jit
def _write(seed, out, drops: tl.constexpr, size: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.arange(0, size)
    factor = dropout_factor(head_key(tl.load(seed), tl.program_id(0)), place[:, None], place[None, :], drops)
    tl.store(out + tl.program_id(0) * size * size + place[:, None] * size + place[None, :], factor)


def dropout_masks(programs: int, size: int, rate: float, seed: int) -> Tensor:
    """(P, L, L)"""
    out = torch.zeros(programs, size, size)
    _write[(programs,)](torch.tensor([seed]), out, round(rate * STEPS), size)
    return out
