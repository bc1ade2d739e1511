"""The closure that torch's optimisers may be given: a function that computes the loss again."""

from __future__ import annotations

from collections.abc import Callable

import torch

Closure = Callable[[], float]


def evaluate_closure(closure: Closure | None) -> float | None:
    """Return the loss of a closure, as torch's optimisers do at the start of a step."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()
