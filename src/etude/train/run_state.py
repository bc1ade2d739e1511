"""State of a training run: its progress, the metric that selects the best weights, and its result."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class TrainState:
    """Progress of a run; saved with every checkpoint under these names."""

    step: int = 0
    tokens: int = 0
    flops: int = 0
    seconds: float = 0.0
    evaluated: int = 0  # the last step that was evaluated
    best_step: int | None = None
    best: float = math.inf  # the lowest held-out loss so far, or the negated best value of the selection metric
    stale: int = 0  # evaluations since the best
    window: int = 0  # steps since the last line of the log
    sums: dict[str, float] = field(default_factory=dict)  # of the loss terms over that window
    counts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class SelectionMetric:
    """The metric that selects the best weights, where it is not the held-out loss; higher is better."""

    name: str
    scores: Callable[[], dict[str, float]]  # computes all metrics by name; called only where evaluation lacks this one


@dataclass
class TrainResult:
    """How a run ended."""

    state: TrainState
    finished: bool  # False after a signal or a deadline: resume it
    valid: dict[str, float]  # the last evaluation
