"""Checkpoint averaging: the mean of the weights of the last checkpoints (Vaswani et al. 2017, section 6.1).

The last steps of a run wander around a minimum; their mean lies nearer to it. It costs nothing in training, and is
worth a few tenths of a BLEU point.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from etude.train import checkpoint


def average_checkpoints(folder: Path, count: int) -> tuple[dict[str, Tensor], list[int]]:
    """Return the mean of the weights in the last `count` checkpoints, or as many as there are, and their steps.

    Sums are in float64, so that the mean does not depend on the order. What is no real number (a count, an index) is
    taken from the last one.
    """
    steps = checkpoint.list_steps(folder)[-count:]
    if not steps:
        raise ValueError(f"{folder} holds no checkpoint to average")
    totals: dict[str, Tensor] = {}
    for step in steps:
        weights = checkpoint.load(folder, step, ("weights",))[0]["weights"]
        if totals and weights.keys() != totals.keys():
            raise ValueError(f"checkpoint {step} in {folder} has other weights than those before it")
        for name, tensor in weights.items():
            is_real = tensor.is_floating_point()
            totals[name] = (
                totals[name] + tensor.double()
                if is_real and name in totals
                else (tensor.double() if is_real else tensor)
            )
    last = checkpoint.load(folder, steps[-1], ("weights",))[0]["weights"]
    means = {
        name: (total / len(steps)).to(last[name].dtype) if last[name].is_floating_point() else total
        for name, total in totals.items()
    }
    return means, steps


def load_average(learner: torch.nn.Module, folder: Path, count: int) -> list[int]:
    """Put the mean of the last checkpoints in the place of a learner's weights; return their steps."""
    weights, steps = average_checkpoints(folder, count)
    checkpoint.load_strictly(learner, weights, f"the mean of {len(steps)} checkpoints in {folder}")
    return steps
