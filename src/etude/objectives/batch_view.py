"""A batch as a person reads it: what the model is shown, and what it is asked at each place.

Every objective has such a view of its batches (`Objective.view_batch`): by default the tokens of each sequence; more
where there is something to tell, such as which tokens were masked. Numbers stand for tokens, or for the entities of a
graph; whoever prints a view knows their names (view/batch.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

import numpy as np
from torch import Tensor

from etude.nn.losses import IGNORE
from etude.nn.packed import Packed

Form = Literal["text", "aligned", "list"]
Words = tuple[str, str]  # in English and in Korean

MARKS: dict[str, Words] = {
    "masked": ("hidden behind the mask token", "마스크 토큰으로 가림"),
    "random": ("replaced by a random token", "무작위 토큰으로 바꿈"),
    "kept": ("left as it is, and predicted all the same", "그대로 두고 예측"),
    "replaced": ("replaced by a draw of the generator", "생성기가 뽑은 토큰으로 바꿈"),
    "same": ("drawn by the generator, which hit the original", "생성기가 뽑았으나 원래 토큰과 같음"),
}


@dataclass(frozen=True)
class TokenView:
    """One token, or one item of a list, as the model reads it."""

    token: int
    mark: str = ""  # a key of MARKS; empty where nothing was done to it
    targets: tuple[int | None, ...] = ()  # what is asked here; None where one of several questions is not asked
    relation: int | None = None  # of a triple
    entity: int | None = None  # that a token is a mention of
    note: str = ""


@dataclass(frozen=True)
class SequenceView:
    """One sequence: text with marks, columns of what is read and predicted, or a list of items."""

    tokens: Sequence[TokenView]
    form: Form = "text"
    name: str = ""  # what it is, such as "source"; empty where there is one kind
    note: Words = ("", "")  # what is asked of it as a whole
    lines: tuple[Words, ...] = ()  # aligned: the names of the lines, what is read first
    joint: Words = ("", "")  # list: what stands between an item and its targets


@dataclass(frozen=True)
class BatchView:
    """What a batch asks, and its sequences."""

    asks: Words
    sequences: Sequence[SequenceView]
    fields: Mapping[str, str] = field(default_factory=dict)  # tensors that the view says nothing more of, by name

    @property
    def marks(self) -> list[str]:
        """The marks in use."""
        used = {token.mark for sequence in self.sequences for token in sequence.tokens}
        return [mark for mark in MARKS if mark in used]


READ: Words = ("reads", "입력")
PREDICTED: Words = ("predicts", "예측")


def spans(packed: Packed, padding: int = 0) -> list[tuple[int, int]]:
    """(start, stop) of each sequence that has tokens; `padding`: sequences at the end that have no content."""
    host = packed.layout.host
    host = host[: len(host) - padding].tolist()
    return [(start, stop) for start, stop in pairwise(host) if stop > start]


def view_plain(batch: Packed, padding: int = 0) -> BatchView:
    """The tokens of each sequence, and the names and shapes of what the objective adds to a batch."""
    tokens = batch.tokens.tolist()
    sequences = [SequenceView([TokenView(token) for token in tokens[a:b]]) for a, b in spans(batch, padding)]
    known = {"tokens", "positions", "segments"}
    fields = {
        name: f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
        for name, value in vars(batch).items()
        if isinstance(value, Tensor) and name not in known
    }
    return BatchView(("the tokens of each sequence", "각 시퀀스의 토큰"), sequences, fields)


def view_aligned(
    packed: Packed,
    targets: Sequence[Tensor],
    names: Sequence[Words] = (PREDICTED,),
    name: str = "",
    padding: int = 0,
) -> list[SequenceView]:
    """Sequences with one or several lines of targets, (N,) each, IGNORE where nothing is asked."""
    tokens = packed.tokens.tolist()
    labels = [[None if target == IGNORE else target for target in line.tolist()] for line in targets]
    return [
        SequenceView(
            [TokenView(tokens[at], targets=tuple(line[at] for line in labels)) for at in range(start, stop)],
            "aligned",
            name,
            lines=(READ, *names),
        )
        for start, stop in spans(packed, padding)
    ]


def view_slots(
    packed: Packed,
    index: Tensor,
    targets: Tensor,
    mark: Callable[[int, int], str],
    notes: Sequence[Words] = (),
    padding: int = 0,
) -> list[SequenceView]:
    """Text in which some places are predicted, `index` and `targets` (M,); `mark` names what (read, target) is.

    `notes`: of each sequence, in their order.
    """
    ids = packed.tokens.tolist()
    used = targets != IGNORE
    labels = dict(zip(index[used].tolist(), targets[used].tolist(), strict=True))
    sequences = []
    for number, (start, stop) in enumerate(spans(packed, padding)):
        views = [
            TokenView(ids[at], mark(ids[at], labels[at]), (labels[at],)) if at in labels else TokenView(ids[at])
            for at in range(start, stop)
        ]
        sequences.append(SequenceView(views, note=notes[number] if notes else ("", "")))
    return sequences


def view_list(items: Iterable[TokenView], joint: Words, bounds: np.ndarray | None = None) -> list[SequenceView]:
    """Items under one another; `bounds` (S+1,): where they are cut into several lists."""
    flat = list(items)
    ends = [0, len(flat)] if bounds is None else bounds.tolist()
    return [SequenceView(flat[a:b], "list", joint=joint) for a, b in pairwise(ends) if b > a]


def cut_view(view: BatchView, sequences: int) -> BatchView:
    """The same with the first sequences alone."""
    return replace(view, sequences=view.sequences[:sequences])
