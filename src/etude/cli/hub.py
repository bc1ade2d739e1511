"""`etude import` and `etude export`: what was read or written, and how others open it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from etude.cli.adapter import Call, Command
from etude.cli.printing import echo
from etude.verbs import hub as verbs

if TYPE_CHECKING:
    from etude.verbs.hub import ModelExport, ModelImport


def present_import(call: Call[ModelImport]) -> None:
    result = call()
    recipe = result.run.recipe
    shape = recipe.model.model_dump()
    if result.architecture is None:
        echo(f"{result.run.folder}: {recipe.system}, {result.vocab:,} tokens, {shape['width']} wide")
        return
    echo(
        f"{result.run.folder}: {recipe.system} ({result.architecture}), {result.parameters:,} parameters, "
        f"{shape['layers']} layers of width {shape['width']}, {result.vocab:,} tokens"
    )
    for note in result.notes:
        echo(f"! {note}")


def present_export(call: Call[ModelExport]) -> None:
    result = call()
    published = result.published
    if published is None and result.path.is_dir():
        for file in result.files:
            echo(f"{file}  {file.stat().st_size:,} bytes")
        for line in result.usage:
            echo(line)
        if not result.usage:
            echo(f"Needs numpy alone:  python {result.path / 'predict.py'} < lines.txt")
        return
    if published is None:
        for file in result.files:
            echo(f"{file}  {file.stat().st_size:,} bytes, {result.form}")
        return
    for file in result.files:
        echo(f"{file}  {file.stat().st_size:,} bytes")
    for line in [*(f"! {note}" for note in published.notes), *published.usage]:
        echo(line)
    if published.usage:
        return
    echo(f"Opens as {published.architecture}:")
    echo(f"  from transformers import AutoTokenizer, {published.auto_class}")
    echo(f'  model = {published.auto_class}.from_pretrained("{result.path}")')
    echo(f'  tokenizer = AutoTokenizer.from_pretrained("{result.path}")')


COMMANDS = (Command(verbs.import_, present_import, name="import"), Command(verbs.export, present_export))
