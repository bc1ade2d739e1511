"""What a run has done so far, what it is judged by, and how it ended."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class TrainState:
    """What has happened so far; saved with every checkpoint."""

    step: int = 0
    tokens: int = 0
    flops: int = 0
    seconds: float = 0.0
    evaluated: int = 0  # the last step that was evaluated
    best_step: int | None = None
    best: float = math.inf  # the lowest so far of the held-out loss; a score counts negative
    stale: int = 0  # evaluations since the best
    window: int = 0  # steps since the last line of the log
    sums: dict[str, float] = field(default_factory=dict)  # of the loss terms over that window
    counts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class SelectionMetric:
    """What the best weights are chosen by, where that is not the held-out loss: a score, higher is better."""

    name: str
    scores: Callable[[], dict[str, float]]  # all scores, by name; asked only where the metrics do not hold it


@dataclass
class TrainResult:
    state: TrainState
    finished: bool
    valid: dict[str, float]
