"""Packed sequences side by side, (steps, S): what a recurrent layer reads where its shapes have to be static.

On a CPU a recurrent layer computes nothing for padding: sequences are sorted, and a step has as many rows as there are
sequences with a token left (nn/schedule.py). On a GPU a step of a few hundred rows costs what its launches cost. There
all sequences of a batch take the same number of steps, the layout's `longest`, and are masked behind their ends, so
that one recording serves every batch of that shape. All of it is computed from bounds on the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from etude.nn.packed import Layout


@dataclass
class Rectangle:
    """Where each token of a packed batch stands among steps and sequences, and back."""

    tokens: Tensor  # (T, S) int64, the packed token that a sequence reads at a step; any, behind its end
    is_inside: Tensor  # (T, S) bool, whether there is one
    places: Tensor  # (N,) int64, where each packed token stands in (T * S,); any, behind the last bound

    @classmethod
    def from_layout(cls, layout: Layout, tokens: int, reverse: bool = False) -> Rectangle:
        """Of a rectangular layout over so many packed tokens; computed once for each batch and direction."""
        key = ("rectangle", reverse)
        if key not in layout.cache:
            layout.cache[key] = cls._build(layout, tokens, reverse)
        cached: Rectangle = layout.cache[key]
        return cached

    @classmethod
    def _build(cls, layout: Layout, tokens: int, reverse: bool) -> Rectangle:
        bounds = layout.bounds.long()
        starts, lengths = bounds[:-1], bounds.diff()  # (S,)
        steps = torch.arange(layout.longest, device=bounds.device)[:, None]  # (T, 1)
        positions = lengths - 1 - steps if reverse else steps
        numbers = torch.arange(tokens, device=bounds.device)  # (N,)
        sequences = torch.searchsorted(bounds[1:], numbers, right=True).clamp(max=len(starts) - 1)
        steps_of_tokens = numbers - starts[sequences]
        if reverse:
            steps_of_tokens = lengths[sequences] - 1 - steps_of_tokens
        places = steps_of_tokens.clamp(0, layout.longest - 1) * len(starts) + sequences
        return cls((starts + positions).clamp(0, tokens - 1), steps < lengths, places)

    def spread(self, values: Tensor) -> Tensor:
        """(N, ...) -> (T, S, ...), with values of any token behind the ends."""
        return values[self.tokens]

    def pack(self, values: Tensor) -> Tensor:
        """(T, S, ...) -> (N, ...)."""
        return values.flatten(0, 1)[self.places]
