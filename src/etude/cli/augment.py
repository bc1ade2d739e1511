"""`etude augment`: more examples from few, for a student to hear its teacher on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from etude.cli.generate import Device, Model


def register(app: typer.Typer) -> None:
    app.command()(augment)


def augment(
    run: Model,
    file: Annotated[
        Path, typer.Argument(metavar="EXAMPLES", help="Labelled examples, as 'etude finetune' reads them.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file of examples and copies, .jsonl.")],
    task: Annotated[str, typer.Option(help="Whose examples they are: classify, pair, similarity.")] = "classify",
    copies: Annotated[int, typer.Option(help="Of each text, at most; none comes twice.")] = 20,
    rate: Annotated[float, typer.Option(help="The chance of a word to be exchanged.")] = 0.4,
    candidates: Annotated[int, typer.Option(help="Words that one may be exchanged for.")] = 15,
    vectors: Annotated[
        Path | None, typer.Option(help="A run or a file of word vectors, for words of several pieces.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Another seed makes other copies.")] = 0,
    columns: Annotated[
        list[str] | None, typer.Option("--column", "-c", help="role=name of a column: -c text=review")
    ] = None,
    text: Annotated[str | None, typer.Option("--text", help="The column of the text.")] = None,
    device: Device = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Write examples and copies of them in which a masked model exchanged some words."""
    import sys

    from etude.cli.column_options import named_columns
    from etude.inference.model import load
    from etude.recipes.datasets import resolve
    from etude.transfer import augment as making

    def tell(read: int, written: int) -> None:
        if sys.stderr.isatty() and not quiet:
            typer.echo(f"\r{read:,} examples read, {written:,} made", nl=False, err=True)

    rules = making.Rules(copies, rate, candidates, seed)
    opened = None
    if vectors is not None:
        from etude.hub.vector_runs import open_vectors

        opened = open_vectors(vectors)
    read, written = making.augment(
        load(run, device),
        file,
        out,
        task=resolve(task, ())[0],
        columns=named_columns(columns or [], {"text": text}),
        rules=rules,
        vectors=opened,
        tell=tell,
    )
    if not quiet:
        typer.echo(f"{out}: {read:,} examples and {written - read:,} copies", err=True)
