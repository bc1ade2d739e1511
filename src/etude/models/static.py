"""Static word vectors: one vector a token, whatever stands around it.

word2vec (Mikolov et al. 2013a, 2013b): an input table, which is the result, and an output table that only
training needs. First values as word2vec has them [code]: input uniform in (-0.5, 0.5) / width, output 0.
"""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field
from torch import nn

from etude.errors import UserError
from etude.nn.packed import Packed
from etude.nn.states import States
from etude.settings import Strict


class Settings(Strict):
    width: int = Field(ge=1, description="of a word's vector")
    vocab: int | None = Field(default=None, ge=1, description="filled from the corpus")


class Static(nn.Module):
    context: int | None = None  # any length: no token sees another

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        if settings.vocab is None:
            raise UserError("the model has no vocabulary size: set model.vocab, or give a corpus to take it from")
        self.settings = settings
        self.width, self.vocab = settings.width, settings.vocab
        self.input = nn.Embedding(settings.vocab, settings.width)
        self.output = nn.Embedding(settings.vocab, settings.width)
        self.reset()

    def reset(self) -> None:
        """Draws the input vectors anew from `torch.manual_seed`; the output vectors start at 0."""
        with torch.no_grad():
            self.input.weight.uniform_(-0.5, 0.5).div_(self.width)
            self.output.weight.zero_()

    def forward(self, packed: Packed, layers: bool = False) -> States:
        x = self.input(packed.tokens)  # (N, D)
        return States(last=x, layers=[x] if layers else None, table=self.input.weight)

    def flops(self, lengths: np.ndarray) -> int:
        """A look-up multiplies nothing."""
        return 0


def build(settings: Settings) -> Static:
    return Static(settings)
