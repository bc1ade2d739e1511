"""A run that kills itself at a chosen moment: a process of its own, started by torchrun or forked_ranks.py.

    python dying.py start RECIPE CORPUS RUN MOMENT      MOMENT: never | step:K | writing:K | evaluation:K | term:K
    python dying.py resume RUN MOMENT
    python dying.py initial RECIPE CORPUS FILE          writes the weights before the first step

`writing:K` dies by SIGKILL with the checkpoint of step K written but not yet renamed, `half:K` with only part of it on
the disk, `evaluation:K` after the first batch of the evaluation at step K; `term:K` sends itself SIGTERM in step K.
`step:K@R`, and likewise the others, happens to rank R alone; `stop:K@R` is SIGSTOP, as a network that stalls;
`loader:K@R` fails to build the batches of step K, `slow:K@R` builds them for some seconds; `cut` is as `never`, for a
test that cuts a network, with less patience.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # the first step of a run imports it, for two seconds: here once, and not in each fork

from etude.nn import generator_jump
from etude.nn.deferred_weights import DeferredWeights
from etude.pretraining import pretrain as pretraining
from etude.train import checkpoint, evaluation, watch
from etude.train.loader import Loader, Step
from etude.train.loop import Loop


def note_fault() -> None:
    """Leave a file of this moment: a test measures from it how long the others take to end."""
    Path(os.environ.get("ETUDE_RANK_LOGS", "/tmp"), "fault").touch()


def arm(moment: str) -> None:
    what, _, number = moment.partition(":")
    number, _, rank = number.partition("@")
    if what in ("stop", "slow", "cut"):  # as patient as a test can be; all ranks
        watch.SILENCE, watch.SLOW, watch.INTERVAL = (20.0, 0.6, 0.2) if what == "slow" else (2.0, 60.0, 0.2)
    if what == "cut":
        watch.SILENCE = 10.0
    if what in ("never", "cut") or (rank and rank != os.environ["RANK"]):
        return
    step = int(number)
    build = Loader.step

    def failing_build(self: Loader, number: int) -> Step:
        if number + 1 == step and what == "loader":
            raise OSError("the disk of this rank fails")
        if number + 1 == step:
            time.sleep(2.0)
        return build(self, number)

    advance, place, save_file = Loop.advance, checkpoint.rename_into_place, checkpoint.save_file
    evaluate, batches, at = Loop.evaluate, evaluation.build_batches, [0]

    def dying_advance(self: Loop, work: Any) -> None:
        if work.number + 1 == step and what == "term":
            os.kill(os.getpid(), signal.SIGTERM)
        if work.number + 1 == step and what == "stop":
            note_fault()
            os.kill(os.getpid(), signal.SIGSTOP)
        advance(self, work)
        if work.number + 1 == step and what == "step":
            note_fault()
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

    def noting_evaluate(self: Loop) -> dict[str, float]:
        at[0] = self.state.step
        return evaluate(self)

    def dying_batches(*given: Any) -> Iterator[Any]:
        for batch in batches(*given):
            yield batch
            if at[0] == step:
                os.kill(os.getpid(), signal.SIGKILL)

    if what in ("loader", "slow"):
        Loader.step = failing_build  # type: ignore[method-assign]
    elif what in ("step", "term", "stop"):
        Loop.advance = dying_advance  # type: ignore[method-assign]
    elif what == "writing":
        checkpoint.rename_into_place = dying_place
    elif what == "half":
        checkpoint.save_file = dying_save_file
    elif what == "evaluation":
        Loop.evaluate = noting_evaluate  # type: ignore[method-assign]
        evaluation.build_batches = dying_batches
    else:
        raise SystemExit(f"no such moment: {moment}")


def save_initial(loop: Loop, path: Path) -> None:
    """Write the whole weights of a run that has not begun, and end."""
    named = {name: parameter.full_tensor() for name, parameter in loop.learner.named_parameters()}  # type: ignore[attr-defined, operator]
    if loop.ranks.is_first:
        checkpoint.save_file({name: tensor.detach().clone() for name, tensor in named.items()}, path)
    loop.ranks.barrier()
    os._exit(0)


def work(words: list[str]) -> int:
    if words[0] == "initial":
        fill, fills = DeferredWeights.fill, []

        def counted_fill(self: DeferredWeights, *values: Any) -> None:
            assert all(parameter.is_cpu for parameter in values[0].parameters())
            fills.append(self)
            fill(self, *values)

        def run(loop: Loop) -> Any:
            assert fills, "the model was built as a whole"
            save_initial(loop, Path(words[3]))

        generator_jump.FEWEST = 700  # jumps also over the few values of a small model
        DeferredWeights.fill, Loop.run = counted_fill, run  # type: ignore[method-assign]
        pretraining.pretrain(words[1], words[2], Path(words[3]).with_suffix(".run"), quiet=True)
    arm(words[-1])
    if words[0] == "start":
        run = pretraining.pretrain(words[1], words[2], words[3], quiet=True)
    else:
        run = pretraining.resume(words[1], quiet=True)
    return 0 if run.finished else 3


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(work(sys.argv[1:]))
