"""What there is: `recipes` with their sizes, `tasks` with their files and settings."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from etude.recipes.schema import Recipe
    from etude.recipes.size import Size


@dataclass(frozen=True)
class RecipeInfo:
    """A recipe, and what it costs."""

    recipe: Recipe

    @cached_property
    def size(self) -> Size:
        """Parameters without heads, and FLOPs a token forward and backward."""
        from etude.recipes.size import measure_recipe

        return measure_recipe(self.recipe)


def recipes(name: str | None = None, *, settings: Mapping[str, object] | None = None) -> list[RecipeInfo]:
    """List the recipes with parameters and FLOPs a token, or print one.

    Args:
        name: Print this recipe with every setting: a name, or a .yaml file.
        settings: Settings of it to change: model.layers=6
    """
    from etude.recipes import document

    if name is not None:
        document.find_recipe(name)  # an unknown one is refused before torch is loaded, by the next line
    from etude.recipes.schema import Recipe

    if name is not None:
        return [RecipeInfo(Recipe.load(name, dict(settings or {})).resolve())]
    return [RecipeInfo(Recipe.load(shipped)) for shipped in document.recipe_names()]


@dataclass(frozen=True)
class SettingInfo:
    name: str  # with its group: task.dropout
    default: str
    meaning: str


@dataclass(frozen=True)
class TaskInfo:
    """A kind of task: its scores, files, columns and settings."""

    kind: str
    summary: str
    scores: str
    files: tuple[str, ...]
    columns: dict[str, tuple[str, ...]]  # roles, and the names they have in published files
    datasets: dict[str, dict[str, Any]]  # data sets known by name, and what they set
    settings: list[SettingInfo] = field(default_factory=list)  # of one task; none in a list of all


@dataclass(frozen=True)
class TaskCatalog:
    tasks: list[TaskInfo]
    suites: dict[str, tuple[str, ...]]  # with one score: the names of their tasks
    compressed: tuple[str, ...]  # endings that files may have behind their own


def tasks(name: str | None = None) -> TaskCatalog:
    """List the tasks: their scores, files and columns, with the names those have in published files.

    Args:
        name: Print all settings of this task (task.* and transfer.*), or of this data set's.
    """
    from etude.models.transfer_settings import TransferSettings
    from etude.recipes.datasets import DATASETS
    from etude.runs.task_plan import task_kinds, task_module
    from etude.tasks.data.records import COMPRESSED
    from etude.transfer.suite import SUITES

    suites = {suite: tuple(members) for suite, members in SUITES.items()}
    if name is None:
        listed = [_describe(kind, module) for kind, module in task_kinds().items()]
    elif name in SUITES:
        listed = []
    else:
        kind = DATASETS[name].kind if name in DATASETS else name
        module = task_module(kind)
        settings = [*explain_settings(module.Settings, "task"), *explain_settings(TransferSettings, "transfer")]
        listed, suites = [_describe(kind, module, settings)], {}
    return TaskCatalog(listed, suites, tuple(COMPRESSED))


def _describe(kind: str, module: Any, settings: list[SettingInfo] | None = None) -> TaskInfo:
    from etude.recipes.datasets import DATASETS

    return TaskInfo(
        kind,
        module.SUMMARY,
        module.SCORES,
        tuple(module.FILES),
        {role: tuple(names) for role, names in module.COLUMNS.items()},
        {name: dict(dataset.settings) for name, dataset in DATASETS.items() if dataset.kind == kind},
        settings or [],
    )


def explain_settings(settings: Any, path: str) -> Iterator[SettingInfo]:
    """Every setting of a group with its default and meaning, those of groups inside it among them."""
    for name, setting in settings.model_fields.items():
        group = _group(setting.annotation)
        plain = setting.default is None or group is None
        default = json.dumps(setting.default, separators=(",", ":")).strip('"') if plain else "…"
        choices = " ".join(_choices(setting.annotation))
        meaning = [(setting.description or "").replace("None", "null"), f"({choices})" if choices else ""]
        yield SettingInfo(f"{path}.{name}", default, " ".join(part for part in meaning if part))
        if group is not None:
            yield from explain_settings(group, f"{path}.{name}")


def _choices(annotation: Any) -> list[str]:
    """The values of a setting that is one of some words."""
    if typing.get_origin(annotation) is Literal:
        return [str(word) for word in typing.get_args(annotation)]
    return [word for inner in typing.get_args(annotation) for word in _choices(inner)]


def _group(annotation: Any) -> Any:
    """The class of a setting that is itself a group, or None."""
    from etude.settings import Strict

    kinds = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Strict)), None)
