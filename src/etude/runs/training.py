"""The training of a run: shared by pre-training, distillation and fine-tuning."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

import torch

from etude.errors import UserError, explain_write_failure
from etude.runs.run import METRICS, Run
from etude.train import memory, peak
from etude.train.loop import Loop
from etude.train.pace import Pace
from etude.train.parallel import Ranks
from etude.train.progress import Progress
from etude.train.run_state import TrainResult
from etude.train.settings import Settings

LOCK = ".lock"
Trained = TypeVar("Trained", bound=Loop)


def train_loop(
    run: Run,
    build: Callable[[Progress], Trained],
    settings: Settings,
    device: torch.device,
    ranks: Ranks,
    quiet: bool,
    deadline: float | None = None,
    shorten: bool = False,
) -> tuple[Trained, TrainResult]:
    """Build a loop under a progress line and run it to its end, its deadline (time.monotonic) or its interruption.

    With `shorten`, a run that would not end by the deadline becomes shorter, and its schedule with it (train/pace.py).
    The log is closed, however training ends.
    """
    assert settings.steps is not None  # a budget is turned into steps before a run is created
    quiet = quiet or not ranks.is_first
    flops_per_second = None
    if not quiet:
        precision = peak.resolve_precision(settings.precision, device)
        flops_per_second = peak.measure_peak(device, precision) * ranks.size
    with (
        Progress(
            settings.steps,
            step=max(run.steps, default=0),
            quiet=quiet,
            peak=flops_per_second,
            memory=lambda: memory.bytes_in_use(device),
        ) as progress,
        closing(build(progress)) as loop,
    ):
        loop.deadline = deadline
        if shorten and deadline is not None:
            loop.pace = Pace(deadline, settings.steps)
        return loop, loop.run()


@contextmanager
def lock_run(run: Run, ranks: Ranks) -> Iterator[None]:
    """Hold a run for this process, which writes to it; UserError where another one does. The lock ends with it."""
    if not ranks.is_first:
        yield
        return
    with explain_write_failure(run.folder / LOCK):
        lock = (run.folder / LOCK).open("a")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"{run.folder} is being trained by another process. Wait for it, or stop it, then resume."
            ) from None
        yield


@contextmanager
def discard_untrained(run: Run, ranks: Ranks) -> Iterator[None]:
    """Remove a new run that a user's mistake stops before its first step: it has nothing to resume."""
    try:
        yield
    except UserError:
        if ranks.is_first and _is_untrained(run.folder):
            shutil.rmtree(run.folder)
        raise


def _is_untrained(folder: Path) -> bool:
    """Whether a run never came to a step: no checkpoint, no line of metrics."""
    metrics = folder / METRICS
    return not any((folder / "checkpoints").glob("*")) and not (metrics.is_file() and metrics.stat().st_size)
