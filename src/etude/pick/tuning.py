"""One fine-tuning of a pick, JSON-ready: done in this process, or in one of its own (pick/worker_pool.py).

Its run lies in the working folder of a trial until the trial has answered. The seconds it took stay beside it, because
whoever answers with a run that is there already must still know what it cost.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from etude.pick.clock import OutOfTime
from etude.pick.interruption import raise_if_interrupted
from etude.runs.completion import complete_finished
from etude.runs.run import RECIPE
from etude.study.cells import CellStore
from etude.train import checkpoint
from etude.transfer import finetune

RUN, SECONDS = "run", "seconds.json"


@dataclass(frozen=True)
class Tuning:
    """A fine-tuning that is to be done."""

    key: str  # of the trial
    base: str
    task: str
    examples: str  # the file to learn from
    columns: dict[str, str]
    overrides: dict[str, Any]

    def json(self) -> dict[str, Any]:
        return asdict(self)


def run_tuning(store: CellStore, planned: Tuning, deadline: float) -> None:
    """Do a fine-tuning in the working folder of its trial; raises OutOfTime where it does not end in time."""
    if store.state(planned.key) in ("done", "failed"):
        return
    with store.lock(planned.key) as work:
        if store.state(planned.key) == "done":  # while this process waited for the lock
            return
        tune(
            planned.base, planned.task, Path(planned.examples), work / RUN, planned.columns, planned.overrides, deadline
        )


def tune(
    base: str | Path, task: str, examples: Path, folder: Path, columns: Mapping[str, str],
    overrides: Mapping[str, object], deadline: float | None, *, shorten: bool = False,
) -> None:  # fmt: skip
    """Fine-tune into a folder, or go on there; OutOfTime where it does not end by the deadline.

    With `shorten` a new one becomes shorter instead, and ends in any case.
    """
    start = time.monotonic()
    if (folder / RECIPE).is_file():
        run = complete_finished(finetune.resume(folder, quiet=True, deadline=deadline))
    else:
        run = finetune.finetune(
            base, task, examples, folder, columns=columns, overrides=overrides, quiet=True, deadline=deadline,
            shorten=shorten,
        )  # fmt: skip
    seconds = read_seconds(folder.parent) + time.monotonic() - start
    checkpoint.write_text(folder.parent / SECONDS, json.dumps(seconds))
    raise_if_interrupted(run, deadline)
    if not run.finished:
        raise OutOfTime


def read_seconds(work: Path) -> float:
    """The seconds that the fine-tuning of a working folder has taken so far."""
    path = work / SECONDS
    return float(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else 0.0
