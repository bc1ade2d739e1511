"""The tagger's own network, between the states of a pre-trained model and the scores of tags (`task.network`).

    window   Collobert et al. 2011, section 3.2: the vectors of a few words side by side, a hidden layer, HardTanh
    rnn      biLSTMs over words (Lample et al. 2016; TagLM, Peters et al. 2017, section 2.1)

The inputs of a word, each optional: a vector of its own that is learnt here, its letters through a small CNN, hand-made
features (tasks/tag/word_features.py), and the states of the pre-trained model. Those come in at the `input`, behind the
`first` RNN (TagLM's best place), or behind the `last` one; in several places each has a mix of its own (ELMo puts them
at input and output). Without any place the pre-trained model is not used: the supervised baseline.

Words outside the training examples and the vectors share one row. It is learnt from words that occur once, which
training reads as unknown half of the time (Lample et al. 2016): otherwise nothing would move it, and in
use it would be the noise that was drawn.

Below the scores of tags, `task.head` linear is the word-level likelihood, crf the sentence-level one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, Self, runtime_checkable

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from etude.errors import UserError
from etude.nn import char_cnn
from etude.nn.char_embedding import WordCharacters
from etude.nn.layer_mix import LayerMix, MixNorm
from etude.nn.lstm import LSTM
from etude.nn.packed import Layout
from etude.nn.window_layer import WindowLayer
from etude.settings import Strict
from etude.tasks.tag.word_features import UNKNOWN, Tables
from etude.tasks.tag.word_features import Settings as Features

Place = Literal["input", "first", "last"]


class Settings(Strict):
    kind: Literal["window", "rnn"] = "rnn"
    window: int = Field(default=5, ge=1, description="words that a window sees, the tagged one in their middle")
    hidden: int = Field(default=300, ge=1, description="hidden width of the window network")
    cells: int = Field(default=200, ge=1, description="cells of each biLSTM in each direction")
    layers: int = Field(default=2, ge=1, description="number of biLSTMs")
    words: int = Field(default=0, ge=0, description="width of the network's own word vectors; 0: it has none")
    vectors: str | None = Field(
        default=None, description="a run of word vectors that the network's word vectors start from"
    )
    known: int = Field(default=50_000, ge=1, description="words of those vectors that are taken over, frequent first")
    singletons: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="share of the words met once that training reads as unknown, so that it learns a vector for those",
    )
    characters: char_cnn.Settings | None = Field(
        default=None, description="vectors from the letters of words, beside those of the words"
    )
    features: Features = Features()
    states: list[Place] = Field(
        default=["input"], description="layers of the tagger that read the pre-trained model's states"
    )
    mix: bool = Field(default=False, description="a learned mix of its layers at each place, as ELMo has it")
    mix_norm: MixNorm = "none"
    mix_penalty: float = Field(
        default=0.0, ge=0, description="weight of the penalty on the squared length of the mix's weights"
    )
    state_dropout: float = Field(default=0.0, ge=0, lt=1, description="dropout on the pre-trained states; ELMo has 0.5")
    dropout: float = Field(default=0.25, ge=0, lt=1, description="dropout on the inputs and between layers")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.window % 2 == 0:
            raise ValueError(f"window={self.window} has no middle: take an odd number")
        if len(set(self.states)) < len(self.states):
            raise ValueError(f"states={self.states} names a place twice")
        if self.kind == "window" and set(self.states) - {"input"}:
            raise ValueError("states of a window network come in at the input: set states: [input], or []")
        if self.layers == 1 and {"first", "last"} <= set(self.states):
            raise ValueError("behind the first of one layer is behind the last: name one of them")
        if self.vectors is not None and not self.words:
            raise ValueError("vectors needs words: the width of the vectors")
        if not self.words and self.characters is None and not self.features.any and "input" not in self.states:
            raise ValueError("the network has nothing to read: set words, characters or features, or states: [input]")
        return self

    def refuse_unused(self) -> None:
        """Raise UserError for a setting without effect; where a transfer starts, not where an older run is opened."""
        is_mixed = bool(self.mix and self.states)
        mix = "a mix of layers, and this network has none: set task.network.mix=true (and task.network.states)"
        window = "a window network, and this one is recurrent: set task.network.kind=window"
        recurrent = "a recurrent network, and this one sees windows: set task.network.kind=rnn"
        used = {
            "mix_norm": (is_mixed, mix), "mix_penalty": (is_mixed, mix),
            "window": (self.kind == "window", window), "hidden": (self.kind == "window", window),
            "cells": (self.kind == "rnn", recurrent), "layers": (self.kind == "rnn", recurrent),
            "known": (self.vectors is not None, "word vectors to start from: name a run with task.network.vectors"),
            "singletons": (self.words > 0, "the network's own word vectors: set task.network.words"),
            "state_dropout": (bool(self.states), "pre-trained states, and none are read: set task.network.states"),
        }  # fmt: skip
        for name, (is_used, remedy) in used.items():
            value = getattr(self, name)
            if not is_used and value != type(self).model_fields[name].default:
                raise UserError(f"task.network.{name}={value} is of {remedy}, or drop task.network.{name}.")


@runtime_checkable
class HasNetwork(Protocol):
    """Settings of a task that may have such a network: what transfers ask for, so that other tasks may have one too."""

    network: Settings | None


class Network(nn.Module):
    """`width` is that of what it gives for each unit."""

    def __init__(self, settings: Settings, tables: Tables, state_width: int, layers: int) -> None:
        """`state_width`: of a state of the pre-trained model. `layers`: of it that are mixed, where they are."""
        super().__init__()
        self.settings = settings
        self.mixes = nn.ModuleDict(
            {p: LayerMix(layers, settings.mix_norm) for p in settings.states} if settings.mix else {}
        )
        self.words = nn.Embedding(len(tables.words) + 1, settings.words) if settings.words else None
        if self.words is not None:
            nn.init.uniform_(self.words.weight, -((3 / settings.words) ** 0.5), (3 / settings.words) ** 0.5)
        self.repeated = len(tables.words) if tables.repeated is None else tables.repeated  # words met more than once
        self.letters = char_cnn.CharacterCNN(settings.characters) if settings.characters else None
        self.features = nn.ModuleList(nn.Embedding(size, settings.features.width) for size in tables.sizes)
        width = settings.words + (self.letters.width if self.letters else 0)
        width += settings.features.width * len(tables.sizes)
        width += state_width if "input" in settings.states else 0
        self.forwards, self.backwards = nn.ModuleList(), nn.ModuleList()
        self.window: WindowLayer | None = None
        if settings.kind == "window":
            self.window = WindowLayer(width, settings.window, settings.hidden)
            width = settings.hidden
        else:
            for number in range(settings.layers):
                self.forwards.append(LSTM(width, settings.cells))
                self.backwards.append(LSTM(width, settings.cells))
                width = 2 * settings.cells
                width += state_width * len(self._places_behind(number))
        self.width = width

    @torch.no_grad()
    def start_from(self, vectors: Tensor, given: Tensor) -> None:
        """First values (words, width) of the words that have one (words,); the others keep what was drawn."""
        assert self.words is not None
        if vectors.shape != (self.words.num_embeddings - 1, self.words.embedding_dim):
            raise ValueError(f"vectors {tuple(vectors.shape)} for words {tuple(self.words.weight.shape)}")
        self.words.weight[1:][given] = vectors[given]

    def forward(
        self,
        states: Sequence[Tensor],
        words: Tensor | None,
        features: Tensor | None,
        letters: WordCharacters | None,
        layout: Layout,
    ) -> Tensor:
        """(W, D) for each unit. `states`: one (W, state width), or those of all layers where they are mixed."""
        settings = self.settings
        x = torch.cat(self._inputs(states, words, features, letters), dim=-1)
        if self.window is not None:
            return F.hardtanh(self.window(F.dropout(x, settings.dropout, self.training), layout))
        for number, (ahead, back) in enumerate(zip(self.forwards, self.backwards, strict=True)):
            x = F.dropout(x, settings.dropout, self.training)
            parts = [ahead(x, layout)[0], back(x, layout, reverse=True)[0]]
            parts += [self._state(place, states) for place in self._places_behind(number)]
            x = torch.cat(parts, dim=-1)
        return x

    def _places_behind(self, layer: int) -> list[Place]:
        """Where states come in between a layer and the next."""
        places: dict[Place, int] = {"first": 0, "last": self.settings.layers - 1}
        return [place for place, number in places.items() if number == layer and place in self.settings.states]

    def _inputs(
        self, states: Sequence[Tensor], words: Tensor | None, features: Tensor | None, letters: WordCharacters | None
    ) -> list[Tensor]:
        inputs = []
        if self.letters is not None and letters is not None:
            inputs.append(self.letters(letters.rows)[letters.words])
        if self.words is not None and words is not None:
            inputs.append(self.words(self.hide_singletons(words)))
        if features is not None:
            inputs += [table(column) for table, column in zip(self.features, features.unbind(1), strict=True)]
        if "input" in self.settings.states:
            inputs.append(self._state("input", states))
        return inputs

    def hide_singletons(self, words: Tensor) -> Tensor:
        """(W,) -> (W,): in training, some of the words that occur once as the unknown word (Lample et al. 2016)."""
        if not self.training or not self.settings.singletons:
            return words
        drawn = torch.rand(words.shape, device=words.device) < self.settings.singletons
        return words.masked_fill(drawn & (words > self.repeated), UNKNOWN)

    def _state(self, place: Place, states: Sequence[Tensor]) -> Tensor:
        state = self.mixes[place](states) if self.settings.mix else states[0]
        return F.dropout(state, self.settings.state_dropout, self.training)

    def penalty(self) -> Tensor | None:
        """What keeps the mixes near the average, or None where nothing does."""
        if not self.mixes or not self.settings.mix_penalty:
            return None
        parts = [mix.penalty for mix in self.mixes.values() if isinstance(mix, LayerMix)]
        return self.settings.mix_penalty * torch.stack(parts).sum()

    def flops(self, units: int, spelled: int) -> int:
        """Forward only; `spelled` words go through the network of letters."""
        total = sum(lstm.flops(units) for lstm in [*self.forwards, *self.backwards] if isinstance(lstm, LSTM))
        if self.window is not None:
            total += self.window.flops(units)
        return total + (self.letters.flops(spelled) if self.letters is not None else 0)
