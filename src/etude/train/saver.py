"""When a run is saved, and what is saved of it.

A pre-training saves every `train.save_every` steps, at each best evaluation and at its end, and its last checkpoints
stay. A fine-tuning ends with its best weights, which its owner writes once: it needs checkpoints only to go on after a
kill. So its best weights are held in memory and go into the checkpoints that are written anyway, its end writes none,
and where `train.save_every` is 0 a clock says when one is due. Killed before the first, it starts again and comes to
the same weights, bit for bit, as after any other checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any  # the values of JSON

import torch
from torch import Tensor

from etude.train import checkpoint
from etude.train.run_state import TrainState

SECONDS = 60.0  # of training that a kill may cost
COST_SHARE = 0.05  # of the time, at most, is spent on writing checkpoints
HELD_BYTES = 1 << 30  # of best weights in memory; larger ones are written as a checkpoint of their own
BEST = "best"  # the group of tensors of a checkpoint that holds best weights from before it


class SaveTimer:
    """Says that a checkpoint is due: a minute after the last one, later where writing takes long."""

    def __init__(self, seconds: float = SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._seconds = clock, seconds
        self._due = clock() + seconds

    def is_due(self) -> bool:
        return self._clock() >= self._due

    def restart(self, cost: float) -> None:
        """Count from now, after writing that took `cost` seconds."""
        self._due = self._clock() + max(self._seconds, cost / COST_SHARE)


class BestWeights:
    """A copy of the best weights in the host's memory; none where they are too large."""

    def __init__(self, limit: int = HELD_BYTES) -> None:
        self.limit = limit
        self.step: int | None = None
        self.tensors: dict[str, Tensor] = {}

    def hold(self, step: int, weights: Mapping[str, Tensor]) -> None:
        """Copy weights; those of a step before are overwritten."""
        self.step = None  # until all are copied
        if sum(tensor.nbytes for tensor in weights.values()) > self.limit:
            self.tensors = {}
            return
        with torch.no_grad():
            if self.tensors.keys() == weights.keys():
                for name, tensor in weights.items():
                    self.tensors[name].copy_(tensor)
            else:
                self.tensors = {name: tensor.detach().to("cpu", copy=True) for name, tensor in weights.items()}
        self.step = step


class Saver:
    """Writes the checkpoints of a run, and reads the last one."""

    def __init__(self, folder: Path, every: int, keep: int) -> None:
        """`every` so many steps (0: not in between), `keep` so many beside the best."""
        self.folder, self.every, self.keep = folder, every, keep
        self.saved_step: int | None = None
        self.best: BestWeights | None = None
        self.timer: SaveTimer | None = None

    def end_with_best(self) -> None:
        """Save as a run whose owner writes its best weights when it is finished."""
        self.best = BestWeights()
        self.timer = SaveTimer() if not self.every else None

    def is_due(self, state: TrainState, finished: bool) -> bool:
        """Whether a run that goes on, or has just finished, is to be saved now."""
        if finished:
            return self.best is None
        if state.best_step is not None and state.best_step == state.step and not self.holds(state.step):
            return True
        if self.timer is not None:
            return self.timer.is_due()
        return state.step > 0 and self.every > 0 and state.step % self.every == 0

    def hold_best(self, step: int, weights: Mapping[str, Tensor]) -> None:
        """Hold the weights of the best evaluation so far in memory, where this run does so."""
        if self.best is not None:
            self.best.hold(step, weights)

    def holds(self, step: int) -> bool:
        """Whether the weights of a step are in memory."""
        return self.best is not None and self.best.step == step

    def write(self, groups: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> None:
        """Write a checkpoint, with the best weights where only memory has them; remove those that are not kept."""
        started, step, best_step = time.monotonic(), state["step"], state["best_step"]
        if self.best is not None and best_step is not None and self.holds(best_step):
            if best_step != step:
                groups = {**groups, BEST: self.best.tensors}
            best_step = None  # needs no checkpoint of its own
        checkpoint.save(self.folder, step, groups, state)
        self.prune(best_step)
        if self.timer is not None:
            self.timer.restart(time.monotonic() - started)

    def prune(self, best_step: int | None) -> None:
        """Remove the checkpoints that are not kept."""
        # a run that ends with its best weights saves by a clock, too, and averages nothing
        checkpoint.prune(self.folder, self.keep, best_step, self.every if self.best is None else None)

    def read(self) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]] | None:
        """Return the tensors and the state of the last checkpoint; None where there is none."""
        steps = checkpoint.list_steps(self.folder)
        if not steps:
            return None
        groups, state = checkpoint.load(self.folder, steps[-1])
        best_step = state.get("best_step")
        held = groups.pop(BEST, groups["weights"] if best_step == steps[-1] else None)
        if best_step is not None and held is not None:
            self.hold_best(best_step, held)
        self.saved_step = steps[-1]
        return groups, state

    def read_weights(self, step: int) -> tuple[Mapping[str, Tensor], str]:
        """Return the weights of a step, held or in its checkpoint, and where they come from."""
        if self.best is not None and self.holds(step):
            return self.best.tensors, f"the best weights, of step {step}"
        return checkpoint.load(self.folder, step)[0]["weights"], f"checkpoint {step} in {self.folder}"
