"""Signals that stop a run: SIGTERM, as a cluster sends it, and Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

_ignores_repeats = False


def ignore_repeated_signals() -> None:
    """Let no second signal end what the first one has stopped: a child gets it from its parent and its group, too."""
    global _ignores_repeats
    _ignores_repeats = True


@contextlib.contextmanager
def handle_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on SIGTERM and Ctrl-C in place of what they do; a second one acts as usual.

    Only the main thread gets signals: in another one nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, _frame: FrameType | None) -> None:
        stop()
        signal.signal(number, signal.SIG_IGN if _ignores_repeats else previous[number])

    previous: dict[int, Callable[[int, FrameType | None], object] | int | None] = {
        number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
