"""Steps of generation on a GPU, recorded and replayed: a token costs the GPU less than launching its kernels.

All sequences get one token each. A recording holds the addresses of the cache's buffers, so these belong to a stage:
static buffers for a number of sequences with some room, and a recording of a step on them. A text moves to a stage with
more room when its own is full. Stages stay with the model, so later texts find them recorded: the first steps of a new
one run as they are written, the next is recorded. What a recording cannot do (prompts, a context that slides) is done
the ordinary way, on the same buffers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from etude.models.base import Model
from etude.nn.attention.kv_cache import KVCache
from etude.nn.attention.static_step import StaticStep
from etude.nn.cuda_graphs import Graph, Tensors, find_weights, try_record
from etude.nn.states import States

WARM_UP = 2  # steps as they are written, before one is recorded
ROOM = 256  # tokens of each sequence in the smallest stage; a step reads the tokens that there are, not the room
KEPT_BYTES = 2**32  # of keys and values in stages that nobody uses, at most
KEPT_SHARE = 8  # and one part of a GPU's memory in so many


class Stage:
    """A step on static buffers, and its recording."""

    def __init__(self, step: StaticStep, graph: Graph) -> None:
        self.step, self.graph = step, graph
        self.count = 0  # steps so far
        self.is_recorded = False

    @property
    def bytes(self) -> int:
        return sum(buffer.nbytes for buffers in self.step.buffers for buffer in buffers)


class StepRecorder:
    """Records steps of one model whose weights stay where they are, and keeps what it recorded."""

    def __init__(
        self,
        model: Model,
        objective: nn.Module,
        logits: Callable[[States], Tensor],
        device: torch.device,
        new_graph: Callable[[], Graph],
    ) -> None:
        """`logits` are those of the next tokens, (S, V), from states (S, D), by weights of model and objective."""
        self.model, self.logits, self.device, self.new_graph = model, logits, device, new_graph
        self.weights = find_weights(model, objective)
        self.is_recordable = True
        self.kept_bytes = KEPT_BYTES
        if device.type == "cuda":
            self.kept_bytes = min(KEPT_BYTES, torch.cuda.mem_get_info(device)[1] // KEPT_SHARE)
        self.unused: list[Stage] = []  # the one used last is the last
        self._lock = threading.Lock()

    def fits(self, model: Model, objective: nn.Module) -> bool:
        """Whether the weights of a model and its objective lie where recordings read them."""
        return self.weights == find_weights(model, objective)

    def take_stage(self, cache: KVCache, room: int) -> Stage:
        """A stage for the sequences of a cache, which belongs to the caller until it is returned."""
        with self._lock:
            for number, stage in enumerate(self.unused):
                if stage.step.suits(cache, room):
                    return self.unused.pop(number)
        with torch.inference_mode(False):  # whoever comes next may write to it without that mode
            return Stage(StaticStep(cache, room, self.device), self.new_graph())

    def return_stage(self, stage: Stage) -> None:
        """Keep a stage for others."""
        with self._lock:
            self.unused.append(stage)
            while sum(each.bytes for each in self.unused) > self.kept_bytes:
                self.unused.pop(0)

    def run(self, stage: Stage) -> Tensor | None:
        """Take the step of a stage: logits (S, V), valid until the next; None where steps cannot be recorded."""

        def take_step() -> Tensors:
            states: States = self.model(stage.step.pack(), cache=stage.step)
            return {"logits": self.logits(states)}

        stage.count += 1
        if stage.count <= WARM_UP:
            return stage.graph.warm_up(take_step)["logits"]
        if not stage.is_recorded:
            stage.is_recorded = self.is_recordable = try_record(stage.graph, take_step, "the steps of generation")
        return stage.graph.replay()["logits"] if stage.is_recorded else None


class RecordedSteps:
    """Takes steps of one token for each sequence of a cache, on a stage that it holds meanwhile."""

    def __init__(self, recorder: StepRecorder, cache: KVCache) -> None:
        self.recorder, self.cache = recorder, cache
        self.stage: Stage | None = None
        self.last_place = 0  # of the longest sequence, also of one that has ended since the last `run`

    @property
    def is_possible(self) -> bool:
        """Whether a step of one token each can be recorded."""
        return self.recorder.is_recordable and bool(self.cache.keys)

    @property
    def steps_left(self) -> int:
        """Further steps for which the stage has room."""
        return 0 if self.stage is None else self.stage.step.room - 1 - self.last_place

    def run(self, tokens: np.ndarray, places: np.ndarray) -> Tensor | None:
        """Logits (S, V) after one more token of each sequence, valid until the next step; None: not by a recording."""
        self.last_place = int(places.max())
        stage = self._find_stage()
        stage.step.fill(tokens, places)
        return self.recorder.run(stage)

    def advance(self, rows: Tensor, tokens: Tensor) -> Tensor | None:
        """The same for tokens that the device has just chosen: (S,) of these rows; what others get does not matter."""
        assert self.stage is not None
        step = self.stage.step
        step.tokens.index_copy_(0, rows, tokens)
        step.places.add_(1)
        self.last_place += 1
        return self.recorder.run(self.stage)

    def close(self) -> None:
        """Leave the stage to others; the cache must not be used any longer."""
        if self.stage is not None:
            self.recorder.return_stage(self.stage)
            self.stage = None

    def _find_stage(self) -> Stage:
        """The stage whose buffers the cache has; another where these are full, or were replaced by a prompt."""
        if self.stage is not None and self.stage.step.uses(self.cache) and self.last_place < self.stage.step.room:
            return self.stage
        needed = max(ROOM, self.last_place + 1, self.cache.keys[0].shape[1])
        stage = self.recorder.take_stage(self.cache, 1 << (needed - 1).bit_length())
        self.cache.move(*zip(*stage.step.buffers, strict=True))
        self.close()
        self.stage = stage
        return stage
