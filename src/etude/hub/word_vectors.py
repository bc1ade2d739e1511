"""Words and their vectors in memory, from a run or from a file of word2vec, GloVe or fastText.

`etude show` reads them, tasks compare them, `vector_files.py` reads and writes them.
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
from etude.text.tokenizer.char_ngrams import NgramTable
from etude.text.tokenizer.normalization import normalize_nfc
from etude.text.tokenizer.token_strings import list_token_strings

PIECE = "##"  # begins a piece that goes on with a word
Unknown = Literal["refuse", "rarest", "random", "zero", "subwords"]


def explain_no_vectors(run: Run) -> str:
    """The message on a run of another kind of model."""
    kind = f"{run.folder} holds a {run.recipe.model_kind} model, not word vectors."
    return f"{kind} Take a run of word2vec, GloVe or fastText, such as 'etude pretrain word2vec-skipgram' makes."


@dataclass
class WordVectors:
    """Words with a vector each."""

    words: list[str]  # by falling frequency, where that is known
    matrix: np.ndarray  # (W, D) float32
    counts: np.ndarray | None = None  # (W,) int64, in the training text
    grams: NgramTable | None = None
    unknown_row: np.ndarray | None = None  # (D,) of a file with a vector for unknown words, such as GloVe's <unk>

    @property
    def width(self) -> int:
        """The width D of the vectors."""
        return self.matrix.shape[1]

    @cached_property
    def index(self) -> dict[str, int]:
        """The row of each word, also as NFC where a file has it decomposed; of a word that comes twice, the first."""
        index = {word: row for row, word in reversed(list(enumerate(self.words)))}
        for word, row in list(index.items()):
            if (composed := normalize_nfc(word)) is not word:
                index.setdefault(composed, row)
        return index

    @cached_property
    def unit(self) -> np.ndarray:
        """(W, D) vectors of length 1; 0 where the vector is 0."""
        norm = np.linalg.norm(self.matrix, axis=1, keepdims=True)
        return self.matrix / np.where(norm > 0, norm, 1)

    @cached_property
    def pieces(self) -> np.ndarray:
        """(P,) int64: the rows of pieces that go on with a word (##ing), where the tokenizer splits words."""
        return np.array([row for row, word in enumerate(self.words) if word.startswith(PIECE)], np.int64)

    def find_row(self, word: str) -> int | None:
        """Return the row of a word as written, NFC, in lower case, or with every digit as 0 (Lample et al. 2016)."""
        composed = normalize_nfc(word)
        lower = composed.lower()
        forms = (word, composed, lower, "".join("0" if letter.isdigit() else letter for letter in lower))
        return next((self.index[form] for form in forms if form in self.index), None)

    def vectors(self, words: list[str], unknown: Unknown = "refuse") -> np.ndarray:
        """Return (words, D); `unknown` says what to do with words that have no vector."""
        rows = np.array([-1 if (row := self.find_row(word)) is None else row for word in words], np.int64)
        vectors = self.matrix[np.maximum(rows, 0)]
        missing = np.flatnonzero(rows < 0)
        if len(missing):
            vectors[missing] = self._unknown_vectors([words[number] for number in missing], unknown)
        return vectors

    def _unknown_vectors(self, words: list[str], unknown: Unknown) -> np.ndarray:
        if unknown == "subwords":
            if self.grams is None:
                raise UserError("These vectors have no rows for sub-words: take rarest, random or zero.")
            return self.grams.vectors(words)
        if unknown == "rarest":
            mean = self.matrix[-RAREST:].mean(0) if self.unknown_row is None else self.unknown_row
            return np.repeat(mean[None], len(words), axis=0)
        if unknown == "random":
            limit, columns = np.sqrt(3 / self.width), np.arange(self.width)
            return np.array([2 * limit * uniform(fold("unknown word", word), columns) - limit for word in words])
        if unknown == "zero":
            return np.zeros((len(words), self.width), np.float32)
        raise UserError(f"'{words[0]}' is not among the {len(self.words):,} words.")

    def most_frequent(self, count: int | None) -> WordVectors:
        """Return the vectors of the `count` most frequent words; None: of all."""
        if count is None or count >= len(self.words):
            return self
        counts = None if self.counts is None else self.counts[:count]
        return WordVectors(self.words[:count], self.matrix[:count], counts, self.grams, self.unknown_row)

    @classmethod
    def from_run(cls, run: Run) -> WordVectors:
        """Read the vectors of a run of word2vec, GloVe or fastText, without special tokens."""
        model, _, _ = load_learner(run)
        words = list_token_strings(run.tokenizer)
        return cls.from_model(require(model, Static, explain_no_vectors(run)), words, run.tokenizer.special.unknown)

    @classmethod
    def from_model(cls, model: Static, words: list[str | None], unknown: int | None = None) -> WordVectors:
        """Read the vectors of a model.

        words: the strings of all tokens, None for those that are no words. unknown: the id of the unknown token.
        """
        if model.settings.buckets:
            model.set_spellings(words)
        ids = [id for id, word in enumerate(words) if word is not None]
        with torch.no_grad():
            matrix = model.vectors(torch.tensor(ids, device=model.input.weight.device)).float().cpu().numpy()
            table = model.input.weight[model.vocab :].float().cpu().numpy()
            unknown_row = None
            if model.settings.unknown == "own" and unknown is not None:  # as a file of GloVe has it
                row = model.vectors(torch.tensor([unknown], device=model.input.weight.device))[0]  # (D,)
                unknown_row = row.float().cpu().numpy()
        grams = NgramTable(table, *model.settings.grams) if model.settings.buckets else None
        counts = model.counts.cpu().numpy()[ids]
        known = [word for word in words if word is not None]
        return cls(known, matrix, counts if counts.any() else None, grams, unknown_row)
