"""`etude import` and `etude export`: models from and to the folders that transformers reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    @app.command("import")
    def import_(
        source: Annotated[
            str, typer.Argument(metavar="FOLDER", help="A folder of transformers, OpenAI's GPT-1, ELMo, or a hub id.")
        ],
        out: Annotated[Path, typer.Option("--out", "-o", help="The folder of the new run.")],
    ) -> None:
        """Turn a published model into a run."""
        from etude.hub import adopt
        from etude.hub.importing import store
        from etude.run import refuse_existing

        refuse_existing(out)
        adopted = adopt(source)
        run = store(adopted, source, out)
        model = adopted.recipe.model
        count = sum(one.numel() for one in adopted.tensors.values())
        typer.echo(
            f"{run.folder}: {adopted.recipe.system} ({adopted.architecture}), {count:,} parameters, "
            f"{model.layers} layers of width {model.width}, {adopted.tokenizer.vocab:,} tokens"
        )
        for note in adopted.notes:
            typer.echo(f"! {note}")

    @app.command()
    def export(
        run: Annotated[Path, typer.Argument(metavar="RUN", help="A finished run.")],
        out: Annotated[Path, typer.Option("--out", "-o", help="The new folder.")],
    ) -> None:
        """Write a run as a folder that transformers opens, or as ELMo's two files."""
        from etude.hub.exporting import export_run

        published = export_run(run, out)
        for file in sorted(file for file in out.rglob("*") if file.is_file()):
            typer.echo(f"{file}  {file.stat().st_size:,} bytes")
        for note in published.notes:
            typer.echo(f"! {note}")
        for line in published.usage:
            typer.echo(line)
        if published.usage:
            return
        typer.echo(f"Opens as {published.architecture}:")
        typer.echo(f"  from transformers import AutoTokenizer, {published.opened_with}")
        typer.echo(f'  model = {published.opened_with}.from_pretrained("{out}")')
        typer.echo(f'  tokenizer = AutoTokenizer.from_pretrained("{out}")')
