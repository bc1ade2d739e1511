"""How texts become sequences for a model, as its paper has it, and how a sequence becomes one vector.

    both directions   [CLS] a [SEP]            [CLS] a [SEP] b [SEP], segments 0 and 1     (BERT, section 3.2)
    causal            start a end              start a delimiter b end                     (GPT-1, section 3.3)
    recurrent         a marker on each side and between the two, as in pre-training; <S> and </S> where it reads letters
    static            the words alone

One vector a sequence: the first state, through the pooler where there is one; the last state of a causal model
(GPT-1's extract token); the mean of recurrent states and of word vectors; the states of both boundaries of two towers
side by side, and of a pair's separator too. `pooling` chooses another.

A pair that is too long loses tokens from the end of its longer text until it fits (BERT's code).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from etude.errors import UserError
from etude.models.recurrent import Recurrent
from etude.models.static import Static
from etude.models.two_tower import TwoTower
from etude.nn.packed import Layout
from etude.nn.precision import wide
from etude.text.tokenizer.special_tokens import Specials

Pooling = Literal["start", "mean", "last", "max", "ends"]


@dataclass(frozen=True)
class Framed:
    """One framed sequence."""

    tokens: np.ndarray  # (n,) int32
    segments: np.ndarray | None  # (n,) uint8, where the model has segments
    cut: bool  # whether text was lost


@dataclass(frozen=True)
class Frame:
    before: list[int]
    between: list[int]
    after: list[int]
    pooling: Pooling  # what suits the model
    segments: bool  # whether the model tells first and second text apart
    length: int | None  # tokens of a sequence at most
    apart: bool  # whether the model cannot relate two texts in one sequence: each is read alone

    @classmethod
    def of(cls, model: Any, special: Specials, length: int | None = None) -> Frame:
        limits = [limit for limit in (length, model.context) if limit is not None]
        frame = cls(*_markers(inner(model), special), length=min(limits, default=None), apart=_apart(inner(model)))
        if frame.length is not None and frame.length <= len(frame.before) + len(frame.between) + len(frame.after) + 1:
            raise UserError(f"Sequences of {frame.length} tokens have no room for text beside their markers.")
        return frame

    def join(self, texts: Sequence[np.ndarray]) -> Framed:
        """The ids of one or two texts as one sequence."""
        markers = len(self.before) + len(self.after) + len(self.between) * (len(texts) - 1)
        kept = fit([len(ids) for ids in texts], None if self.length is None else self.length - markers)
        parts: list[Any] = [self.before, texts[0][: kept[0]]]
        if len(texts) == 2:
            parts += [self.between, texts[1][: kept[1]]]
        tokens = np.concatenate([*parts, self.after]).astype(np.int32)
        segments = None
        if self.segments:
            segments = np.zeros(len(tokens), dtype=np.uint8)
            if len(texts) == 2:
                segments[len(self.before) + kept[0] + len(self.between) :] = 1
        return Framed(tokens, segments, any(k < len(ids) for k, ids in zip(kept, texts, strict=True)))


def inner(model: Any) -> Any:
    """The model itself, under the wrapper that picks its layers."""
    return getattr(model, "wrapped", model)


def fit(lengths: Sequence[int], room: int | None) -> list[int]:
    """How much of each text is kept, the longer one giving way first."""
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


def _apart(model: Any) -> bool:
    return isinstance(model, (Static, Recurrent))


def _markers(model: Any, special: Specials) -> tuple[list[int], list[int], list[int], Pooling, bool]:
    if isinstance(model, Static):
        return [], [], [], "mean", False
    if isinstance(model, Recurrent):
        marker = special.end if special.end is not None else special.separator
        around = [] if marker is None else [marker]
        before = around if model.settings.characters is None or special.start is None else [special.start]
        return before, around, around, "mean", False
    if isinstance(model, TwoTower):
        return _between_boundaries(model, special)
    start = [] if special.start is None else [special.start]
    if model.settings.direction == "causal":
        if special.end is None:
            raise UserError("A causal model is read out at an end token, and this tokenizer has none.")
        # GPT-2's tokenizer has neither a start token (the text itself starts) nor a delimiter (the end token serves)
        between = special.end if special.separator is None else special.separator
        return start, [between], [special.end], "last", False
    if special.start is None or special.separator is None:
        raise UserError("An encoder reads [CLS] text [SEP], and this tokenizer lacks a start token or a separator.")
    return start, [special.separator], [special.separator], "start", model.settings.segments > 1


def _between_boundaries(model: TwoTower, special: Specials) -> tuple[list[int], list[int], list[int], Pooling, bool]:
    """The symbol of pre-training on both sides; another between two texts, which is new to the model."""
    around = special.end if special.end is not None else special.separator
    if around is None:
        raise UserError("A two-tower model reads text between two boundary symbols, and this tokenizer has none.")
    # by letters, separator and end are the same mark (text/tokenizer/char_ids.py); that of a start is another
    between = special.separator if model.settings.characters is None else special.start
    between = around if between is None else between
    return [around], [between], [around], "ends", model.settings.segments > 1


def pool(last: Tensor, layout: Layout, how: Pooling) -> Tensor:
    """(N, D) -> (S, D); no sequence may be empty. Each is reduced alone, so its company changes nothing."""
    bounds = layout.bounds.long()
    if how == "start":
        return last[bounds[:-1]]
    if how == "last":
        return last[bounds[1:] - 1]
    if how == "ends":
        return torch.cat([last[bounds[:-1]], last[bounds[1:] - 1]], dim=-1)  # (S, 2D)
    return torch.segment_reduce(wide(last), how, lengths=bounds.diff(), unsafe=True)  # unsafe: no check that would wait
