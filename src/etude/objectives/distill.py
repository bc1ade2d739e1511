"""Distillation in pre-training: a student reads masked text as its teacher does (DistilBERT, TinyBERT).

DistilBERT (Sanh, Debut, Chaumond, Wolf 2019, sections 2 and 3) learns what its teacher says, each a mean:

    soft     at every token, the teacher's softmax over the vocabulary, both at a temperature     weight 5
    mlm      at the chosen places, the true token, as BERT                                        weight 2
    cosine   at every token, the direction of the teacher's last state                            weight 1

TinyBERT (Jiao et al. 2020) learns what is inside it instead: attention, hidden states, embedding
(objectives/distillation/matching.py). Any of the six may be taken.

It is the masked objective with a teacher, and saved as that: what was distilled is used, exported and fine-tuned like
any masked model. The teacher is no part of it: it has no gradient, no dropout, and is in no checkpoint.

Where this is not DistilBERT's released code (transformers-research-projects, distillation): every token is as likely to
be masked, where the code prefers rare ones (count^-0.7); texts fill rows as BERT's do; positions learn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from etude.chance import Chance
from etude.models.transformer import Transformer
from etude.nn.losses import linear_cross_entropy, linear_losses_and_argmax
from etude.nn.precision import upcast
from etude.nn.soft_targets import OutputLayer, soft_divergence
from etude.nn.states import States
from etude.objectives.base import Stat, Term
from etude.objectives.distillation.matching import MATCHING, Inside, Matching
from etude.objectives.distillation.teacher import Teacher
from etude.objectives.masked import Masked, MaskedBatch, Settings
from etude.objectives.parts.heads import table_width, token_table
from etude.objectives.rows.segments import SegmentRow
from etude.text.tokenizer.special_tokens import Specials


class Ways(Inside):
    """How a student learns from its teacher; the defaults are DistilBERT's."""

    temperature: float = Field(default=2.0, gt=0, description="of both softmaxes")
    soft_weight: float = Field(default=5.0, ge=0)
    mlm_weight: float = Field(default=2.0, ge=0)
    cosine_weight: float = Field(default=1.0, ge=0, description="0 where the widths differ")
    start: Literal["teacher", "random"] = Field(default="teacher", description="the student's first weights")

    @property
    def speaks(self) -> bool:
        """Whether the student's head learns."""
        return bool(self.soft_weight or self.mlm_weight)


class Distill(Masked):
    def __init__(
        self, settings: Settings, model: Transformer, special: Specials, ways: Ways, teacher: Teacher[Masked]
    ) -> None:
        super().__init__(settings, model, special)
        self.ways, self.teacher = ways, teacher.eval()  # no module of this one's: it is neither trained nor saved
        self.matching = Matching(ways, model, teacher.model) if ways.looks_inside else None

    def persistent_state(self) -> dict[str, Tensor]:
        own = {name: one for name, one in self.state_dict().items() if not name.startswith(f"{MATCHING}.")}
        return own if self.ways.speaks else {name: one for name, one in own.items() if not name.startswith("head.")}

    def batch(self, rows: Sequence[SegmentRow], chance: Chance) -> MaskedBatch:
        batch = super().batch(rows, chance)
        everywhere = {"soft": self.ways.soft_weight, "cosine": self.ways.cosine_weight}
        batch.counts |= {name: batch.size for name, weight in everywhere.items() if weight}
        if self.matching is not None:
            batch.counts |= self.matching.counts(batch.layout.lengths)
        return batch

    def loss(self, model: Transformer, batch: MaskedBatch) -> dict[str, Term]:
        states = self._read(model, batch)
        spoken = self._says(model, states, batch) if self.ways.speaks else None
        terms = self._lessons(states, spoken, batch)
        if self.ways.mlm_weight:
            assert spoken is not None
            total = linear_cross_entropy(self._chosen(spoken, batch), spoken.table, spoken.bias, batch.targets)
            terms["mlm"] = Term(total, batch.counts["mlm"], self.ways.mlm_weight)
        return terms

    def metrics(self, model: Transformer, batch: MaskedBatch) -> dict[str, Stat]:
        states = self._read(model, batch)
        spoken = self._says(model, states, batch) if self.ways.speaks else None
        found = {
            name: Stat(term.sum.detach(), term.count, term.weight)
            for name, term in self._lessons(states, spoken, batch).items()
        }
        if spoken is None:  # nothing that it would say was learnt
            return found
        losses, likeliest = linear_losses_and_argmax(
            self._chosen(spoken, batch), spoken.table, spoken.bias, batch.targets
        )
        count = batch.counts["mlm"]
        right = Stat((likeliest == batch.targets).sum(), count)
        return {**found, "mlm": Stat(losses.sum(), count, self.ways.mlm_weight), "accuracy": right}

    def _read(self, model: Transformer, batch: MaskedBatch) -> States:
        states: States = model(batch) if self.matching is None else self.matching.read(model, batch)
        return states

    def _says(self, model: Transformer, states: States, batch: MaskedBatch) -> OutputLayer:
        """At every token, or at the chosen ones where nothing is asked of the others."""
        last = states.last if self.ways.soft_weight else states.last.index_select(0, batch.index)
        return self._said(self, model, states, last)

    @staticmethod
    def _said(objective: Masked, model: Transformer, states: States, last: Tensor) -> OutputLayer:
        """What the logits are made of, at these states."""
        return OutputLayer(objective.head(last), token_table(model, states), objective.head.bias)

    def _chosen(self, spoken: OutputLayer, batch: MaskedBatch) -> Tensor:
        return spoken.hidden.index_select(0, batch.index) if self.ways.soft_weight else spoken.hidden

    def _lessons(self, states: States, spoken: OutputLayer | None, batch: MaskedBatch) -> dict[str, Term]:
        """What is learnt from the teacher."""
        with torch.no_grad():
            taught = self._read(self.teacher.at(batch.tokens.device), batch)
        terms = {}
        if self.ways.soft_weight:
            assert spoken is not None
            with torch.no_grad():
                known = self._said(self.teacher.objective, self.teacher.model, taught, taught.last)
            apart = soft_divergence(spoken, known, self.ways.temperature)
            terms["soft"] = Term(apart, batch.counts["soft"], self.ways.soft_weight)
        if self.ways.cosine_weight:
            alike = F.cosine_similarity(upcast(states.last), upcast(taught.last), dim=-1)  # (N,)
            terms["cosine"] = Term((1 - alike).sum(), batch.counts["cosine"], self.ways.cosine_weight)
        if self.matching is not None:
            terms |= self.matching.terms(states, taught, batch.layout, batch.counts)
        return terms

    def flops(self, model: Transformer, batch: MaskedBatch) -> int:
        lengths, everywhere, slots, ways = batch.layout.lengths, batch.size, batch.counts["mlm"], self.ways
        narrow, logits = table_width(model), (everywhere if ways.soft_weight else 0) + (slots if ways.mlm_weight else 0)
        student, teacher = model.flops(lengths) + 2 * logits * narrow * model.vocab, self.teacher.model.flops(lengths)
        if ways.speaks:
            student += 2 * (everywhere if ways.soft_weight else slots) * narrow * model.width
        if ways.soft_weight:
            teacher += self.teacher.objective.head.flops(everywhere)
        return 3 * student + teacher + (self.matching.flops(lengths) if self.matching is not None else 0)
