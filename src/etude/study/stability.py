"""Pre-trainings that get worse while they train: their rate is too high for a run of that length.

A trial of a tenth of the budget may end before that happens. Of 193 pre-trainings of language models on Wikipedia (1e14
to 5e16 FLOPs) 190 ended within 0.04 % of their lowest held-out loss; the other three, two towers at the rate at which
their trials had learnt fastest, ended 1.4 to 11 % above it (docs/results/studies.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MOST = 0.01  # of the lowest loss


@dataclass(frozen=True)
class Rise:
    lowest: float  # held-out loss
    last: float


def find_rise(result: Mapping[str, Any]) -> Rise | None:
    """Return how far the held-out loss of a pre-training ends above its lowest point; None where it does not.

    The task of a discriminator grows harder as its generator learns, so its loss may rise by right.
    """
    curve = result.get("curve") or []
    losses = [point["loss"] for point in curve if "loss" in point and "discriminator" not in point]
    if not losses or losses[-1] <= min(losses) * (1 + MOST):
        return None
    return Rise(min(losses), losses[-1])
