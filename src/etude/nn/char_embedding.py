"""An embedding that reads words by their characters: token ids or rows of characters in, vectors out.

In pre-training a batch brings the characters of its words along (`WordCharacters`), each distinct word once. At
inference a model gets ids like any other model and looks up their characters in the tokenizer it was given
(`Model.attach_tokenizer`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from etude.nn import char_cnn
from etude.text.tokenizer.char_ids import words_to_char_ids
from etude.text.tokenizer.open_vocabulary import OpenVocabularyTokenizer
from etude.text.tokenizer.tokenizer import Tokenizer


class WordCharacters(NamedTuple):
    """The words of a batch: the characters of each distinct word, and the word of each token."""

    rows: Tensor  # (U, length) int64
    words: Tensor  # (N,) int64

    @classmethod
    def from_words(cls, words: Sequence[bytes | int], settings: char_cnn.Settings) -> WordCharacters:
        """Build from words in order; integers are the marks around sentences (text/tokenizer/char_ids.py)."""
        numbers: dict[bytes | int, int] = {}
        index = [numbers.setdefault(word, len(numbers)) for word in words]
        rows = words_to_char_ids(list(numbers), settings.length, settings.widest)
        return cls(torch.from_numpy(rows), torch.from_numpy(np.array(index, np.int64)))


class CharEmbedding(nn.Module):
    """A character CNN in place of a token table."""

    def __init__(self, settings: char_cnn.Settings, width: int) -> None:
        super().__init__()
        self.network = char_cnn.CharacterCNN(settings.model_copy(update={"project": settings.project or width}))
        self.speller: OpenVocabularyTokenizer | None = None
        if self.network.width != width:
            raise ValueError(f"the character CNN has width {self.network.width}, but the model has {width}")

    def forward(self, tokens: Tensor) -> Tensor:
        """(N,) -> (N, D). Each distinct word is computed once."""
        if self.speller is None:
            raise RuntimeError("the model reads letters and has no speller for ids: call attach_tokenizer first")
        unique, words = torch.unique(tokens, return_inverse=True)
        settings = self.network.settings
        rows = self.speller.char_ids(unique.cpu().numpy(), settings.length, settings.widest)
        return self.network(torch.from_numpy(rows).to(tokens.device))[words]

    def freeze_letters(self) -> None:
        """Exclude vectors, convolutions and highways from training; the projection to the model's width learns."""
        self.network.requires_grad_(False)
        if self.network.project is not None:
            self.network.project.requires_grad_(True)


def share_speller(parts: Sequence[CharEmbedding], tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer to use with a model that reads words by these parts: one speller, known to all of them."""
    if not parts:
        return tokenizer
    speller = next((part.speller for part in parts if part.speller is not None), None)
    if speller is None or (speller is not tokenizer and speller.fingerprint != tokenizer.fingerprint):
        speller = OpenVocabularyTokenizer.from_tokenizer(tokenizer)
    for part in parts:
        part.speller = speller
    return speller
