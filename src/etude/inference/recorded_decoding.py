"""Steps of generation on a GPU, recorded and replayed: a token costs the GPU less than launching its kernels.

All sequences get one token each. The buffers of the cache grow by doubling (nn/attention/kv_cache.py), and a recording
holds their addresses, so there is one for each size: the first steps after a change run as they are written, the next
is recorded. What a recording cannot do (prompts, a context that slides) is done the ordinary way, on the same buffers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from etude.models.base import Model
from etude.nn.attention.kv_cache import KVCache
from etude.nn.attention.static_step import StaticStep
from etude.nn.cuda_graphs import Graph, Tensors, try_record
from etude.nn.states import States

WARM_UP = 2  # steps as they are written, before one of the same buffers is recorded


class DecodingRecorder:
    """Takes steps of one token for each sequence of a cache."""

    def __init__(
        self,
        model: Model,
        logits: Callable[[States], Tensor],
        cache: KVCache,
        device: torch.device,
        new_graph: Callable[[], Graph],
    ) -> None:
        """`logits` are those of the next tokens, (S, V), from states (S, D)."""
        self.model, self.logits, self.cache, self.device = model, logits, cache, device
        self.new_graph = new_graph
        self.step: StaticStep | None = None
        self.graph: Graph | None = None  # of this step
        self.count = 0  # steps that were taken with it
        self.is_recorded = False
        self.is_recordable = True

    def run(self, tokens: np.ndarray, places: np.ndarray) -> Tensor | None:
        """Logits (S, V) after one more token of each sequence, valid until the next call; None: not by a recording."""
        if not self.is_recordable or not self.cache.keys or places.max() >= self.cache.keys[0].shape[1]:
            return None  # the ordinary step makes room
        if self.step is None or not self.step.uses(self.cache):
            self.step, self.graph = StaticStep(self.cache, self.device), self.new_graph()
            self.count, self.is_recorded = 0, False
        assert self.graph is not None
        self.step.fill(tokens, places)
        self.count += 1
        if self.count <= WARM_UP:
            return self.graph.warm_up(self._take_step)["logits"]
        if not self.is_recorded and not self._record(self.graph):
            return None
        return self.graph.replay()["logits"]

    def _take_step(self) -> Tensors:
        assert self.step is not None
        states: States = self.model(self.step.pack(), cache=self.step)
        return {"logits": self.logits(states)}

    def _record(self, graph: Graph) -> bool:
        """Record a step; False from then on where that is not possible."""
        self.is_recorded = self.is_recordable = try_record(graph, self._take_step, "the steps of generation")
        if not self.is_recordable:
            self.step, self.graph = None, None
        return self.is_recorded
