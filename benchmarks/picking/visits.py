"""Visits: what is missing of a table, done in some minutes on a machine that is given back; how many visits it takes.

Picks stand in an order in which any part of them covers all tasks: draw by draw, and of each draw the modes and the
numbers of labels in turn.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .picks import LATE, MODES, SCORING_MINUTES
from .results import Key

CORES_OF_A_PICK = 2
POLL_SECONDS = 5.0


@dataclass(frozen=True)
class Visit:
    """A kind of machine: the modes that are run there, and how many picks at once."""

    modes: tuple[str, ...]
    parallel: int


VISITS = {
    "gpu": Visit(("gpu", "gpu-start"), 6),  # that share the card
    "cpu": Visit(("text", "start"), 8),  # of two cores each
}


def count_parallel(visit: Visit, cores: int) -> int:
    """Picks at once: fewer than usual where there are not two cores for each."""
    return max(1, min(visit.parallel, cores // CORES_OF_A_PICK))


def list_picks(
    finished: Container[Key], modes: Sequence[str], tasks: Sequence[str], labels: Sequence[int], draws: Sequence[int]
) -> list[tuple[str, int, int, str]]:
    """The (task, labels, draw, mode) that are missing, in their order."""
    picks = [(task, count, draw, mode) for draw in draws for mode in modes for count in labels for task in tasks]
    return [pick for pick in picks if (*pick[:3], f"pick-{pick[3]}") not in finished]


def count_visits(
    picks: Iterable[tuple[str, int, int, str]], parallel: int, limit: float, minutes: float | None = None
) -> int | None:
    """How many visits of `limit` minutes picks take, where each takes as long as it may; None where one is too long."""
    free, visits = [0.0] * parallel, 1 if (waiting := list(picks)) else 0
    for *_, mode in waiting:
        needed = LATE * (minutes or MODES[mode].minutes) + SCORING_MINUTES
        if needed > limit:
            return None
        group = min(range(parallel), key=lambda number: free[number])
        if free[group] + needed > limit:
            free, visits, group = [0.0] * parallel, visits + 1, 0
        free[group] += needed
    return visits


def describe_visits(
    picks: Sequence[tuple[str, int, int, str]], parallel: int, limit: float, minutes: float | None = None
) -> str:
    """One line: the picks, and the visits that they take."""
    count = count_visits(picks, parallel, limit, minutes)
    if count is None:
        longest = max(LATE * (minutes or MODES[mode].minutes) + SCORING_MINUTES for *_, mode in picks)
        return f"{len(picks)} picks are missing, and {limit:g} minutes are too few: one takes up to {longest:.1f}."
    times = "visit" if count == 1 else "visits"
    return f"{len(picks)} picks are missing: {count} {times} of {limit:g} minutes, {parallel} picks at once."


def detach(arguments: Sequence[str], log: Path) -> int:
    """Start this script in a session of its own, with its messages in a file; returns the number of the process."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        process = subprocess.Popen(
            [sys.executable, *arguments], stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    log.with_suffix(".pid").write_text(str(process.pid), encoding="utf-8")
    return process.pid


def wait_for(log: Path, seconds: float) -> bool:
    """Wait for a detached visit, not longer than so many seconds; whether it has ended."""
    pid, end = int(log.with_suffix(".pid").read_text(encoding="utf-8")), time.monotonic() + seconds
    while _is_running(pid):
        if time.monotonic() >= end:
            return False
        time.sleep(min(POLL_SECONDS, max(0.0, end - time.monotonic())))
    return True


def _is_running(pid: int) -> bool:
    """Whether there is such a process; one that has ended and nobody waited for is not running."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        return status.rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def default_limit(minutes: float) -> float:
    """Minutes of a visit in which picks can be done twice, one after the other."""
    return math.ceil(2 * (LATE * minutes + SCORING_MINUTES))


def count_usable_cores() -> int:
    return len(os.sched_getaffinity(0))
