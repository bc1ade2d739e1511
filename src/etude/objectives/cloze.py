"""The cloze objective of two-tower models: every token, once, from all others (Baevski et al. 2019, section 3.2).

    cloze        token i at the combiner's output i, which has not seen it
    bilm         no combiner: the forward tower predicts the next token, the backward tower the one before
    cloze+bilm   all three, by one output layer

The loss is the mean of its terms [code]. Text comes in wrapped pieces (wrapped.py): the same boundary symbol at both
ends. Boundary symbols are predicted like tokens (at fine-tuning it is their outputs that are read), which is easy, so
the metric `text` counts the tokens of the text alone: that one compares with other ways to fill a blank. A cloze loss
is no likelihood of the text; the `forward` term of a bilm is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from etude.chance import Chance
from etude.errors import UserError
from etude.models.base import Model, require
from etude.models.two_tower import TowerStates, TwoTower
from etude.nn.char_embedding import CharEmbedding, WordCharacters
from etude.nn.initialization import draw_key, fill_constant, fill_uniform
from etude.nn.losses import linear_losses_and_argmax
from etude.nn.precision import upcast
from etude.nn.softmax import AdaptiveSoftmax, FullSoftmax
from etude.nn.states import States
from etude.objectives.base import IGNORE, Batch, PretrainingObjective, Stat, Term, join
from etude.objectives.batch_view import BatchView, Words, view_aligned
from etude.objectives.parts.adaptive_output import make_adaptive_softmax, refuse_unused_cutoffs
from etude.objectives.rows.boundaries import Stream, WrappedRow, WrappedRows
from etude.objectives.rows.sizes import sequence_length, whole_rows
from etude.settings import Strict
from etude.text.corpus.corpus import Corpus
from etude.text.tokenizer.special_tokens import Specials

ROW = 8  # pieces of full length a row: one in eight is cut by the end of a row
TERMS = {"cloze": ("cloze",), "bilm": ("forward", "backward"), "cloze+bilm": ("cloze", "forward", "backward")}

TERM_NAMES: dict[str, Words] = {
    "cloze": ("cloze", "양쪽에서"),
    "forward": ("forward", "순방향"),
    "backward": ("backward", "역방향"),
}


class Settings(Strict):
    predict: Literal["cloze", "bilm", "cloze+bilm"] = "cloze"
    length: int | None = Field(default=None, ge=3, description="tokens of a piece; the model's context unless given")
    row_tokens: int | None = Field(default=None, ge=3, description="a multiple of length; 8 of them if None")
    boundaries: bool = Field(default=True, description="the cloze term predicts boundary symbols too")
    softmax: Literal["full", "adaptive"] = Field(
        default="full", description="adaptive for words, of which there are many"
    )
    tied: bool = Field(default=True, description="the full softmax takes the model's token table")
    cutoffs: list[int] | None = Field(default=None, description="first ids of the adaptive softmax's clusters")
    division: float = Field(default=4.0, gt=1, description="how much narrower each further cluster is")


@dataclass(kw_only=True)
class ClozeBatch(Batch):
    targets: Tensor  # (terms, N) int64
    inside: Tensor  # (N,) bool: tokens of the text
    rows_of_letters: Tensor | None = None  # (U, length) the different words that are read, where a model reads letters
    words: Tensor | None = None  # (N,) which of them each token is


class Cloze(PretrainingObjective[TwoTower, WrappedRow, ClozeBatch]):
    length: int
    row_tokens: int

    def __init__(self, settings: Settings, model: TwoTower, special: Specials) -> None:
        super().__init__()
        shape = model.settings
        self.settings, self.terms = settings, TERMS[settings.predict]
        self.weight = 1 / len(self.terms)
        self.token_loss = self.terms[0]
        if ("cloze" in self.terms) != (model.combiner is not None):
            raise UserError(
                "a cloze is read from the combiner, and this model has none: set model.combiner=attention, or "
                "objective.predict=bilm."
                if model.combiner is None
                else "objective.predict=bilm never trains the combiner that this model has: set model.combiner=none."
            )
        self.boundary = boundary_of(special)
        self.nats_per_token = "forward" if settings.predict == "bilm" else None
        self.length = sequence_length(settings.length, model.context)
        self.row_tokens = whole_rows(settings.row_tokens, self.length, ROW * self.length)
        self.characters = shape.characters
        self.output = self._layer(shape.width, model.vocab)

    def _layer(self, width: int, vocab: int) -> FullSoftmax | AdaptiveSoftmax:
        settings = self.settings
        refuse_unused_cutoffs(settings)
        if settings.softmax == "adaptive":
            return _draw_glorot(make_adaptive_softmax(settings, width, vocab, fewer_words_fewer_clusters=True))
        if settings.tied and self.characters is not None:
            raise UserError(
                "objective.tied takes the token table as output layer, and a model that reads letters has none: set "
                "objective.softmax=adaptive, or objective.tied=false."
            )
        return FullSoftmax(width, vocab, settings.tied)

    # --- text to batches ----------------------------------------------------------------------------

    def rows(self, corpus: Corpus, seed: int) -> WrappedRows:
        stream = Stream(corpus, self.length, self.boundary)
        return WrappedRows(stream, seed, self.row_tokens, letters=self.characters is not None)

    def view_batch(self, model: TwoTower, batch: ClozeBatch) -> BatchView:
        asks = ("each token from what stands on both of its sides", "토큰마다 그 양쪽의 글로부터 그 토큰")
        if self.settings.predict == "bilm":
            asks = ("forward the next token, backward the one before", "순방향은 다음 토큰, 역방향은 앞 토큰")
        names = [TERM_NAMES[term] for term in self.terms]
        return BatchView(asks, view_aligned(batch, list(batch.targets), names, padding=batch.padding))

    def batch(self, rows: Sequence[WrappedRow], chance: Chance) -> ClozeBatch:
        fields = join(rows, rows[0].most, self.length)
        tokens, bounds = fields["tokens"].numpy(), fields["layout"].host
        inside = np.concatenate([row.inside for row in rows])
        targets = np.stack([self._targets(name, tokens, bounds, inside) for name in self.terms])
        start = 0
        for row in rows:
            targets[:, start + row.counted : start + len(row.tokens)] = IGNORE
            start += len(row.tokens)
        counts = (targets != IGNORE).sum(1).tolist()
        batch = ClozeBatch(
            **fields,
            counts=dict(zip(self.terms, counts, strict=True)),
            targets=torch.from_numpy(targets),
            inside=torch.from_numpy(inside),
        )
        if self.characters is not None:
            letters = WordCharacters.from_words(
                [word for row in rows if row.words is not None for word in row.words], self.characters
            )
            batch.rows_of_letters, batch.words = letters
        return batch

    def _targets(self, term: str, tokens: np.ndarray, bounds: np.ndarray, inside: np.ndarray) -> np.ndarray:
        """(N,) the token that each place predicts, IGNORE where there is none."""
        if term == "cloze":
            return tokens.copy() if self.settings.boundaries else np.where(inside, tokens, IGNORE)
        real = bounds[:-1] < bounds[1:]
        targets = np.roll(tokens, -1 if term == "forward" else 1)
        targets[bounds[1:][real] - 1 if term == "forward" else bounds[:-1][real]] = IGNORE
        return targets

    def frame(self, ids: np.ndarray, context: int | None) -> np.ndarray:
        """One text as a piece of its own: the boundary symbol, the text cut to the context, and the symbol again."""
        room = None if context is None else max(0, context - 2)
        return np.concatenate([[self.boundary], ids[:room], [self.boundary]]).astype(ids.dtype)

    def tokens_per_byte(self, corpus: Corpus) -> float:
        """The forward model predicts the closing boundary of every piece too."""
        pieces = int(Stream(corpus, self.length, self.boundary).before[-1])
        return (corpus.total + pieces) / max(1, corpus.bytes)

    # --- losses -------------------------------------------------------------------------------------

    def _states(self, term: str, states: TowerStates) -> Tensor:
        hidden = {"cloze": states.last, "forward": states.forward_top, "backward": states.backward_top}[term]
        assert hidden is not None
        return hidden

    def _read(self, model: TwoTower, batch: ClozeBatch) -> TowerStates:
        """Each different word is spelled once, outside a compiled model: their number is another in every batch."""
        if batch.rows_of_letters is None or batch.words is None:
            return model(batch)
        spelled = model.embedding.words
        assert isinstance(spelled, CharEmbedding)
        return model(batch, vectors=spelled.network(batch.rows_of_letters)[batch.words])

    def loss(self, model: TwoTower, batch: ClozeBatch) -> dict[str, Term]:
        states = self._read(model, batch)
        return {
            name: Term(self._sum(self._states(name, states), targets, states.table), batch.counts[name], self.weight)
            for name, targets in zip(self.terms, batch.targets, strict=True)
        }

    def _sum(self, states: Tensor, targets: Tensor, table: Tensor | None) -> Tensor:
        if isinstance(self.output, AdaptiveSoftmax):
            used = targets != IGNORE
            return self.output.loss(states[used], targets[used])
        return self.output.loss(states, targets, table)

    def metrics(self, model: TwoTower, batch: ClozeBatch) -> dict[str, Stat]:
        states = self._read(model, batch)
        stats: dict[str, Stat] = {}
        for name, targets in zip(self.terms, batch.targets, strict=True):
            losses, likeliest = self._scores(self._states(name, states), targets, states.table)
            stats[name] = Stat(losses.sum(), batch.counts[name], self.weight)
            if name == "cloze":
                text = batch.inside & (targets != IGNORE)
                count = int(text.sum())
                stats["text"] = Stat((losses * text).sum(), count)
                stats["accuracy"] = Stat(((likeliest == targets) & text).sum(), count)
        return stats

    def _scores(self, states: Tensor, targets: Tensor, table: Tensor | None) -> tuple[Tensor, Tensor]:
        """The loss of every place (N,), 0 where nothing is predicted, and the likeliest token of every place (N,)."""
        if isinstance(self.output, AdaptiveSoftmax):
            states = upcast(states)
            likelihoods = self.output.layer(states, targets.clamp(min=0)).output
            return -likelihoods.masked_fill(targets == IGNORE, 0.0), self.output.layer.predict(states)
        weight = table if self.output.weight is None else self.output.weight
        assert weight is not None
        return linear_losses_and_argmax(states, weight, self.output.bias, targets)

    def logits(self, model: TwoTower, states: States) -> Tensor:
        """(N, V): of each token from all others; of a bilm what follows each."""
        return self.output.logits(states.last[:, : model.settings.width], states.table)

    def flops(self, model: TwoTower, batch: ClozeBatch) -> int:
        """Forward and twice that backward; the output layer once for each term and predicted place."""
        targets = batch.targets.cpu().numpy()
        words = None if batch.rows_of_letters is None else len(batch.rows_of_letters)
        output = sum(self.output.flops(row[row != IGNORE]) for row in targets)
        return 3 * int(model.flops(batch.layout.lengths, words) + output)


def _draw_glorot(layer: AdaptiveSoftmax) -> AdaptiveSoftmax:
    """The layer with first values of the released code: by Glorot and Bengio 2010, and a bias of 0, as it has none."""
    for parameter in layer.parameters():
        if parameter.dim() > 1:
            fill_uniform(parameter, draw_key(), math.sqrt(6 / sum(parameter.shape)))
        else:
            fill_constant(parameter, 0.0)
    return layer


def boundary_of(special: Specials) -> int:
    """The symbol at both ends of a piece."""
    boundary = special.end if special.end is not None else special.separator
    if boundary is None:
        raise UserError(
            "A two-tower model reads text between two boundary symbols, and this tokenizer has neither an end token "
            "nor a separator. Train a tokenizer here, or add such a token to it."
        )
    return boundary


def build(settings: Settings, model: Model, special: Specials) -> Cloze:
    message = (
        f"objective cloze trains a two-tower model, not {model.kind}. Set model.kind: two_tower, or "
        "objective.kind: masked."
    )
    return Cloze(settings, require(model, TwoTower, message), special)
