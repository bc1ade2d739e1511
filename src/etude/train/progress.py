"""Progress line of a run, never silent for two seconds.

A small thread draws it, so that it appears while the first step still compiles. On a terminal the line is redrawn in
place a few times a second; elsewhere (a pipe, a CI log) a plain line is written every ten seconds.

    step 120/2000  loss 6.312  48.1k tokens/s  41 % of peak  left 3m12s  memory 1.4 GB
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self, TextIO

from etude.stages import report_stage

FIRST_SECONDS = 0.5  # before the first line: short runs finish before it and print nothing in between
TERMINAL_SECONDS = 0.25  # between lines: more often cannot be read
PLAIN_SECONDS = 10.0
MAX_SHARE = 1.2  # of the peak; more says that it was measured while the machine was busy, and is not worth a number
WINDOW_SECONDS = 30.0  # over which speed is measured: long enough for steps of several seconds


class Progress:
    """Draws the line in its own thread; the loop reports steps to it, as totals since the start of the run.

    `peak` is the FLOP/s of all devices; `memory` returns the bytes in use. `total_tokens` makes the time left right
    where later steps are larger (a batch ramp). `step` is where a resumed run is.
    """

    def __init__(
        self,
        total: int,
        *,
        step: int = 0,
        quiet: bool = False,
        peak: float | None = None,
        memory: Callable[[], int | None] | None = None,
        total_tokens: int | None = None,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total, self.quiet = total, quiet
        self.peak, self.memory, self.total_tokens = peak, memory, total_tokens
        self.stream = stream or sys.stderr
        self.is_terminal = self.stream.isatty()
        self._clock, self._phase_start = clock, clock()
        self._phase: str | None = "first step…"
        self._step = step
        self._loss: float | None = None
        self._valid: float | None = None
        self._marks: deque[tuple[float, int, int, int]] = deque()  # (time, step, tokens, flops)
        self._drawn = ""
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if not quiet:
            report_stage(None)  # this line takes its place
            self._thread = threading.Thread(target=self._draw_repeatedly, name="etude-progress", daemon=True)
            self._thread.start()

    # Reports of the loop

    def set_phase(self, phase: str | None, *, step: int | None = None) -> None:
        """Show what takes time: "compiling…", "evaluating…"; None when steps go on. `step`: where the run is."""
        now = self._clock()
        with self._lock:
            if self._phase is None:
                self._phase_start = now
            elif phase is None:  # the pause does not count for the speed: the marks are shifted by it
                pause = now - self._phase_start
                self._marks = deque((at + pause, number, tokens, flops) for at, number, tokens, flops in self._marks)
            self._phase = phase
            self._step = self._step if step is None else step

    def update(self, step: int, tokens: int, flops: int, seconds: float | None = None) -> None:
        """Record a finished step. Speed is measured by this object's own clock, not from `seconds` of the run."""
        now = self._clock()
        with self._lock:
            self._phase, self._step = None, step
            self._marks.append((now, step, tokens, flops))
            while len(self._marks) > 2 and now - self._marks[0][0] > WINDOW_SECONDS:
                self._marks.popleft()

    def show_metrics(self, split: str, values: Mapping[str, float]) -> None:
        """Show a loss in the line; held-out metrics are also printed as a line of their own."""
        if split == "train":
            self._loss = values.get("loss", self._loss)
            return
        self._valid = values.get("loss", self._valid)
        self.print(f"step {self._step}: {split} " + "  ".join(f"{name} {value:.4g}" for name, value in values.items()))

    def print(self, message: str) -> None:
        """Print a line that stays."""
        if self.quiet:
            return
        with self._lock:
            self._clear()
            self.stream.write(message + "\n")
            self.stream.flush()

    def close(self) -> None:
        """Leave the last line on the screen and stop drawing; a second call does nothing."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            if self._marks:
                self.print(self.format_line())
            else:
                with self._lock:
                    self._clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # The line

    def format_line(self) -> str:
        """Return the current line."""
        now = self._clock()
        with self._lock:
            marks, phase, phase_start, step = list(self._marks), self._phase, self._phase_start, self._step
        parts = [f"step {step}/{self.total}"]
        if phase:
            parts.append(f"{phase} {_format_duration(now - phase_start)}")
        if self._loss is not None:
            parts.append(f"loss {self._loss:.4g}")
        if self._valid is not None:
            parts.append(f"valid {self._valid:.4g}")
        # The first mark ends the first step: compiling and warming up do not count for the speed
        if len(marks) > 1 and marks[-1][0] > marks[0][0]:
            seconds = marks[-1][0] - marks[0][0]
            steps, tokens, flops = (marks[-1][i] - marks[0][i] for i in (1, 2, 3))
            parts.append(f"{_format_number(tokens / seconds)} tokens/s")
            share = flops / seconds / self.peak if self.peak else None
            if share is not None and share <= MAX_SHARE:
                parts.append(f"{100 * share:.0f} % of peak")
            if self.total_tokens and tokens:
                left = (self.total_tokens - marks[-1][2]) * seconds / tokens
            else:
                left = (self.total - step) * seconds / max(1, steps)
            if step < self.total:
                parts.append(f"left {_format_duration(left)}")
        used = self.memory() if self.memory is not None else None
        if used is not None:
            parts.append(f"memory {used / 1e9:.1f} GB")
        return "  ".join(parts)

    def _draw_repeatedly(self) -> None:
        wait = FIRST_SECONDS
        while not self._stop.wait(wait):
            wait = TERMINAL_SECONDS if self.is_terminal else PLAIN_SECONDS
            line = self.format_line()
            with self._lock:
                if not self.is_terminal:
                    self.stream.write(line + "\n")
                elif line != self._drawn:
                    width = shutil.get_terminal_size().columns - 1  # the last column would wrap
                    self.stream.write("\r" + line[:width] + "\x1b[K")
                    self._drawn = line
                self.stream.flush()

    def _clear(self) -> None:
        if self.is_terminal and self._drawn:
            self.stream.write("\r\x1b[K")
            self._drawn = ""


def _format_number(value: float) -> str:
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g}{letter}"
    return f"{value:.3g}"


def _format_duration(seconds: float) -> str:
    whole = max(0, round(seconds))
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days}d{hours:02d}h"
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{whole % 60:02d}s" if minutes else f"{whole}s"
