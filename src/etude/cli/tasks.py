"""`etude tasks`: what a run can be fine-tuned to, and the settings of one task."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import typer


def register(app: typer.Typer) -> None:
    @app.command()
    def tasks(
        name: Annotated[
            str | None, typer.Argument(metavar="[TASK]", help="All settings of this one: task.* and transfer.*")
        ] = None,
    ) -> None:
        """List the tasks: their scores, files and columns, with the names those have in published files."""
        from etude.models.transfer_settings import TransferSettings
        from etude.recipes.datasets import NAMED
        from etude.runs.task_plan import task_kinds, task_module
        from etude.tasks.data.records import SQUEEZED
        from etude.transfer.suite import SUITES

        if name is not None and name not in SUITES:
            kind = NAMED[name].kind if name in NAMED else name
            _tell(kind, task_module(kind))
            for group, settings in (("task", task_module(kind).Settings), ("transfer", TransferSettings)):
                typer.echo()
                for called, value, meaning in explained(settings, group):
                    typer.echo(f"{called + '=' + value:<42} {meaning}".rstrip())
            typer.echo("\ntrain.* are the settings of the loop, as in recipes: train.lr, train.epochs, train.seed …")
            return
        if name is None:
            for kind, module in task_kinds().items():
                _tell(kind, module)
        for suite, members in SUITES.items():
            typer.echo(f"{suite:<12} a suite with one score: {', '.join(members)}; --train names the folder of all")
        typer.echo(f"\nFiles may be squeezed ({' '.join(SQUEEZED)}). Other names of columns: -c role=name.")
        typer.echo("The settings of one task: etude tasks TASK")


def _tell(kind: str, module: Any) -> None:
    from etude.recipes.datasets import NAMED

    typer.echo(f"{kind:<12} {module.SUMMARY}")
    typer.echo(f"{'':<12}   scores: {module.SCORES}")
    typer.echo(f"{'':<12}   files: {' '.join(module.FILES)}")
    for role, names in module.COLUMNS.items():
        typer.echo(f"{'':<12}   column {role}: {', '.join(names)}")
    sets = [
        f"{name} ({', '.join(f'{key}={value}' for key, value in one.settings.items())})" if one.settings else name
        for name, one in NAMED.items()
        if one.kind == kind
    ]
    if sets:
        typer.echo(f"{'':<12}   by name: {', '.join(sets)}")


def explained(settings: Any, path: str) -> Iterator[tuple[str, str, str]]:
    """(name, value unless told otherwise, meaning) of every setting, those of groups inside it among them."""
    for name, field in settings.model_fields.items():
        inside = _inside(field.annotation)
        plain = field.default is None or inside is None
        value = json.dumps(field.default, separators=(",", ":")).strip('"') if plain else "…"
        words = " ".join(_words(field.annotation))
        meaning = [(field.description or "").replace("None", "null"), f"({words})" if words else ""]
        yield f"{path}.{name}", value, " ".join(part for part in meaning if part)
        if inside is not None:
            yield from explained(inside, f"{path}.{name}")


def _words(annotation: Any) -> list[str]:
    """What a setting may be, where that is one of some words."""
    if typing.get_origin(annotation) is Literal:
        return [str(word) for word in typing.get_args(annotation)]
    return [word for inner in typing.get_args(annotation) for word in _words(inner)]


def _inside(annotation: Any) -> Any:
    """The group that a setting is, or None."""
    from etude.settings import Strict

    kinds = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Strict)), None)
