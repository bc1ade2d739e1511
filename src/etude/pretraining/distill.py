"""`etude distill`: a recipe, a corpus and a teacher become a run (objectives/distill.py).

The run is one of its recipe, which says how it learns (`distill:`), with `distill.yaml` beside it: the teacher's place
and fingerprint. A resume finds the teacher there and refuses another one.

The student begins with some of the teacher's layers, evenly spread from the first to the last (6 of 12 are DistilBERT's
0, 2, 4, 7, 9, 11), with its tables and its head. A student without segments has the teacher's first one added to its
positions, where the released code drops it: so its embeddings are the teacher's.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor, nn

from etude.errors import UserError
from etude.inference.model import load
from etude.models.base import require
from etude.models.transformer import Transformer
from etude.objectives.distill import Distill, Ways
from etude.objectives.distillation.matching import named_layers
from etude.objectives.distillation.teacher import Teacher
from etude.objectives.masked import Masked
from etude.recipes.document import parse
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.runs.run import TEACHER, Run
from etude.text.corpus.corpus import Corpus


def with_settings(recipe: Recipe) -> Recipe:
    """A recipe that says how a student learns: as DistilBERT, where it says nothing."""
    return recipe if recipe.distill is not None else replace(recipe, distill=Ways())


def start_student(
    teacher: str | Path, corpus: Corpus, recipe: Recipe
) -> tuple[tuple[nn.Module, Distill], dict[str, str]]:
    """Model and objective with their first weights, and the file that the run keeps. Validates everything."""
    if not Path(teacher).is_dir():
        raise UserError(f"There is no folder {teacher}. A teacher is a run, or a model brought by 'etude import'.")
    loaded, fingerprint = load_teacher(teacher, corpus)
    student = build_student(recipe, corpus, loaded)
    kept = {"teacher": str(Path(teacher).resolve()), "fingerprint": fingerprint}
    return student, {TEACHER: yaml.safe_dump(kept, sort_keys=False, allow_unicode=True)}


def describe_teacher(run: Run) -> str:
    """The teacher and its ways in words, without its place."""
    kept = _kept(run)
    ways = ", ".join(f"{name} {value}" for name, value in run.recipe.distill.model_dump(mode="json").items())
    return f"{Path(kept['teacher']).name}, fingerprint `{kept['fingerprint'][:16]}`: {ways}"


def _kept(run: Run) -> dict[str, Any]:
    path = run.folder / TEACHER
    return dict(parse(path.read_text(encoding="utf-8"), str(path)).values)


def resume_student(run: Run, corpus: Corpus) -> tuple[nn.Module, Distill]:
    """Model and objective of such a run with their first weights."""
    kept = _kept(run)
    place, fingerprint = kept["teacher"], kept["fingerprint"]
    if not Path(place).is_dir():
        raise UserError(
            f"The teacher of {run.folder} is not at {place}. Put it back, or change its place in {TEACHER}."
        )
    teacher, found = load_teacher(place, corpus)
    if found != fingerprint:
        raise UserError(f"{place} is not the teacher that {run.folder} began with: its weights differ.")
    return build_student(run.recipe, corpus, teacher)


def load_teacher(place: str | Path, corpus: Corpus) -> tuple[Teacher, str]:
    """A teacher for this corpus, and the fingerprint of its weights."""
    loaded = load(place, "cpu")
    not_masked = f"{place} is no teacher for this: a masked model with its head is wanted (BERT, ALBERT)."
    if not isinstance(loaded.objective, Masked):
        raise UserError(not_masked)
    model = require(loaded.model, Transformer, not_masked)
    loaded.must_speak()
    if loaded.tokenizer.fingerprint != corpus.tokenizer.fingerprint:
        raise UserError(
            f"{place} and the corpus have different tokenizers: a token would mean two things. "
            f"Prepare the text with the teacher's: etude prepare ... --tokenizer {place}."
        )
    return Teacher(model, loaded.objective), fingerprint_of(model, loaded.objective)


def fingerprint_of(*parts: nn.Module) -> str:
    """Of names and weights."""
    digest = hashlib.sha256()
    for part in parts:
        for name, tensor in sorted(part.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


# --- the student ------------------------------------------------------------------------------------


def build_student(recipe: Recipe, corpus: Corpus, teacher: Teacher) -> tuple[nn.Module, Distill]:
    ways: Ways = recipe.distill
    learner, objective = build_learner(recipe, corpus.tokenizer)
    not_masked = f"The recipe {recipe.name} is not masked: a student learns masked text. Take distilbert."
    if type(objective) is not Masked:
        raise UserError(not_masked)
    model = require(learner, Transformer, not_masked)
    if objective.sentence is not None:
        raise UserError("A student has no sentence task: set objective.sentence=none and model.pooler=false.")
    if ways.cosine_weight and model.width != teacher.model.width:
        raise UserError(
            f"Between states of width {model.width} and the teacher's of {teacher.model.width} there is no angle: "
            "set distill.cosine_weight=0, or take the teacher's width."
        )
    if not (ways.speaks or ways.cosine_weight or ways.looks_inside):
        raise UserError("All weights of distill are 0 and nothing is learnt: set one, such as distill.soft_weight=5.")
    if model.context > teacher.model.context:
        raise UserError(f"The teacher sees {teacher.model.context} tokens: set model.context to that at most.")
    student = Distill(recipe.objective, model, corpus.tokenizer.special, ways, teacher)
    student.load_state_dict({**student.state_dict(), **objective.state_dict()})  # what the lesson adds stays as it is
    if ways.start == "teacher":
        inherit(model, student, teacher, ways.layers)
    return model, student


def chosen_layers(student: int, teacher: int, given: list[int] | None) -> list[int]:
    """The teacher's layers that the student's begin as."""
    if given is None:
        return [int(place) for place in np.linspace(0, teacher - 1, student).round()]
    return named_layers(student, teacher, given)


def inherit(model: Transformer, objective: Distill, teacher: Teacher, layers: list[int] | None) -> None:
    """The teacher's weights where the student has a place for them."""
    own, its = model.settings, teacher.model.settings
    if own.share != "none" or its.share != "none":
        raise UserError("Layers that are shared cannot be handed down one by one: set distill.start=random.")
    chosen = chosen_layers(own.layers, its.layers, layers)
    source: dict[str, Tensor] = dict(teacher.model.state_dict())
    if "embedding.segments.weight" in source and not own.segments and "embedding.positions.weight" in source:
        first = source.pop("embedding.segments.weight")[0]
        source["embedding.positions.weight"] = source["embedding.positions.weight"] + first
    taken: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        group, _, rest = name.partition(".")
        number, _, inside = rest.partition(".")
        asked = f"{group}.{chosen[int(number)]}.{inside}" if number.isdecimal() else name
        found = source.get(asked)
        if found is not None and name == "embedding.positions.weight":
            found = found[: len(tensor)]
        if found is None or found.shape != tensor.shape:
            shapes = f"{tuple(tensor.shape)} here and {None if found is None else tuple(found.shape)} there"
            raise UserError(
                f"The teacher has no weights for the student's {name} ({shapes}): set distill.start=random."
            )
        taken[name] = found
    head = teacher.objective.head.state_dict()
    if {name: one.shape for name, one in head.items()} != {
        n: one.shape for n, one in objective.head.state_dict().items()
    }:
        raise UserError("The heads of teacher and student have different shapes: set distill.start=random.")
    model.load_state_dict(taken)
    objective.head.load_state_dict(head)
