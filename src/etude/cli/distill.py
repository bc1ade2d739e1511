"""`etude distill`: a small model learns from a large one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from etude.cli.pretrain import tell_end


def register(app: typer.Typer) -> None:
    @app.command()
    def distill(
        words: Annotated[
            list[str],
            typer.Argument(
                metavar="RECIPE CORPUS [key=value ...]",
                help="The student (a recipe), a corpus prepared with the teacher's tokenizer, and settings: "
                "train.steps=20000 distill.temperature=4",
            ),
        ],
        teacher: Annotated[Path, typer.Option("--teacher", help="A run of a masked model, or a folder of one.")],
        out: Annotated[Path, typer.Option("--out", "-o", help="The folder of the new run.")],
        quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    ) -> None:
        """Train a student on its teacher's answers; 'etude pretrain --resume' goes on after a stop."""
        from etude.cli.arguments import recipe_corpus_overrides

        if not quiet:
            typer.echo(f"Loading {' '.join(words)}, teacher {teacher}", err=True)
        from etude.pretraining import pretrain as pretraining

        recipe, corpus, overrides = recipe_corpus_overrides(words)
        run = pretraining.distill(recipe, corpus, out, teacher=teacher, quiet=quiet, overrides=overrides)
        tell_end(run, quiet)
