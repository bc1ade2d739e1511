"""The teacher of a distilled task: loading it, checking it, recording its fingerprint (tasks/distilled_task.py)."""

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
    """Load the teacher of a task; return it with the fingerprint of its weights."""
    folder = Path(distill.teacher)
    if not (folder / FILE).is_file():
        raise UserError(f"{folder} is no teacher: a run that 'etude finetune' made for the task {kind} is wanted.")
    tuned = TaskModel.open(folder, device="cpu")
    tuned.require_trained_head()
    if tuned.plan.kind != kind:
        raise UserError(f"{folder} does the task {tuned.plan.kind}, and {kind} is to be learnt.")
    if tuned.tokenizer.fingerprint != tokenizer.fingerprint:
        raise UserError(f"{folder} and the run to be taught have different tokenizers: a token would mean two things.")
    model = require(tuned.model, Transformer, WHOLE_TRANSFORMERS)
    return Teacher(model, tuned.task), fingerprint_weights(model, tuned.task)


def take_labels(facts: dict[str, Any], distill: TaskDistillSettings, teacher: Teacher[Task]) -> dict[str, Any]:
    """Return the facts of a task with the teacher's labels in their order: the examples may lack some of them."""
    if not isinstance(teacher.objective, LabelTask) or not distill.answers:
        return facts
    known = teacher.objective.labels
    unknown = [label for label in facts["labels"] if label not in known]
    if unknown:
        raise UserError(f"The examples have the label {unknown[0]!r}, and the teacher {distill.teacher} knows {known}.")
    return facts | {"labels": list(known)}


def record_teacher(plan: Plan, distill: TaskDistillSettings, fingerprint: str) -> Plan:
    """Return the plan with its teacher and the fingerprint recorded."""
    folder = str(Path(distill.teacher).resolve())
    return replace(plan, distill=distill.model_copy(update={"teacher": folder}), teacher=fingerprint)


def build_objective(plan: Plan, task: Task, model: Model, tokenizer: Tokenizer) -> Objective[Any, Any, Any]:
    """Return the training objective of a plan: its task, or the task learnt from its teacher."""
    if plan.distill is None:
        return task
    teacher, fingerprint = load_teacher(plan.distill, plan.kind, tokenizer)
    if fingerprint != plan.teacher:
        raise UserError(f"{plan.distill.teacher} is not the teacher that this run began with: its weights differ.")
    return DistilledTask(task, plan.distill, model, teacher)
