"""Distillation in pre-training: a student reads masked text as its teacher does (DistilBERT, TinyBERT).

DistilBERT (Sanh, Debut, Chaumond, Wolf 2019, sections 2 and 3) learns what its teacher says, each a mean:

    soft     at every token, the teacher's softmax over the vocabulary, both at a temperature     weight 5
             (with `soft_at: masks` at the chosen places alone: `restrict_ce_to_mask` of the released code)
    mlm      at the chosen places, the true token, as BERT                                        weight 2
    cosine   at every token, the direction of the teacher's last state                            weight 1

TinyBERT (Jiao et al. 2020) learns what is inside it instead: attention, hidden states, embedding
(objectives/distillation/matching.py). Any of the six may be taken.

It is the masked objective with a teacher, and saved as that: what was distilled is used, exported and fine-tuned like
any masked model. The teacher is no part of it: it has no gradient, no dropout, and is in no checkpoint. Until one is
attached (`attach_teacher`), and in use, it is the masked objective.

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
from etude.errors import UserError
from etude.models.transformer import Transformer
from etude.nn.losses import linear_cross_entropy, linear_losses_and_argmax
from etude.nn.precision import upcast
from etude.nn.soft_targets import OutputLayer, soft_divergence
from etude.nn.states import States
from etude.objectives import masked
from etude.objectives.base import IGNORE, Stat, Term
from etude.objectives.distillation.matching import Matching, MatchingSettings, find_mismatches
from etude.objectives.distillation.teacher import Teacher
from etude.objectives.masked import Masked, MaskedBatch
from etude.objectives.parts.heads import MaskedHead, table_width, token_table
from etude.objectives.rows.segments import SegmentRow
from etude.text.tokenizer.special_tokens import Specials


class DistillSettings(MatchingSettings):
    """What a student learns from its teacher; the defaults are DistilBERT's."""

    temperature: float = Field(default=2.0, gt=0, description="temperature of the softmax of teacher and student")
    soft_weight: float = Field(default=5.0, ge=0)
    soft_at: Literal["tokens", "masks"] = Field(default="tokens", description="where both softmaxes are compared")
    mlm_weight: float = Field(default=2.0, ge=0)
    cosine_weight: float = Field(
        default=1.0, ge=0, description="weight of the cosine loss between hidden states; 0 where the widths differ"
    )
    start: Literal["teacher", "random"] = Field(default="teacher", description="the student's first weights")

    @property
    def trains_head(self) -> bool:
        return bool(self.soft_weight or self.mlm_weight)

    @property
    def reads_all_logits(self) -> bool:
        """Whether logits are needed at every token, not at the masked ones alone."""
        return bool(self.soft_weight) and self.soft_at == "tokens"


class Settings(masked.Settings):
    """Those of the masked objective, and a group of their own for what the teacher adds."""

    distill: DistillSettings = DistillSettings()


