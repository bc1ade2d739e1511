"""The contract of an encoder-decoder: states of a target, given its source.

It is a Model: on a text alone it gives the states of its encoder, so that a run can be a start for other tasks. With
`source` it gives those of its decoder, each of which sees its whole source and the target up to itself. Decoding, one
token after the other, goes through `Decoding`, whose states equal those of the whole target.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from torch import Tensor

from etude.models.base import Model
from etude.nn.packed import Packed
from etude.nn.states import States


class Decoding(ABC):
    """The translation of some sources in progress: `beams` hypotheses of each, side by side, all of one length."""

    @abstractmethod
    def step(self, tokens: Tensor) -> Tensor:
        """Read the next token of every hypothesis, (S,), and return its state, (S, D)."""

    @abstractmethod
    def select(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Keep only these hypotheses, (S,), in this order; one may be named twice (beam search).

        `sources` are the sources that stay, in this order, each with `beams` hypotheses of its own; all, if None.
        """

    def new_static(self, sources: int, source_length: int, room: int) -> StaticDecoding | None:
        """An empty decoding of so many sources of up to `source_length` tokens, with room for those of their targets.

        None where a decoding cannot be static. Called after the first step.
        """
        return None

    @property
    @abstractmethod
    def attention(self) -> Tensor | None:
        """Of the last step, to the tokens of each source, (S, longest), zeros behind it; None without attention."""


class StaticDecoding(Decoding):
    """A decoding whose states stay where they are, so that its steps can be recorded on a GPU."""

    @abstractmethod
    def load(self, decoding: Decoding, rows: Tensor, sources: Tensor, length: int) -> None:
        """Take these hypotheses, (S,), of these sources, (G,), from another decoding, after `length` steps of it.

        What this one has room for beyond them computes something that nobody reads.
        """


class Seq2Seq(Model):
    """An encoder and a decoder. `width` is that of the encoder's states, as of any model that reads a text."""

    @abstractmethod
    def forward(
        self, packed: Packed, layers: bool = False, source: Packed | None = None, weights: bool = False
    ) -> States:
        """The decoder's states of the targets `packed`, given `source`; without one, the encoder's of a plain text.

        With `weights`, `States.weights` are those of `alignments` (of the encoder, without a source).
        """

    @abstractmethod
    def start_decoding(self, source: Packed, beams: int = 1, weights: bool = False) -> Decoding:
        """Encode the sources; the decoding has `beams` hypotheses of each, without a token.

        With `weights`, its `attention` is recorded.
        """

    @abstractmethod
    def pair_flops(self, source: np.ndarray, target: np.ndarray) -> int:
        """Of one forward pass over pairs of these lengths: encoder, decoder, and attention between them."""

    @property
    @abstractmethod
    def target_table(self) -> Tensor:
        """(V, D) the vectors of the decoder's input tokens, for a tied output layer."""

    @property
    def target_width(self) -> int:
        """The width of the decoder's states."""
        return self.width

    def alignments(self, packed: Packed, source: Packed) -> list[list[Tensor]]:
        """For each layer that attends to the source, for each pair, the weights (H, T, S); empty without attention."""
        weights = self(packed, source=source, weights=True).weights
        assert weights is not None
        return weights
