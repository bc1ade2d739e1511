"""`etude pretrain`: from a corpus to a Run, and `--resume` after any stop."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from etude.runs.run import Run

INTERRUPTED = 3  # the exit code of a run that was asked to stop: its work is saved


def register(app: typer.Typer) -> None:
    @app.command()
    def pretrain(
        words: Annotated[
            list[str] | None,
            typer.Argument(
                metavar="RECIPE CORPUS [key=value ...]",
                help="A recipe (name or file), a prepared corpus, and settings to change: train.lr=3e-4",
            ),
        ] = None,
        out: Annotated[Path | None, typer.Option("--out", "-o", help="The folder of the new run.")] = None,
        resume: Annotated[Path | None, typer.Option("--resume", help="Go on with this run.")] = None,
        corpus: Annotated[Path | None, typer.Option("--corpus", help="With --resume: where its corpus is now.")] = None,
        quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    ) -> None:
        """Pre-train a recipe on a corpus; a kill at any moment loses nothing."""
        from etude.cli.arguments import recipe_corpus_overrides
        from etude.errors import UserError

        if not quiet:  # torch takes seconds to load: say at once what is going on
            typer.echo(f"Resuming {resume}" if resume else f"Loading {' '.join(words or [])}", err=True)
        from etude.pretraining import pretrain as pretraining

        if resume is not None:
            if words or out:
                raise UserError(
                    "--resume takes nothing but the run: its recipe and corpus are inside. "
                    "To change settings, start a new run with 'etude pretrain RECIPE CORPUS -o FOLDER'."
                )
            run = pretraining.resume(resume, corpus=corpus, quiet=quiet)
        else:
            recipe, place, overrides = recipe_corpus_overrides(words or [])
            if out is None:
                raise UserError("Say where the run goes: -o runs/NAME.")
            run = pretraining.pretrain(recipe, place, out, quiet=quiet, overrides=overrides)
        tell_end(run, quiet)


def tell_end(run: Run, quiet: bool) -> None:
    """What became of a run; one that was stopped ends the command with a code of its own."""
    if not run.finished:
        typer.echo(f"Stopped and saved. Go on with: etude pretrain --resume {run.folder}", err=True)
        raise typer.Exit(INTERRUPTED)
    if not quiet:
        typer.echo(f"Done: {run.folder} (weights in model.safetensors, what happened in README.md)", err=True)
