"""The pace of a run against a deadline: how many steps it will have taken by then.

A schedule of the learning rate belongs to its length. A run that is stopped by a clock before its last step ends at a
rate that is still high, and its weights are worse than those of a shorter run that came to its end. So a run that has
to end at a time is shortened while it goes on: its length is the steps it can take until then at the pace of late, and
never more than was planned. The rate follows the length.
"""

from __future__ import annotations

RECENT = 0.3  # weight of the last window in the mean of the seconds a step takes
RESERVE_SHARE, RESERVE_SECONDS = 0.03, 1.0  # of the time left, for evaluation and saving


class Pace:
    """Measures seconds a step, window by window; the first window (compilation, first touches) does not count."""

    def __init__(self, deadline: float, planned: int) -> None:
        """`deadline` of time.monotonic; `planned` is the number of steps that is never exceeded."""
        self.deadline, self.planned = deadline, planned
        self.last: tuple[int, float] | None = None
        self.seconds_per_step: float | None = None

    def limit_steps(self, step: int, now: float) -> int:
        """Return the length of the run, seen from `step` at the time `now`; at least `step`."""
        if self.last is not None and step > self.last[0]:
            window = (now - self.last[1]) / (step - self.last[0])
            mean = self.seconds_per_step
            self.seconds_per_step = window if mean is None else (1 - RECENT) * mean + RECENT * window
        self.last = step, now
        if self.seconds_per_step is None:
            return self.planned
        left = (self.deadline - now) * (1 - RESERVE_SHARE) - RESERVE_SECONDS
        return max(step, min(self.planned, step + int(left / max(self.seconds_per_step, 1e-9))))
