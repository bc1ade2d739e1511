"""A line on standard error that says what a command is doing, within a second, until it prints something of its own.

Loading torch takes seconds, and so do reading files, a first step and a first compilation. On a terminal the line is
redrawn in place; elsewhere a plain line is written once for each stage and every ten seconds after it.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, TypeVar

from etude.cli.printing import escape_controls, is_first_process
from etude.stages import listen

Item = TypeVar("Item")
FIRST_SECONDS = 1.0  # before the first line: what ends sooner says nothing
TERMINAL_SECONDS = 0.25
PLAIN_SECONDS = 10.0


class Activity:
    """Draws the line in a thread of its own."""

    def __init__(self, stage: str, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.stream = stream or sys.stderr
        self.is_terminal = self.stream.isatty()
        self._stage: str | None = stage
        self._clock, self._start = clock, clock()
        self._is_drawn = False
        self._lock = threading.RLock()
        self._stop, self._changed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._draw_repeatedly, name="etude-activity", daemon=True)
        self._thread.start()

    def set_stage(self, stage: str | None) -> None:
        """Show another stage; None clears the line until there is one again."""
        with self._lock:
            if stage is None:
                self._clear()
            self._stage = stage
        self._changed.set()

    def close(self) -> None:
        """Clear the line and draw no more; a second call does nothing."""
        self.set_stage(None)
        self._stop.set()
        self._changed.set()

    def _draw_repeatedly(self) -> None:
        self._stop.wait(FIRST_SECONDS)
        wait = TERMINAL_SECONDS if self.is_terminal else PLAIN_SECONDS
        while not self._stop.is_set():
            self._changed.clear()
            with self._lock:
                if self._stage is not None and not self._stop.is_set():
                    self._draw(self._stage)
            is_same = not self._changed.wait(wait)
            if is_same and not self.is_terminal:
                wait *= 2  # a log of hours needs no line every ten seconds

    def _draw(self, stage: str) -> None:
        line = f"{escape_controls(stage)}… {self._clock() - self._start:.0f} s"
        self.stream.write(f"\r{line}\x1b[K" if self.is_terminal else f"{line}\n")
        self.stream.flush()
        self._is_drawn = True

    def _clear(self) -> None:
        if self.is_terminal and self._is_drawn:
            self.stream.write("\r\x1b[K")
            self.stream.flush()
        self._is_drawn = False

    @contextmanager
    def cleared(self) -> Iterator[None]:
        """Hold the line back while something else is printed."""
        with self._lock:
            self._clear()
            yield


class _Handler(logging.StreamHandler[TextIO]):
    """Messages of the package as plain lines, never in the middle of the line."""

    def __init__(self, activity: Activity) -> None:
        super().__init__(activity.stream)
        self.activity = activity

    def emit(self, record: logging.LogRecord) -> None:
        self.setStream(sys.stderr)  # bars that are drawn put themselves in its place, and print lines above themselves
        with self.activity.cleared():
            super().emit(record)


@contextmanager
def show_activity(stage: str, quiet: bool = False) -> Iterator[Activity | None]:
    """Show `stage`, and the stages that the work inside reports, until it ends; of several processes, in the first."""
    if not is_first_process():
        with _muted_warnings():
            yield None
        return
    if quiet:
        yield None
        return
    activity = Activity(stage)
    handler, log = _Handler(activity), logging.getLogger("etude")
    log.addHandler(handler)
    try:
        with listen(activity.set_stage):
            yield activity
    finally:
        activity.close()
        log.removeHandler(handler)


@contextmanager
def _muted_warnings() -> Iterator[None]:
    """Print no warning of this package: the first process prints the same."""
    handler, log = logging.NullHandler(), logging.getLogger("etude")
    log.addHandler(handler)  # without any, logging prints warnings itself
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"etude(\.|$)")
            yield
    finally:
        log.removeHandler(handler)


def yield_to(activity: Activity | None, hook: Callable[..., Any], goes_on: bool) -> Callable[..., Any]:
    """Return a hook of progress before which the line is cleared; it `goes_on` where the hook prints whole lines."""

    def call(*arguments: Any, **named: Any) -> Any:
        if activity is None:
            return hook(*arguments, **named)
        if not goes_on:
            activity.close()
        with activity.cleared():
            return hook(*arguments, **named)

    return call


def until_first(items: Iterator[Item], stage: str, quiet: bool) -> Iterator[Item]:
    """Yield the items, showing `stage` until the first is there."""
    with show_activity(stage, quiet):
        first = next(items, None)
    if first is not None:
        yield first
        yield from items
