"""Static word vectors: one vector a word, whatever stands around it.

word2vec (Mikolov et al. 2013a, 2013b): an input table, which is the result, and an output table that only training
needs. GloVe (Pennington et al. 2014): two tables of equal rights, whose sum is the result. fastText (Bojanowski et
al. 2017): behind the words the input table has rows for buckets of character n-grams, and a word's vector is the mean
of its own row and those of its n-grams (`etude.text.tokenizer.char_ngrams`).

First values as the released programs have them (`init`), those of the output table after those of the input table:

    word2vec   uniform in (-0.5, 0.5) / width, 0          fasttext   uniform in (-1, 1) / width, 0
    glove      uniform in (-0.5, 0.5) / width, both

A word that is not in the vocabulary has (`unknown`)

    rarest     the mean of the 100 rarest words, as GloVe's <unk> [code]
    subwords   the mean of the rows of its n-grams; 0 where it has none [code]
    random     a vector of its own, always the same: uniform in +- sqrt(3 / width) (Ma & Hovy 2016, section 3.2)
    own, zero  the row of the unknown token, which no objective here trains but fine-tuning does; 0
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from etude.chance import fold, uniform
from etude.models.base import Model, ModelSettings
from etude.models.framing import Framing
from etude.nn.packed import Packed
from etude.nn.states import States
from etude.text.tokenizer.char_ngrams import build_subword_rows, hash_ngrams
from etude.text.tokenizer.open_vocabulary import OpenVocabularyTokenizer
from etude.text.tokenizer.special_tokens import Specials
from etude.text.tokenizer.token_strings import list_token_strings
from etude.text.tokenizer.tokenizer import Tokenizer

RAREST = 100  # words whose mean stands for an unknown one
Unknown = Literal["rarest", "subwords", "random", "own", "zero"]


class Settings(ModelSettings):
    width: int = Field(ge=1, description="width of a word's vector")
    vocab: int | None = Field(default=None, ge=1, description="filled from the corpus")
    buckets: int = Field(default=0, ge=0, description="rows for hashed character n-grams (fastText); 0: no n-grams")
    grams: tuple[int, int] = Field(default=(3, 6), description="characters of the shortest and the longest n-gram")
    init: Literal["word2vec", "fasttext", "glove"] = "word2vec"
    result: Literal["input", "sum"] = Field(default="input", description="a word's vector: of the first table, or both")
    unknown: Unknown = "rarest"

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.buckets and not 1 <= self.grams[0] <= self.grams[1]:
            raise ValueError(f"grams={list(self.grams)}: the shortest has at least one character, the longest no fewer")
        if self.buckets and self.result == "sum":
            raise ValueError("result=sum adds the two tables of GloVe, which has no buckets: set buckets to 0")
        if self.unknown == "subwords" and not self.buckets:
            raise ValueError("unknown=subwords needs rows of n-grams: set buckets, to 2000000 as fastText has it")
        return self


class Static(Model):
    settings: Settings
    context = None  # any length: no token sees another

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.width = settings.width
        self.input = nn.Embedding(self.vocab + settings.buckets, settings.width)
        self.output = nn.Embedding(self.vocab, settings.width)
        self.counts: Tensor  # (V,) int64, in the text the vectors were learnt from: files of vectors tell them too
        self.register_buffer("counts", torch.zeros(self.vocab, dtype=torch.int64))
        self.unknown: int | None = None  # the id of the unknown token
        self._rarest: list[int] = []  # ids of the rarest words
        self.speller: OpenVocabularyTokenizer | None = None  # knows the letters of unknown words, where those matter
        # (V+1,) bounds and the rows of every word, from its letters: no weights, so not saved with them
        self.subword_rows: tuple[np.ndarray, np.ndarray] | None = None
        self._rows: dict[torch.device, tuple[Tensor, Tensor]] = {}  # the same on the devices that asked for it
        self._closed_ids: list[int] = []  # the tokenizer's own reading of the speller's words
        self._generation = 0  # of the speller's words in it
        self.reset()

    def reset(self) -> None:
        """Draws the vectors anew from `torch.manual_seed`."""
        bound = (1.0 if self.settings.init == "fasttext" else 0.5) / self.width
        with torch.no_grad():
            self.input.weight.uniform_(-bound, bound)
            if self.settings.init == "glove":
                self.output.weight.uniform_(-bound, bound)
            else:
                self.output.weight.zero_()

    def attach_tokenizer(self, tokenizer: Tokenizer) -> Tokenizer:
        """Learns which token is the unknown one, and the letters of words where those matter."""
        special = set(tokenizer.special.ids())
        # ids are by falling frequency; special tokens are no words, and rows behind the tokenizer's belong to none
        words = [id for id in range(min(self.vocab, tokenizer.vocab)) if id not in special]
        self.unknown, self._rarest = tokenizer.special.unknown, words[-RAREST:]
        if self.settings.buckets:
            self.set_spellings(list_token_strings(tokenizer))
        if self.settings.unknown not in ("subwords", "random") or not tokenizer.word_level:
            return tokenizer
        if self.speller is None or self.speller.fingerprint != tokenizer.fingerprint:
            self.speller, self._closed_ids = OpenVocabularyTokenizer.from_tokenizer(tokenizer), []
            self._generation = self.speller.generation
        return self.speller

    def set_spellings(self, words: Sequence[str | None]) -> None:
        """Finds the rows of every word's n-grams; None: a token that is no word, such as [UNK]."""
        if self.subword_rows is None:
            self.subword_rows = build_subword_rows([*words, *[None] * (self.vocab - len(words))], *self._grams)

    def set_counts(self, counts: np.ndarray) -> np.ndarray:
        """Stores how often each token occurs in the text; returns it for every row of the vocabulary."""
        padded = np.zeros(self.vocab, np.int64)
        padded[: len(counts)] = counts
        self.counts.copy_(torch.from_numpy(padded))
        return padded

    @property
    def _grams(self) -> tuple[int, int, int]:
        return self.settings.buckets, *self.settings.grams

    # --- words in, vectors out ----------------------------------------------------------------------

    def forward(self, packed: Packed, layers: bool = False) -> States:
        tokens, unknown_words = packed.tokens, None
        if self.speller is not None:
            tokens, unknown_words = self._split_open_ids(tokens)
        x = self.vectors(tokens)  # (N, D)
        if self.unknown is not None and self.settings.unknown != "own":
            x = torch.where((tokens == self.unknown)[:, None], self._stand_in(), x)
        if unknown_words is not None:
            places, vectors = unknown_words
            x = x.index_copy(0, places, vectors)
        return States(last=x, layers=[x] if layers else None, table=self.input.weight)

    def vectors(self, tokens: Tensor) -> Tensor:
        """(N,) ids of the vocabulary -> (N, D)."""
        if self.settings.result == "sum":
            return self.input(tokens) + self.output(tokens)
        if not self.settings.buckets:
            return self.input(tokens)
        rows, starts, _ = self.input_rows(tokens)
        return F.embedding_bag(rows, self.input.weight, starts, mode="mean")

    def input_rows(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The rows of the input table of all tokens end to end, where those of each begin, and whose each one is."""
        if self.subword_rows is None:
            raise ValueError(
                "a model of sub-words needs the spelling of its tokens: call attach_tokenizer or set_spellings"
            )
        device = tokens.device
        if device not in self._rows:
            bounds, rows = (torch.from_numpy(array).to(device) for array in self.subword_rows)
            self._rows[device] = bounds, rows
        bounds, rows = self._rows[device]
        first, sizes = bounds[tokens], bounds[tokens + 1] - bounds[tokens]
        starts = torch.cumsum(sizes, 0) - sizes
        owner = torch.repeat_interleave(torch.arange(len(tokens), device=device), sizes)
        within = torch.arange(len(owner), device=device) - starts[owner]
        return rows[first[owner] + within], starts, owner

    # --- unknown words ------------------------------------------------------------------------------

    def _stand_in(self) -> Tensor:
        """(D,) for an unknown word without letters."""
        if self.settings.unknown == "zero" or not self._rarest:
            return self.input.weight.new_zeros(self.width)
        return self.vectors(torch.tensor(self._rarest, device=self.input.weight.device)).mean(0)

    def _split_open_ids(self, tokens: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """Ids of the vocabulary for those of an open one; and places and vectors of the words that have none."""
        assert self.speller is not None
        if not bool((tokens >= self.speller.vocab).any()):
            return tokens, None
        ids = tokens.cpu().numpy()
        if self._generation != self.speller.generation:
            self._closed_ids, self._generation = [], self.speller.generation
        new = np.arange(len(self._closed_ids), self.speller.id_count - self.speller.vocab) + self.speller.vocab
        self._closed_ids += self.speller.to_closed_vocabulary(new).tolist()
        open_places = np.flatnonzero(ids >= self.speller.vocab)
        closed = ids.copy()
        closed[open_places] = np.array(self._closed_ids)[ids[open_places] - self.speller.vocab]
        places = open_places[closed[open_places] == self.unknown]
        numbers, inverse = np.unique(ids[places], return_inverse=True)
        device = tokens.device
        normalizer = self.speller.backend.normalizer  # letters as the vocabulary was learnt: lower case, where it was
        words = [self.speller.token(int(id)) for id in numbers]
        vectors = self.unknown_word_vectors([normalizer.normalize_str(word) if normalizer else word for word in words])
        unknown_words = (torch.from_numpy(places).to(device), vectors[torch.from_numpy(inverse).to(device)])
        return torch.from_numpy(closed).to(device), unknown_words if len(places) else None

    def unknown_word_vectors(self, words: Sequence[str]) -> Tensor:
        """(words, D) of words that are not in the vocabulary, by their letters."""
        weight = self.input.weight
        if self.settings.unknown == "random":
            bound, columns = math.sqrt(3 / self.width), np.arange(self.width)
            vectors = [2 * bound * uniform(fold("unknown word", word), columns) - bound for word in words]
            return torch.from_numpy(np.array(vectors, np.float32).reshape(-1, self.width)).to(weight)
        bounds, buckets = hash_ngrams(words, *self._grams)
        rows, starts = (torch.from_numpy(array).to(weight.device) for array in (buckets + self.vocab, bounds[:-1]))
        return F.embedding_bag(rows, weight, starts, mode="mean")  # of no rows: 0

    def flops(self, lengths: np.ndarray) -> int:
        """A look-up multiplies nothing."""
        return 0

    # --- what kind of model it is -------------------------------------------------------------------

    @property
    def layers(self) -> int:
        return 0

    def frame(self, special: Specials) -> Framing:
        """The words alone: there is no marker that a vector of a text should hold."""
        return Framing([], [], [], pooling="mean", separate=True)

    def parameter_depth(self, name: str) -> None:
        return None


def build(settings: Settings) -> Static:
    return Static(settings)
