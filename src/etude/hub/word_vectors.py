"""Words and their vectors, whatever they came from: a run, or a file of word2vec, GloVe or fastText.

The form in which vectors are looked at (`etude show`), compared, read and written (`vector_files.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch

from etude.chance import fold, uniform
from etude.errors import UserError
from etude.hub.run_weights import load_learner
from etude.models.base import require
from etude.models.static import RAREST, Static
from etude.runs.run import Run
from etude.text.tokenizer.char_ngrams import hash_ngrams, list_token_strings

Unknown = Literal["refuse", "rarest", "random", "zero", "subwords"]


@dataclass(frozen=True)
class Grams:
    """The rows of n-grams, for words that have none of their own."""

    table: np.ndarray  # (buckets, D) float32
    smallest: int
    largest: int

    def vectors(self, words: list[str]) -> np.ndarray:
        """(words, D): the mean of the rows of each word's n-grams, 0 where it has none."""
        bounds, rows = hash_ngrams(words, len(self.table), self.smallest, self.largest)
        totals = np.zeros((len(words), self.table.shape[1]), np.float32)
        np.add.at(totals, np.repeat(np.arange(len(words)), np.diff(bounds)), self.table[rows])
        return totals / np.maximum(1, np.diff(bounds))[:, None].astype(np.float32)


@dataclass
class WordVectors:
    words: list[str]  # by falling frequency, where that is known
    matrix: np.ndarray  # (W, D) float32
    counts: np.ndarray | None = None  # (W,) int64, in the text that they were learnt from
    grams: Grams | None = None
    unknown_row: np.ndarray | None = None  # (D,) of a file that has a vector for unknown words, as GloVe's <unk>

    @property
    def width(self) -> int:
        return self.matrix.shape[1]

    @cached_property
    def index(self) -> dict[str, int]:
        return {word: number for number, word in reversed(list(enumerate(self.words)))}  # of two, the first counts

    @cached_property
    def unit(self) -> np.ndarray:
        """(W, D) of length 1; 0 where the vector is."""
        length = np.linalg.norm(self.matrix, axis=1, keepdims=True)
        return self.matrix / np.where(length > 0, length, 1)

    def place(self, word: str) -> int | None:
        """The row of a word, as it is written, in lower case, or with every digit as 0 (Lample et al. 2016)."""
        forms = (word, word.lower(), "".join("0" if letter.isdigit() else letter for letter in word.lower()))
        return next((self.index[form] for form in forms if form in self.index), None)

    def vectors(self, words: list[str], unknown: Unknown = "refuse") -> np.ndarray:
        """(words, D), unknown words by the rule."""
        places = np.array([-1 if (place := self.place(word)) is None else place for word in words], np.int64)
        found = self.matrix[np.maximum(places, 0)]
        strange = np.flatnonzero(places < 0)
        if len(strange):
            found[strange] = self._strange([words[number] for number in strange], unknown)
        return found

    def _strange(self, words: list[str], unknown: Unknown) -> np.ndarray:
        if unknown == "subwords":
            if self.grams is None:
                raise UserError("These vectors have no rows for sub-words: take rarest, random or zero.")
            return self.grams.vectors(words)
        if unknown == "rarest":
            mean = self.matrix[-RAREST:].mean(0) if self.unknown_row is None else self.unknown_row
            return np.repeat(mean[None], len(words), axis=0)
        if unknown == "random":
            edge, places = np.sqrt(3 / self.width), np.arange(self.width)
            return np.array([2 * edge * uniform(fold("unknown word", word), places) - edge for word in words])
        if unknown == "zero":
            return np.zeros((len(words), self.width), np.float32)
        raise UserError(f"'{words[0]}' is not among the {len(self.words):,} words.")

    def first(self, most: int | None) -> WordVectors:
        """The same with the most frequent words only."""
        if most is None or most >= len(self.words):
            return self
        counts = None if self.counts is None else self.counts[:most]
        return WordVectors(self.words[:most], self.matrix[:most], counts, self.grams, self.unknown_row)

    @classmethod
    def of_run(cls, run: Run) -> WordVectors:
        """The vectors of a run of word2vec, GloVe or fastText, special tokens left out."""
        model, _, _ = load_learner(run)
        message = f"{run.folder} holds a {run.recipe.model_kind} model, not word vectors."
        return cls.of_model(require(model, Static, message), list_token_strings(run.tokenizer))

    @classmethod
    def of_model(cls, model: Static, words: list[str | None]) -> WordVectors:
        """`words`: how every token is written, None for those that are no words."""
        if model.settings.buckets:
            model.spell(words)
        ids = [id for id, word in enumerate(words) if word is not None]
        with torch.no_grad():
            matrix = model.vectors(torch.tensor(ids, device=model.input.weight.device)).float().cpu().numpy()
            table = model.input.weight[model.vocab :].float().cpu().numpy()
        grams = Grams(table, *model.settings.grams) if model.settings.buckets else None
        counts = model.counts.cpu().numpy()[ids]
        return cls([word for word in words if word is not None], matrix, counts if counts.any() else None, grams)
