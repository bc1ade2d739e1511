"""Beam search on a GPU: a step of decoder and search is recorded and replayed, because launching takes longer than it.

A recording has static shapes: a number of sources, their length, and room for tokens of targets. So a search goes in
stages: the tensors of one are copied to those of the next, where the room is full, or where so many sources have ended
that a quarter of the rows would do. Numbers and lengths are rounded up, so that later sources find the stages of
earlier ones, recorded already. What the host has to know, whether sources have ended, it asks every few steps; a source
that has ended stays as it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from etude.models.seq2seq import Decoding, Seq2Seq, StaticDecoding
from etude.nn.cuda_graphs import Graph, Tensors, find_weights, try_record
from etude.nn.top_tokens import LogProbs
from etude.tasks.translate.search import Beams, Hypothesis, Search, search_targets

ROOM = 32  # tokens of targets in the first stage
LOOK_EVERY = 4  # steps between looks at what has ended
SHRINK = 4  # a stage ends when a next one would have so many times fewer rows
LENGTH_STEP = 16  # lengths are rounded up to a multiple of it
STAGES = 12  # that are kept, those used last; each has caches of its own


class Shape(NamedTuple):
    """What a stage is made for."""

    search: Search
    sources: int  # G
    source_length: int
    room: int  # for tokens of targets, in the decoder
    limit: int  # of tokens of targets, in the search
    dtype: torch.dtype | None  # of autocast


class Stage:
    """Decoding and beams of one shape, and the recording of their step."""

    def __init__(
        self,
        decoding: StaticDecoding,
        beams: Beams,
        log_probs: Callable[[Tensor], Tensor | LogProbs],
        graph: Graph,
        shape: Shape,
    ) -> None:
        self.decoding, self.beams, self.log_probs, self.graph, self.shape = decoding, beams, log_probs, graph, shape
        self.is_warm = self.is_recorded = False

    def has_few_left(self) -> bool:
        """Whether a smaller stage would do; waits for the GPU."""
        left = self.shape.sources - int(self.beams.is_done.sum())
        return not left or SHRINK * _round_up_rows(left) <= self.shape.sources

    def take_step(self) -> Tensors:
        """One more token of every hypothesis."""
        with self._autocast():
            states = self.decoding.step(self.beams.tokens)
            self.decoding.select(self.beams.extend(self.log_probs(states), self.decoding.attention))
        return {"is_done": self.beams.is_done}

    def _autocast(self) -> AbstractContextManager[object]:
        """Without the cache of cast weights, which would be freed before the recording."""
        dtype, device = self.shape.dtype, self.beams.tokens.device.type
        return nullcontext() if dtype is None else torch.autocast(device, dtype, cache_enabled=False)


class SearchRecorder:
    """Searches targets in recorded stages and keeps these, for one model whose weights stay where they are."""

    def __init__(
        self, model: Seq2Seq, log_probs: Callable[[Tensor], Tensor | LogProbs], new_graph: Callable[[], Graph]
    ) -> None:
        """`log_probs` turns states (S, D) into log-probabilities (S, V) of the next token."""
        self.log_probs, self.new_graph, self.max_length = log_probs, new_graph, model.max_length
        self.weights = find_weights(model)
        self.stages: dict[Shape, Stage] = {}  # the one used last is the last
        self.is_recordable = True
        self.lock = threading.Lock()  # the memory of a stage belongs to one search at a time

    def fits(self, model: Seq2Seq) -> bool:
        """Whether the weights of a model lie where recordings read them."""
        return self.weights == find_weights(model)

    def search(self, decoding: Decoding, beams: Beams) -> dict[int, list[Hypothesis]]:
        """The best targets of each source by its number: what `search_targets` yields."""
        if not self.is_recordable:
            return dict(search_targets(decoding, self.log_probs, beams))
        with self.lock:
            return self._search(decoding, beams)

    def _search(self, decoding: Decoding, beams: Beams) -> dict[int, list[Hypothesis]]:
        search, device = beams.search, beams.tokens.device
        source_length = _round_up(int(beams.lengths.max()))
        limit = min(_round_up(int(beams.limits.max())), self.max_length)
        length, room, results = 1, min(ROOM, limit), dict[int, list[Hypothesis]]()
        # a step as it is written projects the sources
        decoding.select(beams.extend(self.log_probs(decoding.step(beams.tokens)), decoding.attention))
        while True:
            done, staying = beams.take_done()
            results |= done
            if not len(staying):
                return results
            room = room if length < room else min(2 * room, limit)
            dtype = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
            shape = Shape(search, _round_up_rows(len(staying)), source_length, room, limit, dtype)
            stage = self._get_stage(shape, decoding, beams)
            rows = torch.arange(len(beams.tokens), device=device).view(-1, search.beams)[staying].view(-1)
            if stage is None:
                beams.keep(staying)
                decoding.select(rows, staying)
                return results | dict(search_targets(decoding, self.log_probs, beams))
            stage.decoding.load(decoding, rows, staying, length)
            stage.beams.load(beams, staying)
            decoding, beams = stage.decoding, stage.beams
            length = self._run(stage, length)

    def _get_stage(self, shape: Shape, decoding: Decoding, beams: Beams) -> Stage | None:
        """The stage of a shape; None where there is no static decoding."""
        stage = self.stages.pop(shape, None)
        if stage is None:
            if len(self.stages) >= STAGES:
                self.stages.pop(next(iter(self.stages)))
            with torch.inference_mode(False):  # a later search may write to it without that mode
                static = decoding.new_static(shape.sources, shape.source_length, shape.room)
                if static is None:
                    return None
                targets = beams.new_static(shape.sources, shape.limit)
            stage = Stage(static, targets, self.log_probs, self.new_graph(), shape)
        self.stages[shape] = stage
        return stage

    def _run(self, stage: Stage, length: int) -> int:
        """Take steps until the room is full or few sources are left; return the length of all hypotheses."""
        while length < stage.shape.room:
            if length % LOOK_EVERY == 0 and stage.has_few_left():
                break
            if stage.is_warm and not stage.is_recorded and self.is_recordable:
                stage.is_recorded = try_record(stage.graph, stage.take_step, "the steps of this search")
                self.is_recordable = stage.is_recorded
            if stage.is_recorded:
                stage.graph.replay()
            else:
                stage.graph.warm_up(stage.take_step)
                stage.is_warm = True
            length += 1
        return length


def _round_up(length: int) -> int:
    return -(-length // LENGTH_STEP) * LENGTH_STEP


def _round_up_rows(count: int) -> int:
    """The power of two that is not below, and not below 4."""
    return max(4, 1 << (count - 1).bit_length())
