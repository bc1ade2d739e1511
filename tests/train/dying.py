"""A run that kills itself at a chosen moment: started by test_exactness.py as a process of its own.

    python dying.py start RECIPE CORPUS RUN MOMENT      MOMENT: never | step:K | writing:K | evaluation:K | term:K
    python dying.py resume RUN MOMENT

`writing:K` dies by SIGKILL with the checkpoint of step K written but not yet renamed, `half:K` with only part of it on
the disk, `evaluation:K` after the first batch of the evaluation at step K; `term:K` sends itself SIGTERM in step K.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from etude import pretraining
from etude.train import checkpoint
from etude.train.loop import Loop


def arm(moment: str) -> None:
    what, _, number = moment.partition(":")
    if what == "never":
        return
    step = int(number)
    advance, place, save_file, valid = Loop.advance, checkpoint.place, checkpoint.save_file, Loop._valid_batches

    def dying_advance(self: Loop, work: Any) -> None:
        if work.number + 1 == step and what == "term":
            os.kill(os.getpid(), signal.SIGTERM)
        advance(self, work)
        if work.number + 1 == step and what == "step":
            os.kill(os.getpid(), signal.SIGKILL)

    def dying_place(writing: Path, target: Path) -> None:
        if int(target.name[5:]) == step:
            os.kill(os.getpid(), signal.SIGKILL)
        place(writing, target)

    def dying_save_file(tensors: Any, path: Path) -> None:
        if f"{step:012d}" in str(path):
            path.write_bytes(b"half a file")
            os.kill(os.getpid(), signal.SIGKILL)
        save_file(tensors, path)

    def dying_valid(self: Loop) -> Iterator[Any]:
        for batch in valid(self):
            yield batch
            if self.tally.step == step:
                os.kill(os.getpid(), signal.SIGKILL)

    if what in ("step", "term"):
        Loop.advance = dying_advance  # type: ignore[method-assign]
    elif what == "writing":
        checkpoint.place = dying_place
    elif what == "half":
        checkpoint.save_file = dying_save_file
    elif what == "evaluation":
        Loop._valid_batches = dying_valid  # type: ignore[method-assign]
    else:
        raise SystemExit(f"no such moment: {moment}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    arm(sys.argv[-1])
    if sys.argv[1] == "start":
        run = pretraining.pretrain(sys.argv[2], sys.argv[3], sys.argv[4], quiet=True)
    else:
        run = pretraining.resume(sys.argv[2], quiet=True)
    sys.exit(0 if run.finished else 3)
