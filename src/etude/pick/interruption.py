"""Ctrl-C and SIGTERM during a training of a pick: they end the pick, and not the training alone.

A training that a signal stops leaves a checkpoint and returns, as it does at its deadline. A pick that took the one for
the other went on with an encoder that had learnt too little, kept it as done, and could not be stopped.
"""

from __future__ import annotations

import time

from etude.runs.run import Run


def raise_if_interrupted(run: Run, deadline: float | None) -> None:
    """Raise KeyboardInterrupt where a run ended before its last step and before its deadline: by a signal."""
    if not run.finished and (deadline is None or time.monotonic() < deadline):
        raise KeyboardInterrupt
