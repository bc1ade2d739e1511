"""A whole training step recorded once and replayed: forward, backward, clipping and update in one launch (CUDA graphs).

A small model's kernels take a GPU less time than the host needs to launch them: ELECTRA-small at the paper's batch
spent 21 ms on a step whose kernels take a quarter of that. A recording holds kernels and addresses, so

    batches          are copied into a static batch first (train/static_batch.py)
    scalars          (lr of each group, what each loss term is divided by, the step's number) lie on the device
    tables           of kernels that work on many tensors are filled when addresses are final (train/tensor_lists.py)
    dropout          draws from the generator of the device, whose seed and offset every replay reads anew
    gradients        live in the recording's memory; weights and optimiser state are the ones that everybody uses

The first steps of each shape run as they are written, with everything in its static place, and they are real steps; the
next is recorded and replayed. N steps are the same N steps in whichever way each is taken. A step that cannot be
recorded says why, once, and is taken the ordinary way.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from etude.nn.cuda_graphs import Graph
from etude.objectives.base import Batch
from etude.train.static_batch import NotRecordable, allocate_batch, copy_batch, hide_host_values, signature
from etude.train.tensor_lists import StaticTables

Sums = dict[str, Tensor]  # of loss terms, and the norm of the gradients; on the device
TakeStep = Callable[[Batch, Mapping[str, Tensor], Tensor], Sums]  # batch, totals of the terms, the step's number

# Ordinary steps before a shape is recorded: of the first one (compiling, tuning, first allocations) and of others
WARM_UP, LATER_WARM_UP = 3, 2
MAX_SHAPES = 64  # recordings at once: pairs sorted by length have some dozens of shapes
IDLE_STEPS = 200  # a recording that was not used for so many steps makes room: a batch ramp leaves its shapes behind
MAX_TERMS = 32  # of a loss
MAX_UNRECORDED = 256  # shapes seen before this run is taken for one whose shapes always change


class Scalars:
    """The numbers of a step on the device, in one vector that one copy fills: lrs, the step's number, totals."""

    def __init__(self, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        self.scales = [group["scale"] for group in optimizer.param_groups]
        self.vector = torch.zeros(len(self.scales) + 1 + MAX_TERMS, dtype=torch.float64, device=device)
        self.lrs = self.vector[: len(self.scales)]

    def fill(self, lr: float, totals: Mapping[str, float], number: int) -> None:
        """Copy the numbers of a step to the device, without waiting for it."""
        values = [*(lr * scale for scale in self.scales), float(number), *totals.values()]
        source = torch.tensor(values, dtype=torch.float64, pin_memory=self.vector.is_cuda)  # new: a copy may be pending
        self.vector[: len(values)].copy_(source, non_blocking=True)

    def number(self) -> Tensor:
        return self.vector[len(self.scales)].long()

    def totals(self, names: tuple[str, ...]) -> dict[str, Tensor]:
        """Return what each term is divided by, in float32 as the term: a number of the host is rounded alike."""
        first = len(self.scales) + 1
        return dict(zip(names, self.vector[first : first + len(names)].float().unbind(), strict=True))


@dataclass
class Recording:
    """One shape of a step: its static batch and, after some ordinary steps, its recording."""

    graph: Graph
    batch: Batch
    terms: tuple[str, ...]
    warm_up: int  # steps before it is recorded
    tables: StaticTables = field(default_factory=StaticTables)
    steps: int = 0  # taken so far
    is_recorded: bool = False
    last_used: int = 0  # the recorder's count of steps


class StepRecorder:
    """Takes steps of one micro-batch from static memory, and records each shape that comes again."""

    def __init__(
        self,
        take_step: TakeStep,
        optimizer: torch.optim.Optimizer,
        device: torch.device,
        new_graph: Callable[[], Graph],
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.take_step, self.optimizer, self.device = take_step, optimizer, device
        self.new_graph, self.report = new_graph, report
        self.obstacle: str | None = None  # why no step can be recorded, once that is known
        self.warm_up, self.later_warm_up = WARM_UP, LATER_WARM_UP
        self.recordings: dict[Hashable, Recording] = {}
        self.seen: dict[Hashable, int] = {}  # shapes without a recording, and how often they came
        self.steps = 0
        self.scalars = Scalars(optimizer, device)
        for group, lr in zip(optimizer.param_groups, self.scalars.lrs.unbind(), strict=True):
            group["lr"] = lr

    def has_obstacle(self) -> bool:
        """Whether no step can be recorded."""
        return self.obstacle is not None

    def run(self, batch: Batch, totals: Mapping[str, float], lr: float, number: int) -> Sums | None:
        """Take a step; None where it cannot be recorded, and then nothing was changed."""
        if self.obstacle is not None:
            return None
        self.steps += 1
        try:
            recording = self._find_recording(batch, tuple(totals))
            if recording is None:
                return None
            recording.last_used = self.steps
            self.scalars.fill(lr, totals, number)
            return self._take(recording, batch)
        except NotRecordable as reason:
            self._give_up(str(reason))
            return None

    def _find_recording(self, batch: Batch, terms: tuple[str, ...]) -> Recording | None:
        """Return the recording of a batch's shapes; None where it is taken the ordinary way."""
        trainable = tuple(p.requires_grad for group in self.optimizer.param_groups for p in group["params"])
        key = signature(batch), terms, trainable
        if key in self.recordings:
            return self.recordings[key]
        if len(terms) > MAX_TERMS:
            raise NotRecordable(f"a loss of {len(terms)} terms")
        self.seen[key] = self.seen.get(key, 0) + 1
        if len(self.seen) > MAX_UNRECORDED:
            raise NotRecordable("the shapes of batches change from step to step")
        is_repeated = self.seen[key] > 1 or not self.recordings  # the first shape is recorded as soon as possible
        if not is_repeated or not self._make_room():
            return None
        del self.seen[key]
        warm_up = self.later_warm_up if self.recordings else self.warm_up
        self.recordings[key] = Recording(self.new_graph(), allocate_batch(batch, self.device), terms, warm_up)
        return self.recordings[key]

    def _make_room(self) -> bool:
        """Whether another shape can be recorded, if need be in place of one that is no longer used."""
        if len(self.recordings) < MAX_SHAPES:
            return True
        oldest = min(self.recordings, key=lambda key: self.recordings[key].last_used)
        if self.steps - self.recordings[oldest].last_used <= IDLE_STEPS:
            return False
        del self.recordings[oldest]
        return True

    def _take(self, recording: Recording, batch: Batch) -> Sums:
        copy_batch(batch, recording.batch)
        if not recording.is_recorded:
            if recording.graph.hides_host:
                hide_host_values(recording.batch)
            if recording.steps < recording.warm_up:
                recording.steps += 1
                with recording.tables.allocate():
                    return recording.graph.warm_up(lambda: self._take_static(recording))
            self._record(recording)
        return recording.graph.replay()

    def _record(self, recording: Recording) -> None:
        try:
            with recording.tables.record():
                recording.graph.record(lambda: self._take_static(recording))
        except Exception as error:  # whatever a library does that cannot be recorded: the ordinary step will do it
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            cause = _first_error(error)  # the last is that of torch's, which cannot end the recording
            lines = str(cause).strip().splitlines() or [""]
            raise NotRecordable(f"{type(cause).__name__}: {lines[0]}") from error
        recording.is_recorded = True
        if sum(other.is_recorded for other in self.recordings.values()) == 1:
            self.report("recorded: from here on a step is launched as one CUDA graph")

    def _take_static(self, recording: Recording) -> Sums:
        return self.take_step(recording.batch, self.scalars.totals(recording.terms), self.scalars.number())

    def _give_up(self, reason: str) -> None:
        self.obstacle = reason
        self.report(f"steps are not recorded as CUDA graphs, and each kernel is launched by itself: {reason}")
        self.recordings.clear()
        self.optimizer.zero_grad(set_to_none=True)
        for group, lr in zip(self.optimizer.param_groups, self.scalars.lrs.tolist(), strict=True):
            group["lr"] = lr


def _first_error(error: BaseException) -> BaseException:
    """Return the error during whose handling all others were raised."""
    while error.__context__ is not None:
        error = error.__context__
    return error
