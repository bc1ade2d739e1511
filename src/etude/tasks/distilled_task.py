"""Distillation of a fine-tuned task (TinyBERT: Jiao et al. 2020, the second stage).

    soft        the teacher's softmax over the labels, both at a temperature   times its square; a mean over examples
    hard        the true labels
    attention, hidden, embedding    what is inside the teacher (objectives/distillation/matching.py)

The paper learns the inside first and then, from there, the answers: two runs, the second from the first. A head that
was trained with neither soft nor hard is untrained, and gives no answers.

The released code has a cross-entropy for `soft`, which differs from this divergence by a constant, and divides it by
the number of labels too; its teacher keeps its dropout on, here it has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from etude.chance import Chance
from etude.errors import UserError
from etude.models.base import Model, require
from etude.models.depth import training_flops
from etude.models.transformer import Transformer
from etude.nn.states import States
from etude.objectives.base import Batch, Objective, Row, Rows, Stat, Term
from etude.objectives.distillation.matching import Matching, MatchingSettings
from etude.objectives.distillation.teacher import Teacher
from etude.tasks.base import Task
from etude.tasks.classify import LabelTask
from etude.tasks.data.examples import Examples
from etude.tasks.pooled_head import ExampleBatch


class TaskDistillSettings(MatchingSettings):
    """How a task is learnt from a teacher; the defaults are the last step of TinyBERT's."""

    teacher: str = Field(description="a run of the same task")
    temperature: float = Field(default=1.0, gt=0, description="temperature of the softmax of teacher and student")
    soft_weight: float = Field(default=1.0, ge=0, description="of the teacher's answers")
    hard_weight: float = Field(default=0.0, ge=0, description="of the true labels")

    @property
    def answers(self) -> bool:
        """Whether the head learns."""
        return bool(self.soft_weight or self.hard_weight)


WHOLE_TRANSFORMERS = (
    "A teacher and its student are Transformers that are fine-tuned as a whole: leave out transfer.frozen and "
    "transfer.layers, and take such a run for distill.teacher."
)


class DistilledTask(Objective[Transformer, Row, Batch]):
    """The task's own batches and scores, with the teacher's terms in place of its loss."""

    def __init__(self, task: Task, distill: TaskDistillSettings, model: Model, teacher: Teacher[Task]) -> None:
        super().__init__()
        student = check(task, distill, model, teacher)
        self.task, self.distill, self.teacher = task, distill, teacher.eval()  # the teacher is no module of this one's
        self.matching = Matching(distill, student, teacher.model) if distill.matches_layers else None

    def rows(self, corpus: Examples[Any], seed: int = 0) -> Rows[Row]:
        return self.task.rows(corpus, seed)

    def batch(self, rows: Sequence[Row], chance: Chance) -> Batch:
        batch: Batch = self.task.batch(rows, chance)
        weights = {"soft": self.distill.soft_weight, "hard": self.distill.hard_weight}
        batch.counts = {name: len(rows) for name, weight in weights.items() if weight}
        if self.matching is not None:
            batch.counts |= self.matching.counts(batch.layout.lengths)
        return batch

    def loss(self, model: Transformer, batch: Batch) -> dict[str, Term]:
        return self._terms(model, batch)[0]

    def metrics(self, model: Transformer, batch: Batch) -> dict[str, Stat]:
        terms, logits = self._terms(model, batch)
        stats = {name: Stat(term.sum.detach(), term.count, term.weight) for name, term in terms.items()}
        if logits is not None:
            assert isinstance(batch, ExampleBatch) and batch.labels is not None
            stats["accuracy"] = Stat((logits.argmax(-1) == batch.labels).sum(), len(logits))
        return stats

    def _terms(self, model: Transformer, batch: Batch) -> tuple[dict[str, Term], Tensor | None]:
        """The terms, and the student's logits of labels where it gives any, (R, labels)."""
        distill, task = self.distill, self.task
        states = self._read(model, batch)
        with torch.no_grad():
            teacher = self.teacher.at(batch.tokens.device)
            teacher_states = self._read(teacher, batch)
        terms: dict[str, Term] = {}
        logits: Tensor | None = None
        if distill.answers:
            assert isinstance(task, LabelTask) and isinstance(self.teacher.objective, LabelTask)
            assert isinstance(batch, ExampleBatch) and batch.labels is not None
            logits = task.pooled.scores(model, states, batch)
            if distill.soft_weight:
                with torch.no_grad():
                    teacher_logits = self.teacher.objective.pooled.scores(teacher, teacher_states, batch)
                total = label_divergence(logits, teacher_logits, distill.temperature)
                terms["soft"] = Term(total, batch.counts["soft"], distill.soft_weight)
            if distill.hard_weight:
                total = F.cross_entropy(logits, batch.labels, reduction="sum")
                terms["hard"] = Term(total, batch.counts["hard"], distill.hard_weight)
        if self.matching is not None:
            terms |= self.matching.terms(states, teacher_states, batch.layout, batch.counts)
        return terms, logits

    def _read(self, model: Transformer, batch: Batch) -> States:
        return model(batch) if self.matching is None else self.matching.forward_states(model, batch)

    def flops(self, model: Transformer, batch: Batch) -> int:
        lengths = batch.layout.lengths
        total = training_flops(model, lengths) + int(self.teacher.model.flops(lengths))
        if self.distill.answers:
            assert isinstance(self.task, LabelTask) and isinstance(batch, ExampleBatch)
            total += 3 * self.task.pooled.head_flops(model, batch)
        if self.distill.soft_weight:
            assert isinstance(self.teacher.objective, LabelTask) and isinstance(batch, ExampleBatch)
            total += self.teacher.objective.pooled.head_flops(self.teacher.model, batch)
        return total + (self.matching.flops(lengths) if self.matching is not None else 0)


