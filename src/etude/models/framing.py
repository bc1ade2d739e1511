"""How texts become sequences for a model, and how a sequence becomes one vector.

Each family says itself how its paper frames a text (`Model.frame`):

    both directions   [CLS] a [SEP]            [CLS] a [SEP] b [SEP], segments 0 and 1     (BERT, section 3.2)
    causal            start a extract          start a delimiter b extract                 (GPT-1, section 3.3)
                      with new tokens where a fine-tuning adds them, else those of the tokenizer: start a end
    recurrent         a marker on each side and between the two, as in pre-training; <S> and </S> where it reads letters
    static            the words alone

One vector a sequence: the first state, through the pooler where there is one; the last state of a causal model
(GPT-1's extract token); the mean of recurrent states and of word vectors; the states of both boundaries of two towers
side by side, and of a pair's separator too. `pooling` chooses another.

A pair that is too long loses tokens from the end of its longer text until it fits (BERT's code).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from etude.errors import UserError
from etude.nn.packed import Layout
from etude.nn.precision import upcast

Pooling = Literal["start", "mean", "last", "max", "ends"]


@dataclass(frozen=True)
class FramedText:
    """One framed sequence."""

    tokens: np.ndarray  # (n,) int32
    segments: np.ndarray | None  # (n,) uint8, where the model has segments
    cut: bool  # whether text was lost
    entities: np.ndarray | None = None  # (n,) int64, rows of an entity table, for a model that reads entities


@dataclass(frozen=True)
class Framing:
    """The markers around and between texts, and what a task's head over such a sequence is by default."""

    before: list[int]
    between: list[int]
    after: list[int]
    pooling: Pooling  # natural for the model
    segments: bool = False  # the model has segment embeddings for the first and the second text
    separate: bool = False  # the model cannot relate two texts in one sequence: each is read in its own
    length: int | None = None  # tokens of a sequence at most
    head_scale: float = 1.0  # what a naturally pooled vector is multiplied by before the head
    head_std: float = 0.02  # of the first values of the head over a naturally pooled vector

    def limit(self, length: int | None) -> Framing:
        """The same for sequences of at most `length` tokens; None sets no limit of its own."""
        if length is None or (self.length is not None and self.length <= length):
            return self
        if length <= len(self.before) + len(self.between) + len(self.after) + 1:
            raise UserError(f"Sequences of {length} tokens have no room for text beside their markers.")
        return replace(self, length=length)

    def join(self, texts: Sequence[np.ndarray], entities: Sequence[np.ndarray] | None = None) -> FramedText:
        """The ids of one or two texts as one sequence; `entities`: the row of each token in an entity table."""
        framed = self._join(texts)
        if entities is None:
            return framed
        lengths = self.fit([len(ids) for ids in texts])
        rows = np.zeros(len(framed.tokens), np.int64)  # markers carry none
        starts = [len(self.before), len(self.before) + lengths[0] + len(self.between)]
        for start, length, part in zip(starts, lengths, entities, strict=False):
            rows[start : start + length] = part[:length]
        return replace(framed, entities=rows)

    def _join(self, texts: Sequence[np.ndarray]) -> FramedText:
        lengths = self.fit([len(ids) for ids in texts])
        parts: list[Sequence[int] | np.ndarray] = [self.before, texts[0][: lengths[0]]]
        if len(texts) == 2:
            parts += [self.between, texts[1][: lengths[1]]]
        tokens = np.concatenate([*parts, self.after]).astype(np.int32)
        segments = None
        if self.segments:
            segments = np.zeros(len(tokens), dtype=np.uint8)
            if len(texts) == 2:
                segments[len(self.before) + lengths[0] + len(self.between) :] = 1
        return FramedText(tokens, segments, lengths != [len(ids) for ids in texts])

    def fit(self, lengths: Sequence[int]) -> list[int]:
        """How many tokens of each text fit into a sequence beside its markers."""
        markers = len(self.before) + len(self.after) + len(self.between) * (len(lengths) - 1)
        return fit(lengths, None if self.length is None else self.length - markers)


def fit(lengths: Sequence[int], room: int | None) -> list[int]:
    """How many tokens of one or two texts fit into `room`; the longer text is cut first."""
    if room is None or sum(lengths) <= room:
        return list(lengths)
    if len(lengths) == 1:
        return [room]
    first, second = lengths
    half = room // 2
    if first <= room - half:
        return [first, room - first]
    if second <= half:
        return [room - second, second]
    return [room - half, half]  # of equal lengths the second loses a token first


def pool(last: Tensor, layout: Layout, pooling: Pooling) -> Tensor:
    """(N, D) -> (S, D); no sequence may be empty. Each is reduced alone, so its company changes nothing."""
    bounds = layout.bounds.long()
    if pooling == "start":
        return last[bounds[:-1]]
    if pooling == "last":
        return last[bounds[1:] - 1]
    if pooling == "ends":
        return torch.cat([last[bounds[:-1]], last[bounds[1:] - 1]], dim=-1)  # (S, 2D)
    # unsafe: without a check on the host that would wait for the device
    return torch.segment_reduce(upcast(last), pooling, lengths=bounds.diff(), unsafe=True)
