"""A student and its teacher: loading and checking the teacher, initialising the student.

The run of a student has `distill.yaml` beside its recipe: the teacher's folder and fingerprint. A resume loads the
teacher from there and refuses one with other weights.

The student is initialised with some of the teacher's layers, evenly spread from the first to the last (6 of 12 are
DistilBERT's 0, 2, 4, 7, 9, 11), with its embeddings and its head. A student without segments has the teacher's first
one added to its positions, where the released code drops it: so its embeddings are the teacher's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import yaml
from torch import Tensor
from typing_extensions import TypedDict  # that of Python 3.11 cannot be checked

from etude.errors import UserError, quote_path
from etude.hub.run_weights import fingerprint_weights
from etude.inference.base import InferenceModel
from etude.inference.opening import open_model
from etude.models.base import Model, require
from etude.models.transformer import Transformer
from etude.objectives import distill, masked
from etude.objectives.base import PretrainingObjective
from etude.objectives.distill import Distill
from etude.objectives.distillation.matching import check_layers
from etude.objectives.distillation.teacher import Teacher
from etude.objectives.masked import Masked
from etude.recipes.document import parse_file
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.runs.run import Run
from etude.settings import check_values
from etude.text.corpus.corpus import Corpus

FILE = "distill.yaml"  # of a student's run


class TeacherEntry(TypedDict):
    """The content of that file."""

    teacher: str
    fingerprint: str


# --- the recipe, with a teacher and without -----------------------------------------------------------


def with_teacher(recipe: Recipe) -> Recipe:
    """Return the recipe of a student: a masked objective becomes DistilBERT's."""
    if recipe.objective_kind != "masked":
        return recipe
    settings = distill.Settings(**recipe.objective.model_dump())
    return replace(recipe, objective_kind="distill", objective=settings)


def without_teacher(recipe: Recipe) -> Recipe:
    """Return the recipe without a teacher: a student's objective becomes the masked one."""
    if recipe.objective_kind != "distill":
        return recipe
    settings = masked.Settings(**recipe.objective.model_dump(exclude={"distill"}))
    return replace(recipe, objective_kind="masked", objective=settings)


# --- the teacher in a student's run -------------------------------------------------------------------


def teacher_file(teacher: str | Path, fingerprint: str) -> dict[str, str]:
    """Return the file, by name, that records a student's teacher."""
    content = {"teacher": str(Path(teacher).resolve()), "fingerprint": fingerprint}
    return {FILE: yaml.safe_dump(content, sort_keys=False, allow_unicode=True)}


def _read_file(run: Run) -> tuple[Path, str] | None:
    """Return the teacher's folder and fingerprint; None where the run has no teacher."""
    path = run.folder / FILE
    if not path.is_file():
        return None
    values = parse_file(path, str(path), f"{path} is missing.").values
    content = check_values(values, TeacherEntry, str(path), "Take it from a copy, or start a new run.")
    return Path(content["teacher"]), content["fingerprint"]


def describe_teacher(run: Run) -> str | None:
    """Describe the teacher and the distillation settings, without paths; None where the run has no teacher."""
    stored = _read_file(run)
    if stored is None:
        return None
    folder, fingerprint = stored
    settings = run.recipe.objective.distill.model_dump(mode="json")
    terms = ", ".join(f"{name} {value}" for name, value in settings.items())
    return f"{folder.name}, fingerprint `{fingerprint[:16]}`: {terms}"


def build_run_learner(run: Run, corpus: Corpus) -> tuple[Model, PretrainingObjective]:
    """Build model and objective of a run with their initial weights, the teacher attached where it has one."""
    stored = _read_file(run)
    if stored is None:
        return build_learner(without_teacher(run.recipe), corpus.tokenizer)
    folder, fingerprint = stored
    if not folder.is_dir():
        raise UserError(f"The teacher of {run.folder} is not at {folder}. Put it back, or change its place in {FILE}.")
    teacher, actual = load_teacher(folder, corpus)
    if actual != fingerprint:
        raise UserError(f"{folder} is not the teacher that {run.folder} began with: its weights differ.")
    return build_student(run.recipe, corpus, teacher)