def label_divergence(logits: Tensor, teacher_logits: Tensor, temperature: float) -> Tensor:
    """The sum over examples of KL(teacher || student), both softmaxes at a temperature, times its square."""
    student, teacher = ((scores / temperature).log_softmax(-1) for scores in (logits, teacher_logits))
    return F.kl_div(student, teacher, reduction="sum", log_target=True) * temperature**2


def task_weights(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """A checkpoint of `DistilledTask` under the names of the task alone."""
    start = "objective.task."
    return {
        f"objective.{name.removeprefix(start)}" if name.startswith(start) else name: tensor
        for name, tensor in weights.items()
        if name.startswith((start, "model."))
    }


def check(task: Task, distill: TaskDistillSettings, model: Model, teacher: Teacher[Task]) -> Transformer:
    """The student; raises UserError where teacher, student and task do not fit together."""
    student = require(model, Transformer, WHOLE_TRANSFORMERS)
    if type(task) is not type(teacher.objective):
        raise UserError(f"{distill.teacher} has another task: a teacher is a run of the same one.")
    if not distill.answers and not distill.matches_layers:
        raise UserError("All weights of distill are 0 and nothing is learnt: set one, such as distill.soft_weight=1.")
    if model.causal != teacher.model.causal:
        raise UserError("A teacher and its student read in the same direction: these do not.")
    length, limit = task.framing.length or student.context, teacher.model.context
    if length > limit:
        raise UserError(f"The teacher sees {limit} tokens: set task.length to that at most.")
    if not distill.answers:
        return student
    if not isinstance(task, LabelTask) or not isinstance(teacher.objective, LabelTask):
        raise UserError(
            "Answers are learnt where they are labels of a text or a pair; of this task a teacher's inside can be: "
            "distill.soft_weight=0 distill.attention_weight=1 distill.hidden_weight=1 distill.embedding_weight=1."
        )
    if task.labels != teacher.objective.labels:
        raise UserError(f"The teacher tells {teacher.objective.labels} apart, and here are {task.labels}.")
    if task.pooled.language_model is not None:
        raise UserError("task.language_model is a loss of its own: leave it out where a teacher teaches.")
    if task.pooled.reading != teacher.objective.pooled.reading or _unsegmented(task, teacher.objective):
        raise UserError("The teacher reads its texts in another way than the student: side by side, or with segments.")
    return student


def _unsegmented(task: LabelTask[Any], teacher: LabelTask[Any]) -> bool:
    """Whether a pair has segments for one of the two models only."""
    return type(task.settings).texts == 2 and task.framing.segments != teacher.framing.segments