class Distill(Masked):
    settings: Settings
    training_state = ("matching.",)  # projections

    def __init__(self, settings: Settings, model: Transformer, special: Specials) -> None:
        super().__init__(settings, model, special)
        self.distill = settings.distill
        self.teacher: Teacher[Masked] | None = None  # no sub-module: it is neither trained nor saved
        self.matching: Matching | None = None

    def attach_teacher(self, model: Transformer, teacher: Teacher[Masked]) -> None:
        """Trains the student `model` on this teacher from here on; UserError where the two do not fit."""
        settings = self.distill
        problems = []
        if self.sentence is not None:
            problems.append("A student has no sentence task: set objective.sentence=none and model.pooler=false.")
        if settings.cosine_weight and model.width != teacher.model.width:
            width = teacher.model.width
            heads = f" model.heads={teacher.model.settings.heads}" if width % model.settings.heads else ""
            problems.append(
                f"Between states of width {model.width} and the teacher's of {width} there is no angle: "
                f"set model.width={width}{heads}, or distill.cosine_weight=0."
            )
        if not (settings.trains_head or settings.cosine_weight or settings.matches_layers):
            problems.append(
                "All weights of distill are 0 and nothing is learnt: set one, such as distill.soft_weight=5."
            )
        if model.context > teacher.model.context:
            limit = teacher.model.context
            length = f" objective.length={limit}" if (self.length or 0) > limit else ""
            problems.append(f"The teacher sees {limit} tokens: set model.context={limit}{length}, or less.")
        if self.settings.pair_rate and teacher.model.settings.segments == 1:
            problems.append("The teacher has one kind of segment and reads no pairs: set objective.pair_rate=0.")
        if settings.matches_layers:
            problems += find_mismatches(settings, model, teacher.model)
        if problems:
            raise UserError(" ".join(problems))
        self.teacher = teacher.eval()
        if settings.matches_layers:
            MaskedHead.over(model)  # draws, as runs before did here: theirs repeat bit for bit
            self.matching = Matching(settings, model, teacher.model)

    def persistent_state(self) -> dict[str, Tensor]:
        dropped = self.training_state if self.distill.trains_head else (*self.training_state, "head.")
        return {name: tensor for name, tensor in self.state_dict().items() if not name.startswith(dropped)}

    def batch(self, rows: Sequence[SegmentRow], chance: Chance) -> MaskedBatch:
        batch = super().batch(rows, chance)
        if self.teacher is None:
            return batch
        if self.distill.soft_weight:
            batch.counts["soft"] = batch.size if self.distill.reads_all_logits else batch.counts["mlm"]
        if self.distill.cosine_weight:
            batch.counts["cosine"] = batch.size
        if self.matching is not None:
            batch.counts |= self.matching.counts(batch.layout.lengths)
        return batch

    def loss(self, model: Transformer, batch: MaskedBatch) -> dict[str, Term]:
        if self.teacher is None:
            return super().loss(model, batch)
        states = self._forward(model, batch)
        output = self._student_output(model, states, batch)
        terms = self._teacher_terms(self.teacher, states, output, batch)
        if self.distill.mlm_weight:
            assert output is not None
            total = linear_cross_entropy(self._at_masks(output, batch), output.table, output.bias, batch.targets)
            terms["mlm"] = Term(total, batch.counts["mlm"], self.distill.mlm_weight)
        return terms

    def metrics(self, model: Transformer, batch: MaskedBatch) -> dict[str, Stat]:
        if self.teacher is None:
            return super().metrics(model, batch)
        states = self._forward(model, batch)
        output = self._student_output(model, states, batch)
        terms = self._teacher_terms(self.teacher, states, output, batch)
        stats = {name: Stat(term.sum.detach(), term.count, term.weight) for name, term in terms.items()}
        if output is None:  # its head is not trained
            return stats
        losses, likeliest = linear_losses_and_argmax(
            self._at_masks(output, batch), output.table, output.bias, batch.targets
        )
        count = batch.counts["mlm"]
        stats["mlm"] = Stat(losses.sum(), count, self.distill.mlm_weight)
        stats["accuracy"] = Stat((likeliest == batch.targets).sum(), count)
        return stats

    def _forward(self, model: Transformer, batch: MaskedBatch) -> States:
        """The states that are compared, of student or teacher."""
        return model(batch) if self.matching is None else self.matching.forward_states(model, batch)

    def _student_output(self, model: Transformer, states: States, batch: MaskedBatch) -> OutputLayer | None:
        """What logits are made of, at every token, or at the masked ones where no term needs the others."""
        if not self.distill.trains_head:
            return None
        return _output_layer(self, model, states, self._select_states(states, batch))

    def _select_states(self, states: States, batch: MaskedBatch) -> Tensor:
        return states.last if self.distill.reads_all_logits else states.last.index_select(0, batch.index)

    def _at_masks(self, output: OutputLayer, batch: MaskedBatch) -> Tensor:
        """(M, E) hidden states of the slots."""
        return output.hidden.index_select(0, batch.index) if self.distill.reads_all_logits else output.hidden

    def _teacher_terms(
        self, teacher: Teacher[Masked], states: States, output: OutputLayer | None, batch: MaskedBatch
    ) -> dict[str, Term]:
        with torch.no_grad():
            target = self._forward(teacher.at(batch.tokens.device), batch)
        terms = {}
        if self.distill.soft_weight:
            assert output is not None
            with torch.no_grad():
                known = self._select_states(target, batch)
                target_output = _output_layer(teacher.objective, teacher.model, target, known)
            counted = None if self.distill.reads_all_logits else batch.targets != IGNORE  # some slots are unused
            total = soft_divergence(output, target_output, self.distill.temperature, counted=counted)
            terms["soft"] = Term(total, batch.counts["soft"], self.distill.soft_weight)
        if self.distill.cosine_weight:
            cosine = F.cosine_similarity(upcast(states.last), upcast(target.last), dim=-1)  # (N,)
            terms["cosine"] = Term((1 - cosine).sum(), batch.counts["cosine"], self.distill.cosine_weight)
        if self.matching is not None:
            terms |= self.matching.terms(states, target, batch.layout, batch.counts)
        return terms

    def flops(self, model: Transformer, batch: MaskedBatch) -> int:
        if self.teacher is None:
            return super().flops(model, batch)
        lengths, tokens, slots, settings = batch.layout.lengths, batch.size, batch.counts["mlm"], self.distill
        narrow = table_width(model)
        compared = tokens if settings.reads_all_logits else slots
        logits = (compared if settings.soft_weight else 0) + (slots if settings.mlm_weight else 0)
        student, teacher = model.flops(lengths) + 2 * logits * narrow * model.vocab, self.teacher.model.flops(lengths)
        if settings.trains_head:
            student += 2 * compared * narrow * model.width
        if settings.soft_weight:
            teacher += self.teacher.objective.head.flops(compared)
        return 3 * student + teacher + (self.matching.flops(lengths) if self.matching is not None else 0)


def _output_layer(objective: Masked, model: Transformer, states: States, last: Tensor) -> OutputLayer:
    """What logits are made of, at these states."""
    return OutputLayer(objective.head(last), token_table(model, states), objective.head.bias)


def build(settings: Settings, model: Transformer, special: Specials) -> Distill:
    return Distill(settings, model, special)
