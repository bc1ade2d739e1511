"""Beam search on a GPU: a step of decoder and search is recorded and replayed, because launching takes longer than it.

A recording has static shapes: a number of sources and room for a number of tokens. So a search goes in stages. Each
begins with a step as it is written; the next is recorded, and replayed until the room is full or half of the sources
have ended. Then those leave, the room doubles if need be, and the next stage begins. What the host has to know, whether
sources have ended, it asks every few steps; a source that has ended stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from etude.models.seq2seq import Decoding
from etude.nn.cuda_graphs import Graph, Tensors, try_record
from etude.tasks.translate.search import Beams, Hypothesis, search_targets

ROOM = 16  # tokens of the first stage
LOOK_EVERY = 4  # steps between looks at what has ended


def search_recorded(
    decoding: Decoding, log_probs: Callable[[Tensor], Tensor], beams: Beams, new_graph: Callable[[], Graph]
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """Yield what `search_targets` does; where the steps of a decoding cannot be recorded it is that."""

    def take_step() -> Tensors:
        decoding.select(beams.extend(log_probs(decoding.step(beams.tokens)), decoding.attention))
        return {"is_done": beams.is_done}

    limit, length, room = int(beams.limits.max()), 1, 0
    is_recordable = True
    take_step()  # projects the sources
    while True:
        yield from _drop_done(decoding, beams)
        if not len(beams.numbers):
            return
        if length >= room:
            room = min(max(ROOM, 2 * room), limit)
            if not decoding.make_static(length, room):
                yield from search_targets(decoding, log_probs, beams)
                return
        sources, graph = len(beams.numbers), new_graph()
        graph.warm_up(take_step)
        length += 1
        is_recorded = is_recordable and length < room and try_record(graph, take_step, "the steps of this search")
        is_recordable = is_recordable and (is_recorded or length >= room)
        while length < room:
            if length % LOOK_EVERY == 0 and 2 * int(beams.is_done.sum()) >= sources:
                break
            if is_recorded:
                graph.replay()
            else:
                take_step()
            length += 1


def _drop_done(decoding: Decoding, beams: Beams) -> Iterator[tuple[int, list[Hypothesis]]]:
    """Take out the sources whose search has ended."""
    if not bool(beams.is_done.any()):
        return
    rows = torch.arange(len(beams.tokens), device=beams.tokens.device).view(len(beams.numbers), -1)
    results, staying = beams.drop_done()
    yield from results.items()
    if len(staying):
        decoding.select(rows[staying].view(-1), staying)
