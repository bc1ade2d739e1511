"""Tagged sentences as rows and batches: pieces, units that carry tags, inputs of a network of the tagger's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from etude.nn.losses import IGNORE
from etude.nn.packed import Layout
from etude.objectives.base import Batch, Row
from etude.tasks.tag.word_pieces import FramedSentence, Pieces


@dataclass
class NetworkInputs:
    """Of the units of one sentence."""

    surfaces: list[str]
    words: np.ndarray  # (u,) int64, rows of the network's own word vectors
    features: np.ndarray  # (u, F) int64


@dataclass
class TagRow(Row):
    units: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # (u,) the token of each unit
    tags: np.ndarray | None = None  # (u,) int64
    inputs: NetworkInputs | None = None  # where the tagger has a network of its own


@dataclass
class TagRows:
    """Row i is sentence i; numbers at and beyond the last are later epochs."""

    pieces: list[Pieces]
    framed: list[FramedSentence]
    tags: list[np.ndarray] | None  # numbers of the tags of the units that are read
    segments: bool
    inputs: list[NetworkInputs] | None = None
    shuffle: bool = True
    row_tokens: int | None = None

    def part(self, numbers: Sequence[int]) -> TagRows:
        """Some of them, in the order given."""
        chosen = list(numbers)
        return replace(
            self,
            pieces=[self.pieces[n] for n in chosen],
            framed=[self.framed[n] for n in chosen],
            tags=None if self.tags is None else [self.tags[n] for n in chosen],
            inputs=None if self.inputs is None else [self.inputs[n] for n in chosen],
        )

    def __len__(self) -> int:
        return len(self.framed)

    def __getitem__(self, index: int) -> TagRow:
        number = index % len(self)
        sentence = self.framed[number]
        segments = np.zeros(len(sentence.tokens), np.uint8) if self.segments else None
        tags = None if self.tags is None else self.tags[number]
        inputs = None if self.inputs is None else self.inputs[number]
        return TagRow(index, sentence.tokens, sentence.bounds, segments, units=sentence.units, tags=tags, inputs=inputs)


@dataclass
class TagBatch(Batch):
    units: Tensor | None = None  # (W,) int64, the token of each unit
    words: Layout | None = None  # sentences over units
    tags: Tensor | None = None  # (W,) int64
    word_ids: Tensor | None = None  # (W,) int64, for a network of the tagger's own: rows of its word vectors
    features: Tensor | None = None  # (W, F) int64
    char_ids: Tensor | None = None  # (U, length) of the different units
    char_rows: Tensor | None = None  # (W,) which of them each unit is

    def pad(self, sizes: Sequence[int], longest: int) -> Self:
        """As many units as tokens, those of padding without a tag; their layout stays that of the real ones."""
        padded = super().pad(sizes, longest)
        assert self.units is not None and self.words is not None
        free = torch.arange(len(self.units), len(padded.tokens))  # a token each: none is read by two of them
        padded.units = torch.cat([self.units, free])
        padded.words = replace(self.words, longest=longest)
        if self.tags is not None:
            padded.tags = F.pad(self.tags, (0, len(free)), value=IGNORE)
        return padded
