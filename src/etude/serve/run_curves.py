"""Learning curves of runs while they are trained: each look at a metrics.jsonl reads only what is new.

A resumed run cuts its log back; then it is read again. A line that is no JSON object is left out: a board shows what
there is.
"""

from __future__ import annotations

import json
import math
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

AXES = ("step", "tokens", "flops", "seconds")
MOST_POINTS = 400  # of a curve that is sent: about as many as a screen has columns
MOST_BYTES = 2**26  # of one log: what lies behind is not read

Line = dict[str, float | int | str | None]


@dataclass
class Curve:
    """The lines of a log, and how far it was read."""

    lines: list[Line] = field(default_factory=list)
    offset: int = 0
    head: bytes = b""  # the first bytes: another log may have taken its place

    def read(self, path: Path) -> None:
        """Read what is new."""
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                head = file.read(64)
                if size < self.offset or not head.startswith(self.head[: len(head)]):
                    self.lines, self.offset = [], 0
                self.head = head
                file.seek(self.offset)
                text = file.read(max(0, MOST_BYTES - self.offset))
        except OSError:
            return
        whole = text[: text.rfind(b"\n") + 1]
        self.offset += len(whole)
        for line in whole.splitlines():
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(entry, dict) and all(is_finite(entry.get(name)) for name in AXES):
                self.lines.append(entry)

    def part(self, split: str) -> list[Line]:
        """The lines of a split."""
        return [line for line in self.lines if line.get("split", "train") == split]


def is_finite(value: object) -> bool:
    """Whether a value of JSON is a number that a float can be: a whole one may be beyond all of them."""
    try:
        return isinstance(value, (int, float)) and math.isfinite(value)
    except OverflowError:
        return False


def thin(lines: list[Line], most: int = MOST_POINTS) -> list[Line]:
    """At most so many lines, evenly spread, the last one among them."""
    if len(lines) <= most:
        return lines
    step = (len(lines) - 1) / (most - 1)
    return [lines[round(number * step)] for number in range(most)]


class Curves:
    """The curves of all runs of a board; may be asked from several threads."""

    def __init__(self) -> None:
        self._curves: dict[Path, Curve] = {}
        self._lock = threading.Lock()

    def read(self, path: Path) -> Curve:
        """The curve of a log, up to its last whole line."""
        with self._lock:
            curve = self._curves.setdefault(path, Curve())
            curve.read(path)
            return Curve(list(curve.lines), curve.offset)
