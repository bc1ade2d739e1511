"""Teachers in a study: `contenders: {small: {recipe: distilbert, teacher: bert}}`.

A student learns from the pre-training of another contender with the same seed, so that seeds of students differ as
much as those of their teachers do. Its FLOPs count what the teacher reads in it, not the teacher's own training; a
contender with `flops_of: [small, bert]` has both to spend.
"""

from __future__ import annotations

from etude.errors import UserError
from etude.models.base import Model, require
from etude.models.transformer import Transformer
from etude.objectives.base import Objective
from etude.objectives.distill import Distill
from etude.objectives.distillation.teacher import Teacher
from etude.objectives.masked import Masked
from etude.recipes.schema import Recipe
from etude.text.tokenizer.special_tokens import Specials


def attach_weightless_teacher(model: Model, objective: Objective, teacher: Recipe, special: Specials) -> None:
    """Attach a teacher of this recipe to a student, on the device that is set, to count the FLOPs of both.

    Raises UserError where the two do not fit, before anything is trained.
    """
    not_masked = f"The recipe {teacher.name} is no teacher: it has to be a masked model (BERT, ALBERT)."
    of_teacher = require(teacher.build_model(), Transformer, not_masked)
    head = teacher.build_objective(of_teacher, special)
    student = require(model, Transformer, "A student is a masked Transformer: take distilbert or tinybert.")
    if not isinstance(head, Masked):
        raise UserError(not_masked)
    if not isinstance(objective, Distill):
        raise UserError("A student learns masked text: take distilbert or tinybert.")
    objective.attach_teacher(student, Teacher(of_teacher, head))
