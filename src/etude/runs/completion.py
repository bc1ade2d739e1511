"""The end of a run that was killed after its final weights: what `resume` still has to do for it.

The weights say that a run is finished, and the checksums are written after them. A kill in between left a run that
nobody could verify, and a fine-tuned one with checkpoints that nothing reads any more.
"""

from __future__ import annotations

import fcntl
import shutil

from etude.errors import explain_write_failure
from etude.runs.checksums import write_checksums
from etude.runs.run import Run
from etude.runs.training import LOCK
from etude.text.run_checksums import CHECKSUMS


def complete_finished(run: Run) -> Run:
    """Write the checksums of a finished run that has none, and remove the checkpoints of a fine-tuned one."""
    has_spare = run.is_fine_tuned and run.checkpoints.exists()
    if not run.finished or ((run.folder / CHECKSUMS).is_file() and not has_spare):
        return run
    with explain_write_failure(run.folder / LOCK):
        lock = (run.folder / LOCK).open("a")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # the process that writes the weights will write the checksums
            return run
        if not (run.folder / CHECKSUMS).is_file():
            write_checksums(run.folder)
        if has_spare:
            shutil.rmtree(run.checkpoints, ignore_errors=True)
    return run
