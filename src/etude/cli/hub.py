"""`etude import` and `etude export`: models from and to the folders that transformers reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def register(app: typer.Typer) -> None:
    @app.command("import")
    def import_(
        source: Annotated[
            str,
            typer.Argument(
                metavar="SOURCE",
                help="A folder of transformers, OpenAI's GPT-1, ELMo, a hub id, or a file of word vectors.",
            ),
        ],
        out: Annotated[Path, typer.Option("--out", "-o", help="The folder of the new run.")],
    ) -> None:
        """Turn a published model into a run."""
        from etude.hub import adopt
        from etude.hub.importer import store
        from etude.runs.staging import refuse_existing

        refuse_existing(out)
        if Path(source).is_file():
            from etude.hub.vector_runs import import_vectors

            made = import_vectors(source, out)
            shape = made.recipe.model
            typer.echo(f"{made.folder}: {made.recipe.system}, {shape.vocab:,} tokens, {shape.width} wide")
            return
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
        out: Annotated[Path, typer.Option("--out", "-o", help="The new folder; of word vectors, the new file.")],
        form: Annotated[
            Literal["word2vec", "word2vec-binary", "glove", "fasttext"] | None,
            typer.Option(help="Of a file of word vectors; by its name if left out (.vec, .bin)."),
        ] = None,
    ) -> None:
        """Write a run as a folder that transformers opens, as ELMo's two files, or word vectors as a file."""
        from etude.hub.exporter import export_run
        from etude.runs.run import Run

        if Run.open(run).recipe.model_kind == "static":
            from etude.hub.vector_runs import export_vectors

            written = export_vectors(run, out, form)
            typer.echo(f"{out}  {out.stat().st_size:,} bytes, {written}")
            return
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
