"""Word vectors by ranking: a window of text must score higher than the same window with another word in its middle.

Collobert et al. 2011, section 4.2 (first Collobert & Weston 2008):

    sum over windows s, words w:  max(0, 1 - f(s) + f(s with w in the middle))
    f(s) = v . HardTanh(W [vectors of the words of s] + b)

A softmax over all words was out of reach; a margin needs only a few words a window, drawn uniformly from the
dictionary, as there. Windows end with their sentence (the paper takes any 11 words of a text); unknown words are read,
and neither scored nor drawn. `right` is the share of pairs ranked the right way round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from etude.chance import Chance, integers
from etude.errors import UserError
from etude.models.base import Model, require
from etude.models.static import Static
from etude.nn.packed import Layout, Packed
from etude.nn.precision import upcast
from etude.nn.window_layer import WindowLayer
from etude.objectives.base import Batch, PretrainingObjective, Row, Stat, Term, join
from etude.objectives.batch_view import BatchView, TokenView, view_list
from etude.settings import Strict
from etude.text.corpus.corpus import Corpus
from etude.text.tokenizer.special_tokens import Specials


class Settings(Strict):
    window: int = Field(default=11, ge=3, description="words; the middle one is tried against negatives")
    hidden: int = Field(default=100, ge=1)
    negatives: int = Field(default=1, ge=1, description="other words for each window")
    margin: float = Field(default=1.0, gt=0)
    row_tokens: int = Field(default=500, ge=1, description="tokens of a row, the text that is cut at once")


class Spans:
    """Row i is the i-th stretch of the corpus; its sequences are sentences, the first and last of them parts."""

    shuffle = True

    def __init__(self, corpus: Corpus, row_tokens: int) -> None:
        self.corpus = corpus
        self.row_tokens: int | None = row_tokens
        self.span = row_tokens
        self.count = max(1, corpus.total // row_tokens)  # a rest is left

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Row:
        start = index % self.count * self.span
        stop = min(start + self.span, self.corpus.total)
        sentences = self.corpus.sentences
        inner = sentences.slice(sentences.find(start) + 1, sentences.find(stop - 1) + 1)
        bounds = np.concatenate([[0], inner - start, [stop - start]]).astype(np.int32)
        return Row(index, self.corpus.tokens(start, stop), bounds)


@dataclass(kw_only=True)
class RankBatch(Batch):
    negatives: Tensor  # (N, K) int64
    scored: Tensor  # (N,) float32, 1 where the word is known


class Ranking(PretrainingObjective[Static, Row, RankBatch]):
    def __init__(self, settings: Settings, model: Static, special: Specials) -> None:
        super().__init__()
        if settings.window % 2 == 0:
            raise UserError(f"objective.window={settings.window} has no middle: take an odd number.")
        self.settings, self.unknown = settings, special.unknown
        self._shape = [model]  # in a list: the model is no part of the objective
        self.row_tokens = settings.row_tokens
        self.window = WindowLayer(model.width, settings.window, settings.hidden)
        self.output = nn.Linear(settings.hidden, 1)
        words = np.setdiff1d(np.arange(model.vocab), special.ids())
        if len(words) < 2:
            raise UserError("The vocabulary has no two words to rank against each other.")
        self.words = words  # what may be drawn

    def rows(self, corpus: Corpus, seed: int) -> Spans:
        if corpus.split == "train":
            self._shape[0].set_counts(corpus.token_counts())
        return Spans(corpus, self.settings.row_tokens)

    def batch(self, rows: Sequence[Row], chance: Chance) -> RankBatch:
        # sentences of a row vary in number: padded to what a row could hold at most, shapes would be mostly padding
        fields = join(rows, sequences=0, longest=self.settings.row_tokens)
        negatives = [self._draw(chance, row) for row in rows]
        scored = fields["tokens"] != (-1 if self.unknown is None else self.unknown)
        return RankBatch(
            **fields,
            counts={"ranking": int(scored.sum())},
            negatives=torch.from_numpy(np.concatenate(negatives)),
            scored=scored.float(),
        )

    def view_batch(self, model: Static, batch: RankBatch) -> BatchView:
        half = self.settings.window // 2
        asks = (
            f"the word between {half} others on each side above one drawn at random",
            f"양쪽 {half}개 낱말 사이의 낱말이 무작위로 뽑은 낱말보다 높게",
        )
        scored, negatives = batch.scored.tolist(), batch.negatives.tolist()
        items = [
            TokenView(
                word, targets=tuple(negatives[place]) if scored[place] else (), note="" if scored[place] else "read"
            )
            for place, word in enumerate(batch.tokens.tolist())
        ]
        return BatchView(asks, view_list(items, ("above", ">"), batch.layout.host))

    def _draw(self, chance: Chance, row: Row) -> np.ndarray:
        """(n, K) words of the dictionary, each as likely; a draw may be the word itself, which then adds the margin."""
        shape = (len(row.tokens), self.settings.negatives)
        index = np.arange(shape[0] * shape[1])
        return self.words[integers(chance.key("negative", row.index), index, len(self.words))].reshape(shape)

    def scores(self, model: Static, batch: RankBatch) -> tuple[Tensor, Tensor]:
        """(N,) of the windows as they are, (N, K) with other words in their middle."""
        x = model(batch).last  # (N, D)
        negatives = model(_flat(batch, batch.negatives)).last.view(*batch.negatives.shape, -1)  # (N, K, D)
        hidden = self.window(x, batch.layout)
        swapped = self.window.replace_middle(hidden, x, negatives)
        return upcast(self.output(F.hardtanh(hidden)))[:, 0], upcast(self.output(F.hardtanh(swapped)))[..., 0]

    def loss(self, model: Static, batch: RankBatch) -> dict[str, Term]:
        own, negatives = self.scores(model, batch)
        hinge = F.relu(self.settings.margin - own[:, None] + negatives).mean(1)
        return {"ranking": Term((hinge * batch.scored).sum(), batch.counts["ranking"])}

    @torch.no_grad()
    def metrics(self, model: Static, batch: RankBatch) -> dict[str, Stat]:
        own, negatives = self.scores(model, batch)
        hinge = F.relu(self.settings.margin - own[:, None] + negatives).mean(1)
        right = (own[:, None] > negatives).float().mean(1)
        count = batch.counts["ranking"]
        return {
            "ranking": Stat((hinge * batch.scored).sum(), count, weight=1.0),
            "right": Stat((right * batch.scored).sum(), count),
        }

    def flops(self, model: Static, batch: RankBatch) -> int:
        """Forward and twice that backward."""
        tokens, negatives = batch.layout.total, self.settings.negatives
        return 3 * (self.window.flops(tokens, negatives) + 2 * tokens * (1 + negatives) * self.settings.hidden)


def _flat(batch: RankBatch, tokens: Tensor) -> Packed:
    """Words that stand alone, for a model that looks at nothing else."""
    flat = tokens.reshape(-1)
    layout = Layout.from_bounds(np.array([0, len(flat)]), len(flat))
    device = flat.device
    layout = layout if device.type == "cpu" else replace(layout, bounds=layout.bounds.to(device, non_blocking=True))
    return Packed(flat, torch.zeros_like(flat), None, layout)


def build(settings: Settings, model: Model, special: Specials) -> Ranking:
    message = f"objective ranking makes word vectors, not {model.kind}. Set model.kind: static."
    vectors = require(model, Static, message)
    if vectors.settings.buckets:
        raise UserError("objective ranking knows whole words only: set model.buckets to 0.")
    return Ranking(settings, vectors, special)
