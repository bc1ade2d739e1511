"""Sums and softmax over segments: rows of one tensor that belong to different owners, in any order.

An owner is a number from 0 to count - 1: the target of an edge, the pair of a path, the question of a pair. Rows of
padding belong to the owner `count`, which every function here drops. Sizes are known on the host, so that nothing waits
for the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from etude.nn.precision import upcast


def segment_sum(values: Tensor, owners: Tensor, count: int) -> Tensor:
    """(n, ...) values -> (count, ...) the sum of each owner's; 0 where it has none."""
    sums = values.new_zeros(count + 1, *values.shape[1:])
    return sums.index_add(0, owners, values)[:count]


def segment_softmax(scores: Tensor, owners: Tensor, count: int) -> Tensor:
    """(n,) float32: the softmax over the scores (n,) of each owner; those of padding mean nothing."""
    scores = upcast(scores)
    peaks = scores.detach().new_full((count + 1,), float("-inf"))
    peaks = peaks.scatter_reduce(0, owners, scores.detach(), "amax")
    powers = torch.exp(scores - peaks[owners])
    sums = powers.new_zeros(count + 1).index_add(0, owners, powers)
    return powers / sums[owners]
