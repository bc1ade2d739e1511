"""Questions as rows and batches: one row for each window over a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from etude.objectives.base import Batch, Row
from etude.tasks.span.questions import Question
from etude.tasks.span.windows import Windows


@dataclass
class WindowRow(Row):
    span: tuple[int, int] | None = None  # places of the first and last token of the answer; None: it is not here
    null: int = 0  # the place of the null answer


@dataclass
class WindowedQuestion:
    """One question: its windows as sequences, and the way back to the text."""

    question: Question
    windows: Windows
    before: int  # tokens before the text in every window
    offsets: np.ndarray  # (tokens, 2)
    sequences: list[np.ndarray]
    spans: list[tuple[int, int] | None]


@dataclass
class WindowRows:
    questions: list[WindowedQuestion]
    segments: bool
    last: bool  # whether the null answer is the last token
    shuffle: bool = True
    row_tokens: int | None = None
    places: list[tuple[int, int]] = field(default_factory=list)  # (question, window) of each row

    def __post_init__(self) -> None:
        self.places = [(i, j) for i, windowed in enumerate(self.questions) for j in range(len(windowed.sequences))]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> WindowRow:
        question, window = self.places[index % len(self)]
        windowed = self.questions[question]
        tokens = windowed.sequences[window]
        segments = (np.arange(len(tokens)) >= windowed.before).astype(np.uint8) if self.segments else None
        bounds = np.array([0, len(tokens)], dtype=np.int32)
        null = len(tokens) - 1 if self.last else 0
        return WindowRow(index, tokens, bounds, segments, span=windowed.spans[window], null=null)


@dataclass
class QuestionRows:
    """One row for each question, its windows as sequences: what a linear probe reads."""

    questions: list[WindowedQuestion]
    segments: bool
    shuffle: bool = False
    row_tokens: int | None = None

    def __len__(self) -> int:
        return len(self.questions)

    def __getitem__(self, index: int) -> WindowRow:
        windowed = self.questions[index % len(self)]
        tokens = np.concatenate(windowed.sequences)
        bounds = np.concatenate([[0], np.cumsum([len(each) for each in windowed.sequences])]).astype(np.int32)
        segments = None
        if self.segments:
            parts = [np.arange(len(each)) >= windowed.before for each in windowed.sequences]
            segments = np.concatenate(parts).astype(np.uint8)
        return WindowRow(index, tokens, bounds, segments)

    def part(self, numbers: Sequence[int]) -> QuestionRows:
        return QuestionRows([self.questions[number] for number in numbers], self.segments)


@dataclass
class WindowBatch(Batch):
    starts: Tensor | None = None  # (S,) places in the sequence
    ends: Tensor | None = None
    nulls: Tensor | None = None  # (S,) the place of the null answer
    absent: Tensor | None = None  # (S,) float32, 1 where the window holds no answer
    row_lengths: np.ndarray | None = None  # (R,) tokens of each row, on the host


def by_sequence(scores: Tensor, batch: Batch) -> Tensor:
    """(N, 2) -> (S, longest, 2), -inf behind the end of a sequence; sequences of padding are left out."""
    bounds = batch.layout.bounds[: batch.sequences + 1].long()  # (S+1,)
    places = torch.arange(batch.layout.longest, device=scores.device)  # (L,)
    tokens = bounds[:-1, None] + places  # (S, L)
    return scores[tokens.clamp(max=len(scores) - 1)].masked_fill((tokens >= bounds[1:, None])[..., None], -torch.inf)