# --- the teacher ------------------------------------------------------------------------------------


def load_teacher(folder: str | Path, corpus: Corpus) -> tuple[Teacher[Masked], str]:
    """Load a teacher for this corpus; return it with the fingerprint of its weights."""
    loaded = open_model(folder, InferenceModel, "cpu")
    not_masked = f"{folder} is no teacher: it has to be a masked model with its output layer (BERT, ALBERT)."
    if not isinstance(loaded.objective, Masked):
        raise UserError(not_masked)
    model = require(loaded.model, Transformer, not_masked)
    loaded.require_trained_head()
    if loaded.tokenizer.fingerprint != corpus.tokenizer.fingerprint:
        raise UserError(
            f"{folder} and the corpus have different tokenizers: a token would mean two things. "
            f"Prepare the text with the teacher's: etude prepare ... --tokenizer {quote_path(folder)}."
        )
    return Teacher(model, loaded.objective), fingerprint_weights(model, loaded.objective)


# --- the student ------------------------------------------------------------------------------------


def build_student(recipe: Recipe, corpus: Corpus, teacher: Teacher[Masked]) -> tuple[Transformer, Distill]:
    """Build the student and its objective with their initial weights; UserError where the teacher does not fit."""
    learner, objective = build_learner(recipe, corpus.tokenizer)
    not_masked = f"The recipe {recipe.name} is not masked: a student learns masked text. Take distilbert."
    if not isinstance(objective, Distill):
        raise UserError(not_masked)
    model = require(learner, Transformer, not_masked)
    objective.attach_teacher(model, teacher)
    if objective.distill.start == "teacher":
        init_student(model, objective, teacher, objective.distill.layers)
    return model, objective


def choose_layers(student: int, teacher: int, layers: list[int] | None) -> list[int]:
    """Return the teacher's layers that initialise the student's: `layers`, or evenly spread ones."""
    if layers is None:
        return [int(layer) for layer in np.linspace(0, teacher - 1, student).round()]
    return check_layers(student, teacher, layers)


def init_student(model: Transformer, objective: Distill, teacher: Teacher[Masked], layers: list[int] | None) -> None:
    """Copy the teacher's weights into the student and its head."""
    student_settings, teacher_settings = model.settings, teacher.model.settings
    if student_settings.share != "none" or teacher_settings.share != "none":
        raise UserError("Layers that are shared cannot be handed down one by one: set distill.start=random.")
    chosen = choose_layers(student_settings.layers, teacher_settings.layers, layers)
    source: dict[str, Tensor] = dict(teacher.model.state_dict())
    has_both = "embedding.segments.weight" in source and "embedding.positions.weight" in source
    if has_both and not student_settings.segments:
        first = source.pop("embedding.segments.weight")[0]
        source["embedding.positions.weight"] = source["embedding.positions.weight"] + first
    weights: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        group, _, rest = name.partition(".")
        number, _, inside = rest.partition(".")
        source_name = f"{group}.{chosen[int(number)]}.{inside}" if number.isdecimal() else name
        tensor_of_teacher = source.get(source_name)
        if tensor_of_teacher is not None and name == "embedding.positions.weight":
            tensor_of_teacher = tensor_of_teacher[: len(tensor)]
        if tensor_of_teacher is None or tensor_of_teacher.shape != tensor.shape:
            theirs = None if tensor_of_teacher is None else tuple(tensor_of_teacher.shape)
            shapes = f"{tuple(tensor.shape)} here and {theirs} there"
            raise UserError(
                f"The teacher has no weights for the student's {name} ({shapes}): set distill.start=random."
            )
        weights[name] = tensor_of_teacher
    head = teacher.objective.head.state_dict()
    if _shapes(head) != _shapes(objective.head.state_dict()):
        raise UserError("The heads of teacher and student have different shapes: set distill.start=random.")
    model.load_state_dict(weights)
    objective.head.load_state_dict(head)


def _shapes(state: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in state.items()}
