"""The reference of settings, from the schema: every group and kind, every name, its type, default and meaning."""

from __future__ import annotations

import ast
import inspect
import io
import json
import re
import textwrap
import tokenize
import types
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml
from docs.generator.commands import cell
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from etude.kinds import list_kinds
from etude.models.transfer_settings import TransferSettings
from etude.recipes.finetuning import FinetuningDefaults
from etude.study.settings import Study
from etude.tasks.distilled_task import TaskDistillSettings
from etude.train.settings import Settings as Train

MEANINGS = Path(__file__).with_name("meanings.yaml")
NAMES = {int: "int", float: "float", str: "text", bool: "true, false", types.NoneType: "null"}


def type_name(annotation: Any) -> str:
    """A type in plain words."""
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return type_name(parts[0])
    if origin is Literal:
        return " · ".join(f"`{value}`" for value in parts)
    if isinstance(annotation, types.UnionType) or origin is typing.Union:
        return " or ".join(type_name(part) for part in parts)
    if origin in (tuple, list):
        inner = " or ".join(dict.fromkeys(type_name(part) for part in parts if part is not Ellipsis))
        return f"list of {inner}"
    if isinstance(origin, type) and issubclass(origin, typing.get_origin(typing.Mapping[str, str])):
        return "names with values"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "group"
    return NAMES.get(annotation, getattr(annotation, "__name__", str(annotation)))


def default_of(field: FieldInfo) -> str:
    """A default as it stands in a recipe."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return ""
    return f"`{json.dumps(value, ensure_ascii=False, default=str)}`"


def groups_within(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in typing.get_args(annotation):
        yield from groups_within(part)


@cache
def comments(settings: type[BaseModel]) -> dict[str, str]:
    """The comment behind each setting in the source, with the lines that go on below it, further in."""
    source = textwrap.dedent(inspect.getsource(settings))
    remarks = {
        token.start[0]: (token.string.lstrip("# "), token.start[1] if not token.line[: token.start[1]].strip() else 0)
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    found: dict[str, str] = {}
    (definition,) = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    for node in definition.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            last = node.end_lineno or node.lineno
            while remarks.get(last + 1, ("", 0))[1] > node.col_offset:
                last += 1
            words = [remarks[line][0] for line in range(node.lineno, last + 1) if line in remarks]
            found[node.target.id] = " ".join(words)
    return found


@cache
def written_meanings() -> dict[str, str]:
    """Meanings that stand with the pages, for settings of which the code says nothing, or too little for a page."""
    return typing.cast(dict[str, str], yaml.safe_load(MEANINGS.read_text(encoding="utf-8")))


def meaning_of(settings: type[BaseModel], name: str, full: str) -> str:
    """The description of a setting, else the line that stands with the pages, else the comment in its class."""
    if description := settings.model_fields[name].description or written_meanings().get(full, ""):
        return description
    for owner in settings.__mro__:
        if issubclass(owner, BaseModel) and owner is not BaseModel and (comment := comments(owner).get(name, "")):
            return comment
    return ""


def rows(settings: type[BaseModel], prefix: str) -> Iterator[str]:
    """One row a setting; settings of groups within it follow under their full name."""
    for name, field in settings.model_fields.items():
        full = f"{prefix}.{name}" if prefix else name
        meaning = cell(meaning_of(settings, name, full))
        for python, recipe in (("None", "null"), ("True", "true"), ("False", "false")):  # as it is written in a recipe
            meaning = re.sub(rf"\b{python}\b", recipe, meaning)
        values = cell(type_name(field.annotation)).removesuffix(" or null")
        yield f"| `{full}` | {values} | {default_of(field)} | {meaning} |"
        for inner in dict.fromkeys(groups_within(field.annotation)):
            yield from rows(inner, full)


def table(settings: type[BaseModel], prefix: str) -> str:
    lines = list(rows(settings, prefix))
    if not lines:
        return "It has no settings.\n"
    return "\n".join(["| setting | values | default | meaning |", "|---|---|---|---|", *lines]) + "\n"


def summary(module: types.ModuleType) -> str:
    return (module.__doc__ or "").strip().partition("\n")[0]


def page() -> str:
    """Training first, then models, objectives and tasks by kind, transfer, a teacher's, studies."""
    parts = ["## train\n", "How a model is trained; the same in pre-training and fine-tuning.\n", table(Train, "train")]
    for group, name in (("models", "model"), ("objectives", "objective"), ("tasks", "task")):
        for kind, module in list_kinds(group).items():
            if not module.__name__.startswith("etude."):
                continue
            parts += [f"## {name}: {kind}\n", summary(module) + "\n", table(module.Settings, name)]
    parts += [
        "## transfer\n",
        "How a pre-trained model is used in `etude finetune`.\n",
        table(TransferSettings, "transfer"),
    ]
    parts += [
        "## distill\n",
        "How a task is learnt from a teacher, in `etude finetune --teacher`. Of `etude distill`, `distill.*` is short",
        "for the group `objective.distill` of the student's objective.\n",
        table(TaskDistillSettings, "distill"),
    ]
    parts += ["## finetune\n", "In a recipe: what its paper says of learning a task.\n"]
    parts += [table(FinetuningDefaults, "finetune")]
    parts += ["## study\n", "The keys of a study file.\n", table(Study, "")]
    return "\n".join(parts)
