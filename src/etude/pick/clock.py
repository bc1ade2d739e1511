"""The time of a pick: what was asked for, what is spent, and when a piece of work must stop.

Time spent before an interruption counts, as far as its work was saved: after a kill the same command has the minutes
left that it had at the last saved result, so it comes to the same choice as without the kill.
"""

from __future__ import annotations

import time


class OutOfTime(Exception):
    """Raised by a piece of work that reached its deadline; what it saved so far stays."""


class Clock:
    """Counts seconds of wall time up to `total`; `spent` seconds are gone already."""

    def __init__(self, total: float, spent: float = 0.0) -> None:
        self.total = total
        self._origin = time.monotonic() - spent

    @property
    def spent(self) -> float:
        return time.monotonic() - self._origin

    @property
    def left(self) -> float:
        return self.total - self.spent

    def deadline(self, reserve: float = 0.0, seconds: float | None = None) -> float:
        """Return the monotonic time at which work must stop: `reserve` before the end, or after `seconds` if sooner."""
        end = self._origin + self.total - reserve
        return end if seconds is None else min(end, time.monotonic() + seconds)


def check_deadline(deadline: float | None) -> None:
    """Raise OutOfTime where a deadline has passed."""
    if deadline is not None and time.monotonic() > deadline:
        raise OutOfTime


def format_korean_seconds(seconds: float) -> str:
    """As in 1분 5초."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}분 {rest}초" if minutes else f"{rest}초"


def format_seconds(seconds: float) -> str:
    """As in 1m05s."""
    whole = round(seconds)
    return f"{whole // 60}m{whole % 60:02d}s" if whole >= 60 else f"{whole}s"
