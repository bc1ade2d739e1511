"""Distillation in pre-training (DistilBERT: Sanh, Debut, Chaumond, Wolf 2019, sections 2 and 3).

A student reads masked text as its teacher does, and learns three things, each a mean, added with their weights:

    soft     at every token, the teacher's softmax over the vocabulary, both at a temperature     weight 5
    mlm      at the chosen places, the true token, as BERT                                        weight 2
    cosine   at every token, the direction of the teacher's last state                            weight 1

It is the masked objective with a teacher, and saved as that: what was distilled is used, exported and fine-tuned like
any masked model. The teacher is no part of it: it has no gradient, no dropout, and is in no checkpoint.

Where this is not the released code (transformers-research-projects, distillation): every token is as likely to be
masked, where the code prefers rare ones (count^-0.7); texts fill rows as BERT's do; positions learn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from etude.nn.losses import linear_cross_entropy, linear_scores
from etude.nn.precision import wide
from etude.nn.soft_targets import Output, soft_divergence
from etude.nn.states import States
from etude.objectives.base import Stat, Term
from etude.objectives.heads import table_width, token_table
from etude.objectives.masked import Masked, Settings
from etude.settings import Strict


class Ways(Strict):
    """How a student learns from its teacher; the defaults are DistilBERT's."""

    temperature: float = Field(default=2.0, gt=0, description="of both softmaxes")
    soft_weight: float = Field(default=5.0, ge=0)
    mlm_weight: float = Field(default=2.0, ge=0)
    cosine_weight: float = Field(default=1.0, ge=0, description="0 where the widths differ")
    start: Literal["teacher", "random"] = Field(default="teacher", description="the student's first weights")
    layers: list[int] | None = Field(default=None, description="of the teacher, one a layer; evenly spread if None")


@dataclass
class Teacher:
    model: Any
    objective: Masked

    def eval(self) -> Teacher:
        for part in (self.model, self.objective):
            part.eval().requires_grad_(False)
        return self

    @torch.no_grad()
    def __call__(self, batch: Any) -> tuple[Tensor, Output]:
        """(N, D) its last states, and what its logits are made of."""
        device = batch.tokens.device
        if self.objective.head.bias.device != device:  # the first time
            self.model.to(device)
            self.objective.to(device)
        states = self.model(batch)
        hidden, bias = self.objective.head(states.last), self.objective.head.bias
        return states.last, Output(hidden, token_table(self.model, states), bias)

    def flops(self, batch: Any) -> int:
        return self.model.flops(batch.layout.lengths) + self.objective.head.flops(self.model, batch.size)


class Distill(Masked):
    def __init__(self, settings: Settings, model: Any, special: Any, ways: Ways, teacher: Teacher) -> None:
        super().__init__(settings, model, special)
        self.ways, self.teacher = ways, teacher.eval()  # no module of this one's: it is neither trained nor saved

    def batch(self, rows: Any, chance: Any) -> Any:
        batch = super().batch(rows, chance)
        everywhere = {"soft": self.ways.soft_weight, "cosine": self.ways.cosine_weight}
        batch.counts |= {name: batch.size for name, weight in everywhere.items() if weight}
        return batch

    def loss(self, model: Any, batch: Any) -> dict[str, Term]:
        states, spoken = self._student(model, batch)
        terms = self._lessons(states, spoken, batch)
        if self.ways.mlm_weight:
            chosen = spoken.hidden.index_select(0, batch.index)
            total = linear_cross_entropy(chosen, spoken.table, spoken.bias, batch.targets)
            terms["mlm"] = Term(total, batch.counts["mlm"], self.ways.mlm_weight)
        return terms

    def metrics(self, model: Any, batch: Any) -> dict[str, Stat]:
        states, spoken = self._student(model, batch)
        found = {
            name: Stat(term.sum.detach(), term.count, term.weight)
            for name, term in self._lessons(states, spoken, batch).items()
        }
        chosen = spoken.hidden.index_select(0, batch.index)
        losses, likeliest = linear_scores(chosen, spoken.table, spoken.bias, batch.targets)
        count = batch.counts["mlm"]
        right = Stat((likeliest == batch.targets).sum(), count)
        return {**found, "mlm": Stat(losses.sum(), count, self.ways.mlm_weight), "accuracy": right}

    def _student(self, model: Any, batch: Any) -> tuple[States, Output]:
        states = model(batch)
        return states, Output(self.head(states.last), token_table(model, states), self.head.bias)

    def _lessons(self, states: States, spoken: Output, batch: Any) -> dict[str, Term]:
        """What is learnt from the teacher."""
        taught, known = self.teacher(batch)
        terms = {}
        if self.ways.soft_weight:
            apart = soft_divergence(spoken, known, self.ways.temperature)
            terms["soft"] = Term(apart, batch.counts["soft"], self.ways.soft_weight)
        if self.ways.cosine_weight:
            alike = F.cosine_similarity(wide(states.last), wide(taught), dim=-1)  # (N,)
            terms["cosine"] = Term((1 - alike).sum(), batch.counts["cosine"], self.ways.cosine_weight)
        return terms

    def flops(self, model: Any, batch: Any) -> int:
        everywhere, slots = batch.size, batch.counts["mlm"]
        scores = 2 * slots * table_width(model) * model.vocab  # of the true tokens, beside those of all
        student = model.flops(batch.layout.lengths) + self.head.flops(model, everywhere) + scores
        return 3 * student + self.teacher.flops(batch)
