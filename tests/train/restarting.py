"""A run of four processes that die at random and are started again by torchrun: for test_restarts.py.

    torchrun --nproc-per-node 4 --max-restarts 42 restarting.py RECIPE CORPUS RUN KILLS

Start number n is killed, while n < KILLS, within five steps: a random process by SIGKILL at a random moment;
every fourth start inside a checkpoint.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from etude.pretraining import pretrain as pretraining
from etude.train import checkpoint, sharded_checkpoint
from etude.train.loop import Loop

RANKS = 4
PLACES = ("before the parts", "after the parts", "before the rename", "after the rename")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at(function: Callable[..., Any], before: bool) -> Callable[..., Any]:
    """Return a function that dies before or after it has done its work."""

    def dying(*values: Any, **options: Any) -> Any:
        if not before:
            function(*values, **options)
        die()

    return dying


def arm(start: int) -> None:
    """Choose by the number of a start who dies, and when."""
    chance = random.Random(start)
    rank = chance.randrange(RANKS)
    if start % 4 == 3:
        place = chance.choice(PLACES[:2] if rank else PLACES)  # only the first rank renames
        if "parts" in place:
            sharded_checkpoint.save_state = kill_at(sharded_checkpoint.save_state, place.startswith("before"))
        elif rank == 0:
            checkpoint.rename_into_place = kill_at(checkpoint.rename_into_place, place.startswith("before"))
        note = f"rank {rank} in a checkpoint, {place}"
    else:
        steps, delay, advance = 1 + chance.randrange(4), chance.uniform(0.0, 0.05), Loop.advance
        taken: list[int] = []

        def doomed_advance(self: Loop, step: Any) -> None:
            taken.append(step.number)
            if len(taken) == steps + 1:
                threading.Thread(target=lambda: (time.sleep(delay), die()), daemon=True).start()  # type: ignore[func-returns-value]
            advance(self, step)

        Loop.advance = doomed_advance  # type: ignore[method-assign]
        note = f"rank {rank} in step {steps + 1}, after {1000 * delay:.0f} ms"
    if int(os.environ["RANK"]) == rank:
        print(f"start {start}: {note}", flush=True)
        return
    # not this one
    sharded_checkpoint.save_state, checkpoint.rename_into_place, Loop.advance = ORIGINAL  # type: ignore[method-assign]


ORIGINAL = (sharded_checkpoint.save_state, checkpoint.rename_into_place, Loop.advance)


def work(recipe: str, corpus: str, run: str, kills: int) -> None:
    torch.set_num_threads(1)
    start = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if start < kills:
        arm(start)
    assert pretraining.pretrain(recipe, corpus, run, quiet=True).finished


if __name__ == "__main__":
    work(*sys.argv[1:4], kills=int(sys.argv[4]))
