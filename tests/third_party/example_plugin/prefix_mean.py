"""A model: the state of a token is a layer over its embedding and the mean of those up to it."""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field
from torch import nn

from etude.models.base import Model, ModelSettings
from etude.models.framing import Framing
from etude.nn.packed import Packed
from etude.nn.states import States
from etude.text.tokenizer.special_tokens import Specials


class Settings(ModelSettings):
    width: int = Field(ge=1)
    vocab: int | None = Field(default=None, ge=1, description="filled from the corpus")


class PrefixMean(Model):
    settings: Settings
    context: int | None = None

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.width = settings.width
        self.embedding = nn.Embedding(self.vocab, settings.width)
        self.layer = nn.Linear(2 * settings.width, settings.width)

    def forward(self, packed: Packed, layers: bool = False) -> States:
        x = self.embedding(packed.tokens)  # (N, D)
        starts = torch.arange(len(x), device=x.device) - packed.positions
        sums = x.cumsum(0)
        mean = (sums - sums[starts] + x[starts]) / (packed.positions + 1)[:, None]
        last = torch.tanh(self.layer(torch.cat([x, mean], dim=-1)))
        return States(last, [x, last] if layers else None)

    def flops(self, lengths: np.ndarray) -> int:
        return 4 * int(lengths.sum()) * self.width * self.width

    @property
    def layers(self) -> int:
        return 1

    def frame(self, special: Specials) -> Framing:
        return Framing([], [], [], pooling="mean", separate=True)

    def parameter_depth(self, name: str) -> int | None:
        return 0 if name.startswith("embedding") else 1


def build(settings: Settings) -> PrefixMean:
    return PrefixMean(settings)
