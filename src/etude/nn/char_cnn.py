"""Word vectors from characters: convolutions, max pooling, highway layers and a projection.

Kim et al. 2016 (Character-Aware Neural Language Models), section 2, in the form of ELMo (Peters et al. 2018, section
3.4; the released biLM [code]):

    filters of several widths over the character vectors, with no padding but that of the row itself
    max pooling over positions, then the activation
    highway layers   g = sigmoid(W_g x + b_g),  y = g * relu(W_t x + b_t) + (1 - g) * x,  b_g = -2 at first: x passes
    a projection to the width of the model

Baevski et al. 2019 use the same with wider filters, and gates that start at -1: their code stores the opposite gate, of
what passes, at +1. Rows of characters come from `etude.text.tokenizer.char_ids`.

First values are those of either code (`init`), [code] in both:

    elmo      characters uniform in +-1, filters in +-0.05 (Kim et al.), the rest normal with deviation 1/sqrt(inputs)
    fairseq   characters, highways and projection by Glorot's rule, filters uniform in +-1/sqrt(inputs): vectors a tenth
              as large, as suits a model that multiplies them by sqrt(width) and adds sinusoids
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from etude.settings import Strict
from etude.text.tokenizer.char_ids import CHAR_VOCAB, MAX_CHARS

Positive = Annotated[int, Field(ge=1)]

ELMO_FILTERS = [(1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024)]
ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh}


class Settings(Strict):
    """`model.characters`; the defaults are ELMo's."""

    filters: list[tuple[Positive, Positive]] = Field(
        default=ELMO_FILTERS, min_length=1, description="(width, channels) of each"
    )
    embedding: int = Field(default=16, ge=1, description="width of a character's vector")
    characters: int = Field(default=CHAR_VOCAB, ge=CHAR_VOCAB, description="number of different characters")
    highways: int = Field(default=2, ge=0)
    gate_bias: float = Field(default=-2.0, description="initial bias of the highway gates; below 0 the input passes")
    init: Literal["elmo", "fairseq"] = Field(
        default="elmo", description="first values: as ELMo's code, or as that of the two-tower model"
    )
    project: int | None = Field(default=None, ge=1, description="width of a word's vector; that of the model if None")
    activation: Literal["relu", "tanh"] = "relu"
    length: int = Field(default=MAX_CHARS, ge=3, description="characters of a word at most, its two marks among them")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.widest > self.length:
            raise ValueError(
                f"a filter of width {self.widest} does not fit words of length={self.length} characters: "
                "raise length, or take narrower filters"
            )
        return self

    @property
    def channels(self) -> int:
        """Channels of all filters together."""
        return sum(channels for _, channels in self.filters)

    @property
    def widest(self) -> int:
        """Width of the widest filter."""
        return max(width for width, _ in self.filters)


class Highway(nn.Module):
    """A highway layer (Srivastava et al.

    2015). As in the released biLM, an open gate lets the transformed input in.
    """

    def __init__(self, width: int, gate_bias: float = -2.0, deviation: float | None = None) -> None:
        """`deviation` of the first weights; 1/sqrt(width) if None."""
        super().__init__()
        self.gate, self.transform = nn.Linear(width, width), nn.Linear(width, width)
        for part in (self.gate, self.transform):
            nn.init.normal_(part.weight, std=deviation or width**-0.5)
        nn.init.constant_(self.gate.bias, gate_bias)
        nn.init.zeros_(self.transform.bias)

    def forward(self, x: Tensor) -> Tensor:
        gate, transformed = self.gate(x).sigmoid(), self.transform(x).relu()
        return torch.lerp(x, transformed.to(x.dtype), gate.to(x.dtype))  # under autocast x is float32, and they are not


class CharacterCNN(nn.Module):
    """A CNN over the characters of a word.

    `width` is D: `project` where given, else all channels together.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        self.width = settings.project or settings.channels
        is_elmo, channels = settings.init == "elmo", settings.channels
        self.embedding = nn.Embedding(settings.characters, settings.embedding)
        if is_elmo:
            nn.init.uniform_(self.embedding.weight, -1.0, 1.0)
        else:
            nn.init.xavier_normal_(self.embedding.weight)
        with torch.no_grad():
            self.embedding.weight[0] = 0.0  # padding, never read
        self.filters = nn.ModuleList(nn.Linear(width * settings.embedding, n) for width, n in settings.filters)
        if is_elmo:  # else they stay as torch draws them, which is how fairseq leaves its convolutions
            self._draw_elmo_filters()
        # fairseq's gate and transform are one matrix, whose deviation by Glorot's rule is that of 3 * channels
        deviation = None if is_elmo else (2 / (3 * channels)) ** 0.5
        self.highways = nn.ModuleList(
            Highway(channels, settings.gate_bias, deviation) for _ in range(settings.highways)
        )
        self.project = nn.Linear(channels, settings.project) if settings.project else None
        if self.project is not None:
            if is_elmo:
                nn.init.normal_(self.project.weight, std=channels**-0.5)
            else:
                nn.init.xavier_uniform_(self.project.weight)
            nn.init.zeros_(self.project.bias)

    def _draw_elmo_filters(self) -> None:
        for part in self.filters:
            assert isinstance(part, nn.Linear)
            if self.settings.activation == "relu":
                nn.init.uniform_(part.weight, -0.05, 0.05)
            else:
                nn.init.normal_(part.weight, std=part.in_features**-0.5)
            nn.init.zeros_(part.bias)

    def forward(self, characters: Tensor) -> Tensor:
        """(N, length) int64 -> (N, D). Rows may have fewer columns of padding, down to the widest filter."""
        vectors = self.embedding(characters.t())  # (length, N, embedding): positions first, so a window is a slice
        pooled = []
        for (width, _), part in zip(self.settings.filters, self.filters, strict=True):
            assert isinstance(part, nn.Linear)
            places = vectors.shape[0] - width + 1
            if places < 1:
                raise ValueError(f"a filter of width {width} does not fit rows of {vectors.shape[0]} characters")
            windows = torch.cat([vectors[start : start + places] for start in range(width)], dim=-1)
            # the bias shifts all positions alike: it is added after the maximum, to far fewer numbers
            pooled.append((windows @ part.weight.t()).max(0).values + part.bias)  # (N, channels)
        x = ACTIVATIONS[self.settings.activation](torch.cat(pooled, dim=-1))
        for highway in self.highways:
            x = highway(x)
        return x if self.project is None else self.project(x)

    def flops(self, words: int) -> int:
        """Count the forward pass over rows of full length: matrix products, two operations each."""
        settings = self.settings
        filters = sum(
            (settings.length - width + 1) * width * settings.embedding * channels
            for width, channels in settings.filters
        )
        rest = 2 * settings.highways * settings.channels**2 + settings.channels * (settings.project or 0)
        return 2 * words * (filters + rest)
