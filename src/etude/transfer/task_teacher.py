"""The teacher of a fine-tuning (tasks/distilled_task.py): loaded, checked, and recorded by a hash of its weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from etude.errors import UserError
from etude.hub.run_weights import fingerprint_weights
from etude.inference.task_model import TaskModel
from etude.models.base import Model, require
from etude.models.transformer import Transformer
from etude.objectives.base import Objective
from etude.objectives.distillation.teacher import Teacher
from etude.runs.task_plan import FILE, Plan
from etude.tasks.base import Task
from etude.tasks.classify import LabelTask
from etude.tasks.distilled_task import WHOLE_TRANSFORMERS, DistilledTask, TaskDistillSettings
from etude.text.tokenizer.tokenizer import Tokenizer


def load_teacher(distill: TaskDistillSettings, kind: str, tokenizer: Tokenizer) -> tuple[Teacher[Task], str]:
    """The teacher of a task, and the fingerprint of its weights."""
    place = Path(distill.teacher)
    if not (place / FILE).is_file():
        raise UserError(f"{place} is no teacher: a run that 'etude finetune' made for the task {kind} is wanted.")
    tuned = TaskModel.open(place, device="cpu")
    tuned.require_trained_head()
    if tuned.plan.kind != kind:
        raise UserError(f"{place} does the task {tuned.plan.kind}, and {kind} is to be learnt.")
    if tuned.tokenizer.fingerprint != tokenizer.fingerprint:
        raise UserError(f"{place} and the run to be taught have different tokenizers: a token would mean two things.")
    model = require(tuned.model, Transformer, WHOLE_TRANSFORMERS)
    return Teacher(model, tuned.task), fingerprint_weights(model, tuned.task)


def take_labels(facts: dict[str, Any], distill: TaskDistillSettings, teacher: Teacher[Task]) -> dict[str, Any]:
    """The facts of a task with the teacher's labels in their order: some may be missing in the examples at hand."""
    if not isinstance(teacher.objective, LabelTask) or not distill.answers:
        return facts
    known = teacher.objective.labels
    strange = [label for label in facts["labels"] if label not in known]
    if strange:
        raise UserError(f"The examples have the label {strange[0]!r}, and the teacher {distill.teacher} knows {known}.")
    return facts | {"labels": list(known)}


def record_teacher(plan: Plan, distill: TaskDistillSettings, fingerprint: str) -> Plan:
    """The plan that remembers its teacher."""
    place = str(Path(distill.teacher).resolve())
    return replace(plan, distill=distill.model_copy(update={"teacher": place}), teacher=fingerprint)


def build_objective(plan: Plan, task: Task, model: Model, tokenizer: Tokenizer) -> Objective[Any, Any, Any]:
    """What a run of this plan learns: its task, or its task from its teacher."""
    if plan.distill is None:
        return task
    teacher, fingerprint = load_teacher(plan.distill, plan.kind, tokenizer)
    if fingerprint != plan.teacher:
        raise UserError(f"{plan.distill.teacher} is not the teacher that this run began with: its weights differ.")
    return DistilledTask(task, plan.distill, model, teacher)
