"""Recurrent language models that read in both directions: the biLM of ELMo.

Peters et al. 2018, sections 3.1 and 3.4. Two stacks of LSTMs with projection and clipping, one reading each
way, over one token table. From the second layer on, a layer adds its input to its output (the only residual
there is). With dropout, that input is the dropped one, as in the released biLM [code].

States of a layer are [forward ; backward], so they are twice as wide as `model.width` says; those of the
embedding are the token vector twice, as ELMo mixes them.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from etude.errors import UserError
from etude.nn.embedding import Embedding
from etude.nn.lstm import LSTM, State
from etude.nn.packed import Packed
from etude.nn.states import States
from etude.settings import Strict

Direction = Literal["forward", "backward"]


class Settings(Strict):
    layers: int = Field(default=2, ge=1)
    width: int = Field(ge=1, description="of token vectors and of each direction's states")
    cells: int = Field(ge=1, description="of each LSTM; projected down to width where that is smaller")
    vocab: int | None = Field(default=None, ge=1, description="filled from the corpus")
    residual: bool = Field(default=True, description="layers after the first add their input")
    cell_clip: float | None = Field(default=3.0, gt=0)
    projection_clip: float | None = Field(default=3.0, gt=0)
    dropout: float = Field(default=0.1, ge=0, lt=1, description="on the input of each layer")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.cells < self.width:
            raise ValueError(
                f"cells={self.cells} are fewer than width={self.width}, and a projection only narrows: "
                f"set cells to {self.width} or more"
            )
        return self


class Carry(NamedTuple):
    """The state of one direction between two parts of a text."""

    hidden: Tensor  # (S, layers, D)
    cell: Tensor  # (S, layers, C)


class Recurrent(nn.Module):
    context: int | None = None  # any length

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        if settings.vocab is None:
            raise UserError("the model has no vocabulary size: set model.vocab, or give a corpus to take it from")
        self.settings = settings
        self.width, self.vocab = 2 * settings.width, settings.vocab
        self.embedding = Embedding(settings.vocab, settings.width, positions="none")
        self.forwards = self._stack()
        self.backwards = self._stack()
        # of length about 1: the table may also be the output layer, and that scale suits both uses
        nn.init.normal_(self.embedding.tokens.weight, std=settings.width**-0.5)

    def _stack(self) -> nn.ModuleList:
        settings = self.settings
        return nn.ModuleList(
            LSTM(
                settings.width,
                settings.cells,
                projection=settings.width if settings.width < settings.cells else None,
                cell_clip=settings.cell_clip,
                projection_clip=settings.projection_clip,
            )
            for _ in range(settings.layers)
        )

    def forward(self, packed: Packed, layers: bool = False) -> States:
        """Both directions over the same sequences, each from an empty state."""
        ahead, _ = self.read(packed, "forward")
        back, _ = self.read(packed, "backward", reverse=True)
        states = [torch.cat(pair, dim=-1) for pair in zip(ahead, back, strict=True)]  # (N, 2D) each
        return States(last=states[-1], layers=states if layers else None, table=self.embedding.tokens.weight)

    def read(
        self, packed: Packed, direction: Direction, carry: Carry | None = None, reverse: bool = False
    ) -> tuple[list[Tensor], Carry]:
        """States of every layer (N, D), token vectors first, and what to carry on.

        `direction` names the stack. The backward one expects text that runs backwards: either the tokens are
        given in that order, or `reverse` reads each sequence from its end and returns states in its own order.
        """
        x, _ = self.embedding(packed.tokens, packed.positions, None)  # (N, D)
        states, ends = [x], []
        for number, lstm in enumerate(self.forwards if direction == "forward" else self.backwards):
            x = F.dropout(x, self.settings.dropout, self.training)
            start = None if carry is None else State(carry.hidden[:, number], carry.cell[:, number])
            y, end = lstm(x, packed.layout, start, reverse)
            x = y + x if self.settings.residual and number else y
            states.append(x)
            ends.append(end)
        return states, Carry(torch.stack([end.hidden for end in ends], 1), torch.stack([end.cell for end in ends], 1))

    def flops(self, lengths: np.ndarray) -> int:
        """Of one forward pass over so many tokens in both directions."""
        tokens = int(np.asarray(lengths).sum())
        return sum(lstm.flops(tokens) for lstm in [*self.forwards, *self.backwards] if isinstance(lstm, LSTM))


def build(settings: Settings) -> Recurrent:
    return Recurrent(settings)
