"""The masked language model, with or without a sentence task (BERT, section 3.1; ALBERT, sections 3.1 and 4.1).

Rows of [CLS] A [SEP] B [SEP] come from `segments.py`, the choice and corruption of tokens from `masking.py`.
Masks are drawn anew in every step (BERT's data held ten fixed copies). Two terms, each a mean over the step,
added with equal weight:

    mlm        the true token at every chosen place, whatever stands there now
    sentence   next: does B follow A in the text (0) or come from elsewhere (1)?  (BERT)
               order: do A and B stand in their order (0) or are they swapped (1)?  (ALBERT)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from etude.chance import Chance
from etude.errors import UserError
from etude.models.base import Model, require
from etude.models.transformer import Transformer
from etude.nn.activations import Activation
from etude.nn.block import first_token_indices
from etude.nn.initialization import draw_key, init_weights
from etude.nn.losses import cross_entropy_sum, linear_cross_entropy, linear_losses_and_argmax
from etude.nn.states import States
from etude.objectives.base import IGNORE, Places, PretrainingObjective, Stat, Term
from etude.objectives.batch_view import BatchView, Words, view_slots
from etude.objectives.parts.heads import MaskedHead, token_table
from etude.objectives.rows import segments
from etude.objectives.rows.masked_rows import Corruption, Masking, SlotBatch
from etude.text.corpus.corpus import Corpus
from etude.text.tokenizer.special_tokens import Specials


class Settings(Masking):
    sentence: segments.Sentence = "none"
    lone: Literal["random", "unlabelled"] = Field(
        default="random", description="a lone sentence under order: ALBERT's code draws a B elsewhere, label 1"
    )
    activation: Activation | None = Field(default=None, description="activation of the head; the model's unless given")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.sentence != "none" and not self.markers:
            raise ValueError(
                f"sentence={self.sentence} is predicted at [CLS], which markers=false leaves out: "
                "set markers=true, or sentence=none"
            )
        return self


SENTENCE_NOTES: dict[tuple[str, int], Words] = {
    ("next", 0): ("next 0: B follows A in the text", "next 0: B는 A 바로 뒤의 글"),
    ("next", 1): ("next 1: B comes from elsewhere", "next 1: B는 다른 곳의 글"),
    ("order", 0): ("order 0: A and B stand in their order", "order 0: A와 B가 제 순서"),
    ("order", 1): ("order 1: A and B are swapped", "order 1: A와 B의 순서가 바뀜"),
}  # of (sentence task, label)
SENTENCE_ASKS: dict[str, Words] = {
    "next": ("of each pair, whether B follows A", "B가 A 뒤의 글인지"),
    "order": ("of each pair, whether it stands in its order", "A와 B가 제 순서인지"),
}


@dataclass(kw_only=True)
class MaskedBatch(SlotBatch):
    labels: Tensor  # (S,) int64, of the sentence task, or IGNORE


class Masked(PretrainingObjective[Transformer, segments.SegmentRow, MaskedBatch]):
    token_loss = "mlm"

    def __init__(self, settings: Settings, model: Transformer, special: Specials) -> None:
        super().__init__()
        if settings.sentence != "none" and model.pooler is None:
            raise UserError(
                f"objective.sentence={settings.sentence} is read from the pooled [CLS]: set model.pooler=true, "
                "or objective.sentence=none."
            )
        self.settings = settings
        self.corruption = Corruption(
            settings, model, special, kind="masked", sentence=settings.sentence, lone=settings.lone
        )
        self.row_rules, self.slots = self.corruption.row_rules, self.corruption.slots
        self.length, self.row_tokens = self.row_rules.length, self.row_rules.row_tokens
        self.head = MaskedHead.over(model, settings.activation)
        self.sentence = None
        if settings.sentence != "none":
            self.sentence = nn.Linear(model.width, 2)
            sizes = model.settings
            init_weights(self.sentence, key=draw_key(), deviation=sizes.init_deviation, truncated=sizes.init_truncated)

    def rows(self, corpus: Corpus, seed: int) -> segments.SegmentRows:
        return self.corruption.rows(corpus, seed)

    def batch(self, rows: Sequence[segments.SegmentRow], chance: Chance) -> MaskedBatch:
        fields, _, used = self.corruption.fields(rows, chance)
        labels = np.full(len(fields["layout"].host) - 1, IGNORE, np.int64)
        sentence_labels = np.concatenate([row.labels for row in rows])
        labels[: len(sentence_labels)] = sentence_labels
        counts = {"mlm": used}
        if self.sentence is not None:
            counts["sentence"] = int((sentence_labels != IGNORE).sum())
        return MaskedBatch(**fields, counts=counts, labels=torch.from_numpy(labels))

    def view_batch(self, model: Transformer, batch: MaskedBatch) -> BatchView:
        mask, labels, kind = self.corruption.special.mask, batch.labels.tolist(), self.settings.sentence
        notes = [SENTENCE_NOTES.get((kind, label), ("", "")) for label in labels]

        def mark(token: int, target: int) -> str:
            return "masked" if token == mask else "kept" if token == target else "random"

        asks = ("the true token at every marked place", "표시된 자리마다 원래 토큰")
        if self.settings.sentence in SENTENCE_ASKS:
            question = SENTENCE_ASKS[self.settings.sentence]
            asks = (f"{asks[0]}; and {question[0]}", f"{asks[1]}, 그리고 {question[1]}")
        return BatchView(asks, view_slots(batch, batch.index, batch.targets, mark, notes, batch.padding))

    def frame(self, ids: np.ndarray, context: int | None) -> np.ndarray:
        return self.corruption.frame(ids, context)

    def loss(self, model: Transformer, batch: MaskedBatch) -> dict[str, Term]:
        return self._terms(model, self._states(model, batch), batch)

    def metrics(self, model: Transformer, batch: MaskedBatch) -> dict[str, Stat]:
        return self._stats(model, self._states(model, batch), batch)

    def _terms(self, model: Transformer, states: States, batch: MaskedBatch) -> dict[str, Term]:
        hidden, table = self._hidden(model, states, batch)
        terms = {"mlm": Term(linear_cross_entropy(hidden, table, self.head.bias, batch.targets), batch.counts["mlm"])}
        if self.sentence is not None:
            total = cross_entropy_sum(self._sentence(model, states, batch), batch.labels)
            terms["sentence"] = Term(total, batch.counts["sentence"])
        return terms

    def _stats(self, model: Transformer, states: States, batch: MaskedBatch) -> dict[str, Stat]:
        hidden, table = self._hidden(model, states, batch)
        losses, likeliest = linear_losses_and_argmax(hidden, table, self.head.bias, batch.targets)
        count = batch.counts["mlm"]
        stats = {
            "mlm": Stat(losses.sum(), count, 1.0),
            "accuracy": Stat((likeliest == batch.targets).sum(), count),
        }
        if self.sentence is not None:
            logits, count = self._sentence(model, states, batch), batch.counts["sentence"]
            stats["sentence"] = Stat(cross_entropy_sum(logits, batch.labels).detach(), count, 1.0)
            stats["sentence_accuracy"] = Stat((logits.argmax(-1) == batch.labels).sum(), count)
        return stats

    def logits(self, model: Transformer, states: States) -> Tensor:
        return F.linear(self.head(states.last), token_table(model, states), self.head.bias)  # (N, V)

    def _states(self, model: Transformer, batch: MaskedBatch) -> States:
        states: States = model(batch, only=self._places(batch))
        return states

    def _places(self, batch: MaskedBatch) -> Tensor:
        """Where states are read: the slots (M,), and behind them the first tokens (S,) for a sentence task."""
        if self.sentence is None:
            return batch.index
        return torch.cat([batch.index, first_token_indices(batch.layout, len(batch.tokens))])

    def _hidden(self, model: Transformer, states: States, batch: MaskedBatch) -> tuple[Tensor, Tensor]:
        """(M, E) and (V, E): their product, and a bias, are the logits of the slots."""
        return self.head(states.last[: len(batch.index)]), token_table(model, states)

    def _sentence(self, model: Transformer, states: States, batch: MaskedBatch) -> Tensor:
        assert self.sentence is not None
        first = states.last[len(batch.index) : len(batch.index) + len(batch.labels)]
        return self.sentence(model.pool_of(first))  # (S, 2)

    def count_places(self, batch: MaskedBatch) -> Places:
        return Places(len(self._places(batch)), len(batch.index))

    def flops(self, model: Transformer, batch: MaskedBatch) -> int:
        slots, labelled = batch.counts["mlm"], 0 if self.sentence is None else batch.counts["sentence"]
        forward = model.flops(batch.layout.lengths, only=slots + labelled) + self.head.flops(slots)
        # the pooler and the two-way layer, once a labelled sequence
        return 3 * (forward + 2 * labelled * model.width * (model.width + 2))


def build(settings: Settings, model: Model, special: Specials) -> Masked:
    message = f"objective masked trains a Transformer, not {model.kind}. Set model.kind: transformer."
    return Masked(settings, require(model, Transformer, message), special)
