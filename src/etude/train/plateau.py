"""A warning where a language model stays at the frequencies of tokens.

The best model without context has the entropy of the unigram distribution as its loss. Every language model comes to
that level within some hundred steps. One that is still there later has a bad rate, no warm-up, or too few steps, and
may stay there for ever: its loss looks like a loss, and nothing else tells.
"""

from __future__ import annotations

import statistics
from collections import deque

from etude.train import schedule
from etude.train.settings import Settings

LEFT = 0.98  # share of the entropy below which a loss has left its level; context soon takes off several times as much
PATIENCE = 5_000  # steps after the warm-up; half of a shorter run
RECENT, LINES = 10, 5  # lines of the log whose median is judged, and the least number of them


class Plateau:
    """Sees the loss of each line of the log, and says once that it has not left the entropy of tokens."""

    def __init__(self, entropy: float) -> None:
        """`entropy` of the training text, in nats a token."""
        self.entropy = entropy
        self.recent: deque[float] = deque(maxlen=RECENT)
        self.is_told = False

    def find_problem(self, loss: float, step: int, total: int, settings: Settings) -> str | None:
        """Return a warning, or None; `loss` is the mean nats a token since the last line."""
        self.recent.append(loss)
        level = statistics.median(self.recent)  # unlike a mean, it forgets the high losses of the first steps
        due = schedule.warmup_steps(settings, total) + min(PATIENCE, total / 2)
        if self.is_told or len(self.recent) < LINES or step < min(due, total):
            return None
        if level < LEFT * self.entropy or loss < LEFT * max(level, self.entropy):  # has left, or falls
            return None
        self.is_told = True
        return (
            f"After {step:,} of {total:,} steps the loss is {loss:.2f} nats a token, and knowing only how often "
            f"each token occurs gives {self.entropy:.2f}: the model makes no use of context. If it does not fall, try "
            f"another train.lr (it is {settings.lr:g}), a longer train.warmup or more steps; 'etude check' looks for "
            "problems of the text."
        )
