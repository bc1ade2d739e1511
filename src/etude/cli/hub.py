"""`etude import` and `etude export`: what was read or written, and how others open it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from etude.cli.adapter import Call, Command
from etude.verbs import hub as verbs

if TYPE_CHECKING:
    from etude.verbs.hub import ModelExport, ModelImport


def present_import(call: Call[ModelImport]) -> None:
    result = call()
    recipe = result.run.recipe
    shape = recipe.model.model_dump()
    if result.architecture is None:
        typer.echo(f"{result.run.folder}: {recipe.system}, {result.vocab:,} tokens, {shape['width']} wide")
        return
    typer.echo(
        f"{result.run.folder}: {recipe.system} ({result.architecture}), {result.parameters:,} parameters, "
        f"{shape['layers']} layers of width {shape['width']}, {result.vocab:,} tokens"
    )
    for note in result.notes:
        typer.echo(f"! {note}")


def present_export(call: Call[ModelExport]) -> None:
    result = call()
    published = result.published
    if published is None and result.path.is_dir():
        for file in result.files:
            typer.echo(f"{file}  {file.stat().st_size:,} bytes")
        for line in result.usage:
            typer.echo(line)
        if not result.usage:
            typer.echo(f"Needs numpy alone:  python {result.path / 'predict.py'} < lines.txt")
        return
    if published is None:
        typer.echo(f"{result.path}  {result.path.stat().st_size:,} bytes, {result.form}")
        return
    for file in result.files:
        typer.echo(f"{file}  {file.stat().st_size:,} bytes")
    for line in [*(f"! {note}" for note in published.notes), *published.usage]:
        typer.echo(line)
    if published.usage:
        return
    typer.echo(f"Opens as {published.architecture}:")
    typer.echo(f"  from transformers import AutoTokenizer, {published.auto_class}")
    typer.echo(f'  model = {published.auto_class}.from_pretrained("{result.path}")')
    typer.echo(f'  tokenizer = AutoTokenizer.from_pretrained("{result.path}")')


COMMANDS = (Command(verbs.import_, present_import, name="import"), Command(verbs.export, present_export))
