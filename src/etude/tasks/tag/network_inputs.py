"""The inputs of a tagger's own network: words, features and letters of a batch, and the network over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from etude.models.base import Model
from etude.models.depth import training_flops
from etude.nn.char_embedding import WordCharacters
from etude.objectives.base import Term
from etude.tasks.tag.network import Network, Settings
from etude.tasks.tag.rows import NetworkInputs, TagBatch
from etude.tasks.tag.sentences import TaggedSentence
from etude.tasks.tag.word_features import Tables
from etude.tasks.tag.word_pieces import FramedSentence, Pieces
from etude.text.tokenizer.normalization import normalize_nfc


def learn(settings: Settings, examples: Sequence[TaggedSentence]) -> dict[str, Any]:
    """The words and features that the training examples know, JSON-ready."""
    words = [_normalise("".join(item.words).split() if item.characters else item.words) for item in examples]
    return Tables.learn(settings.features, words, settings.words > 0).facts()


def _normalise(words: Sequence[str]) -> list[str]:
    """Words as the tokenizer of the pre-trained model reads them: Hangul may come as jamo."""
    return [normalize_nfc(word) for word in words]


class WordNetwork(nn.Module):
    """The network and the tables that number its inputs."""

    def __init__(self, settings: Settings, model: Model, facts: Mapping[str, Any]) -> None:
        super().__init__()
        self.settings, self.tables = settings, Tables.of(settings.features, facts)
        width = model.state_width if settings.mix else model.width
        self.network = Network(settings, self.tables, width, model.state_count)
        self.width = self.network.width

    def inputs(self, words: Sequence[str], pieces: Pieces, framed: FramedSentence) -> NetworkInputs:
        """Units are words, or pieces of a text of characters; those that are read."""
        units = [""] * len(pieces.units)
        for word, owner in zip(words, pieces.owners, strict=True):
            if owner >= 0:
                units[owner] += word
        units = _normalise(units[: len(framed.units)])
        return NetworkInputs(units, self.tables.numbers(units), self.tables.values(units))

    def fill(self, batch: TagBatch, inputs: Sequence[NetworkInputs]) -> None:
        """The fields of a batch that the network reads."""
        batch.word_ids = torch.from_numpy(np.concatenate([sentence.words for sentence in inputs]))
        batch.features = torch.from_numpy(np.concatenate([sentence.features for sentence in inputs]))
        if self.settings.characters is not None:
            words = [surface.encode() for sentence in inputs for surface in sentence.surfaces]
            batch.char_ids, batch.char_rows = WordCharacters.from_words(words, self.settings.characters)
        if self.settings.mix and self.settings.mix_penalty:
            batch.counts["mix"] = 1

    def forward(self, model: Model, batch: TagBatch) -> Tensor:
        """(W, D) for each unit; the model is asked only where its states come in."""
        assert batch.words is not None
        states: list[Tensor] = []
        if self.settings.states and self.settings.mix:
            states = [layer[batch.units] for layer in model.layer_states(batch)]
        elif self.settings.states:
            states = [model(batch).last[batch.units]]
        letters = None
        if batch.char_ids is not None and batch.char_rows is not None:
            letters = WordCharacters(batch.char_ids, batch.char_rows)
        outputs: Tensor = self.network(states, batch.word_ids, batch.features, letters, batch.words)
        return outputs

    def terms(self, batch: TagBatch) -> dict[str, Term]:
        """What the network adds to the loss: the penalty of its mixes."""
        penalty = self.network.penalty()
        return {} if penalty is None else {"mix": Term(penalty, batch.counts["mix"])}

    def flops(self, model: Model, batch: TagBatch) -> int:
        """Forward and backward, the model's own with it."""
        assert batch.words is not None
        own = self.network.flops(batch.words.total, 0 if batch.char_ids is None else len(batch.char_ids))
        return 3 * own + (training_flops(model, batch.layout.lengths) if self.settings.states else 0)


@runtime_checkable
class HasWordNetwork(Protocol):
    """A task that may have such a network."""

    own: WordNetwork | None
