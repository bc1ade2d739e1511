"""Recurrent language models that read in both directions: the biLM of ELMo, and the pair of TagLM.

Peters et al. 2018, sections 3.1 and 3.4. Two stacks of LSTMs with projection and clipping, one reading each
way, over one table of words, or over their letters (`characters`). From the second layer on, a layer adds its input
to its output (the only residual there is). With dropout, that input is the dropped one, as in the released biLM [code].

TagLM (Peters et al. 2017, section 2.2) has two language models that know nothing of each other: `shared: false`
gives each direction words of its own. One `direction` alone is a model too (section 3.4: forward only).

States of a layer are [forward ; backward], so they are twice as wide as `settings.width` says; those of the
embedding are the token vector twice, as ELMo mixes them.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from etude.models.base import MAX_LAYERS, Model, ModelSettings
from etude.models.depth import numbered_depth
from etude.models.framing import Framing
from etude.nn import char_cnn
from etude.nn.char_embedding import CharEmbedding, share_speller
from etude.nn.embedding import Embedding
from etude.nn.lstm import LSTM, LSTMState
from etude.nn.packed import Packed
from etude.nn.recompute import Recomputable
from etude.nn.states import States
from etude.text.tokenizer.special_tokens import Specials
from etude.text.tokenizer.tokenizer import Tokenizer

Direction = Literal["forward", "backward"]


class Settings(ModelSettings):
    layers: int = Field(default=2, ge=1, le=MAX_LAYERS)
    width: int = Field(ge=1, description="width of token vectors and of each direction's states")
    cells: int = Field(ge=1, description="cells of each LSTM; projected down to width where that is smaller")
    vocab: int | None = Field(default=None, ge=1, description="filled from the corpus")
    characters: char_cnn.Settings | None = Field(
        default=None, description="vectors of words are computed from their letters; from a table if None"
    )
    direction: Literal["both", "forward", "backward"] = "both"
    shared: bool = Field(default=True, description="both directions read the same word vectors; not so in TagLM")
    residual: bool = Field(default=True, description="layers after the first add their input")
    cell_clip: float | None = Field(default=3.0, gt=0)
    projection_clip: float | None = Field(default=3.0, gt=0)
    dropout: float = Field(default=0.1, ge=0, lt=1, description="dropout on the input of each layer")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.cells < self.width:
            raise ValueError(
                f"cells={self.cells} are fewer than width={self.width}, and a projection only narrows: "
                f"set cells to {self.width} or more"
            )
        if self.characters is not None and self.characters.project not in (None, self.width):
            raise ValueError(
                f"characters.project={self.characters.project} is not width={self.width}, which the LSTMs read: "
                "leave it out"
            )
        return self

    @property
    def directions(self) -> tuple[Direction, ...]:
        return ("forward", "backward") if self.direction == "both" else (self.direction,)


class Carry(NamedTuple):
    """The state of one direction between two parts of a text."""

    hidden: Tensor  # (S, layers, D)
    cell: Tensor  # (S, layers, C)


class Recurrent(Model):
    settings: Settings
    context = None  # any length

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.directions = settings.directions
        self.width = len(self.directions) * settings.width
        self.embedding = self._build_embedding()
        separate = not settings.shared and len(self.directions) == 2
        self.backward_embedding = self._build_embedding() if separate else None
        self.forwards = self._build_stack("forward")
        self.backwards = self._build_stack("backward")

    def _build_embedding(self) -> Embedding | CharEmbedding:
        settings = self.settings
        if settings.characters is not None:
            return CharEmbedding(settings.characters, settings.width)
        table = Embedding(self.vocab, settings.width, positions="none")
        # of length about 1: the table may also be the output layer, and that scale suits both uses
        nn.init.normal_(table.tokens.weight, std=settings.width**-0.5)
        return table

    def _build_stack(self, direction: Direction) -> nn.ModuleList:
        settings = self.settings
        return nn.ModuleList(
            LSTM(
                settings.width,
                settings.cells,
                projection=settings.width if settings.width < settings.cells else None,
                cell_clip=settings.cell_clip,
                projection_clip=settings.projection_clip,
            )
            for _ in range(settings.layers if direction in self.directions else 0)
        )

    def word_embedding(self, direction: Direction) -> Embedding | CharEmbedding:
        """What a direction reads words with."""
        own = self.backward_embedding if direction == "backward" else None
        return self.embedding if own is None else own

    def token_table(self, direction: Direction) -> Tensor | None:
        """(V, D) the vectors of all words, where there is a table of them."""
        words = self.word_embedding(direction)
        return words.tokens.weight if isinstance(words, Embedding) else None

    def forward(self, packed: Packed, layers: bool = False) -> States:
        """Every direction over the same sequences, each from an empty state."""
        stacks = [self.read(packed, direction, reverse=direction == "backward")[0] for direction in self.directions]
        states = [torch.cat(parts, dim=-1) for parts in zip(*stacks, strict=True)]  # (N, 2D) each
        return States(last=states[-1], layers=states if layers else None, table=self.token_table(self.directions[0]))

    def read(
        self,
        packed: Packed,
        direction: Direction,
        carry: Carry | None = None,
        reverse: bool = False,
        vectors: Tensor | None = None,
    ) -> tuple[list[Tensor], Carry]:
        """States of every layer (N, D), token vectors first, and what to carry on.

        `direction` names the stack. The backward one expects text that runs backwards: either the tokens are
        given in that order, or `reverse` reads each sequence from its end and returns states in its own order.
        `vectors` (N, D) are those of the words where they are known already, as in pre-training by letters.
        """
        x = self._look_up(packed, direction) if vectors is None else vectors
        states, ends = [x], []
        for number, lstm in enumerate(self.forwards if direction == "forward" else self.backwards):
            x = F.dropout(x, self.settings.dropout, self.training)
            start = None if carry is None else LSTMState(carry.hidden[:, number], carry.cell[:, number])
            y, end = lstm(x, packed.layout, start, reverse)
            x = y + x if self.settings.residual and number else y
            states.append(x)
            ends.append(end)
        return states, Carry(torch.stack([end.hidden for end in ends], 1), torch.stack([end.cell for end in ends], 1))

    def _look_up(self, packed: Packed, direction: Direction) -> Tensor:
        words = self.word_embedding(direction)
        if isinstance(words, CharEmbedding):
            return words(packed.tokens)
        x: Tensor = words(packed.tokens, packed.positions, None)[0]
        return x  # (N, D)

    def flops(self, lengths: np.ndarray, words: int | None = None) -> int:
        """Of one forward pass over so many tokens in every direction; `words`: how many different ones are spelled."""
        tokens = int(np.asarray(lengths).sum())
        recurrent = sum(lstm.flops(tokens) for lstm in [*self.forwards, *self.backwards] if isinstance(lstm, LSTM))
        return recurrent + sum(part.network.flops(tokens if words is None else words) for part in self.letter_parts)

    @property
    def letter_parts(self) -> list[CharEmbedding]:
        return [part for part in (self.embedding, self.backward_embedding) if isinstance(part, CharEmbedding)]

    # --- what kind of model it is -------------------------------------------------------------------

    @property
    def layers(self) -> int:
        return self.settings.layers

    def layer_modules(self) -> list[list[Recomputable]]:
        return [[lstm] for lstm in (*self.forwards, *self.backwards) if isinstance(lstm, Recomputable)]

    def frame(self, special: Specials) -> Framing:
        """A marker on each side and between two texts, as in pre-training; <S> and </S> where it reads letters."""
        marker = special.end if special.end is not None else special.separator
        after = [] if marker is None else [marker]
        before = after if self.settings.characters is None or special.start is None else [special.start]
        return Framing(before, after, after, pooling="mean", separate=True)

    def attach_tokenizer(self, tokenizer: Tokenizer) -> Tokenizer:
        return share_speller(self.letter_parts, tokenizer)

    def parameter_depth(self, name: str) -> int:
        return numbered_depth(name, self.layers)


def build(settings: Settings) -> Recurrent:
    return Recurrent(settings)
