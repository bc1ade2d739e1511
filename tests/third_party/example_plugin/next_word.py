"""An objective: the next token of a stretch of text, by an output layer of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from etude.chance import Chance
from etude.models.base import Model
from etude.nn.states import States
from etude.objectives.base import IGNORE, Batch, PretrainingObjective, Row, Term, join
from etude.settings import Strict
from etude.text.corpus.corpus import Corpus
from etude.text.tokenizer.special_tokens import Specials


class Settings(Strict):
    row_tokens: int = Field(default=128, ge=2)


@dataclass(kw_only=True)
class TargetBatch(Batch):
    targets: Tensor  # (N,) int64


class Stretches:
    """Row i is the i-th stretch of the corpus."""

    shuffle = True

    def __init__(self, corpus: Corpus, row_tokens: int) -> None:
        self.corpus, self.size = corpus, row_tokens
        self.row_tokens = row_tokens

    def __len__(self) -> int:
        return max(1, self.corpus.total // self.size)

    def __getitem__(self, index: int) -> Row:
        start = index % len(self) * self.size
        tokens = self.corpus.tokens(start, min(start + self.size, self.corpus.total))
        return Row(index, tokens, np.array([0, len(tokens)], np.int32))


class NextWord(PretrainingObjective[Model, Row, TargetBatch]):
    nats_per_token = "loss"
    token_loss = "loss"

    def __init__(self, settings: Settings, model: Model) -> None:
        super().__init__()
        self.row_tokens = settings.row_tokens
        self.stretch = settings.row_tokens
        self.output = nn.Linear(model.width, model.vocab)

    def rows(self, corpus: Corpus, seed: int) -> Stretches:
        return Stretches(corpus, self.stretch)

    def batch(self, rows: Sequence[Row], chance: Chance) -> TargetBatch:
        targets = np.concatenate([np.append(row.tokens[1:], IGNORE) for row in rows]).astype(np.int64)
        packed = join(rows, sequences=1, longest=self.stretch)
        return TargetBatch(**packed, counts={"loss": int((targets != IGNORE).sum())}, targets=torch.from_numpy(targets))

    def loss(self, model: Model, batch: TargetBatch) -> dict[str, Term]:
        scores = self.logits(model, model(batch))
        return {"loss": Term(F.cross_entropy(scores, batch.targets, reduction="sum"), batch.counts["loss"])}

    def logits(self, model: Model, states: States) -> Tensor:
        scores: Tensor = self.output(states.last)  # (N, V)
        return scores

    def flops(self, model: Model, batch: TargetBatch) -> int:
        return 3 * (model.flops(batch.layout.lengths) + 2 * batch.size * model.width * model.vocab)


def build(settings: Settings, model: Model, special: Specials) -> NextWord:
    return NextWord(settings, model)
