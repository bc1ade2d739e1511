"""`etude pick`: text, a labelled task and some minutes become the best run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

INTERRUPTED = 3  # the exit code of work that was asked to stop: what is done is saved


def register(app: typer.Typer) -> None:
    @app.command()
    def pick(
        text: Annotated[list[str], typer.Argument(help="Plain text to learn from: files, or one prepared corpus.")],
        task: Annotated[str, typer.Option("--task", help="classify, pair, tag …: 'etude tasks' lists them.")],
        train: Annotated[Path, typer.Option("--train", help="Labelled examples.")],
        out: Annotated[Path, typer.Option("--out", "-o", help="Where everything goes.")],
        minutes: Annotated[float, typer.Option("--minutes", help="For all of it.")] = 30.0,
        dev: Annotated[Path | None, typer.Option("--dev", help="To choose on; a part of train if not given.")] = None,
        test: Annotated[Path | None, typer.Option("--test", help="To report on; a part of train if not given.")] = None,
        recipes: Annotated[
            str | None, typer.Option("--recipes", help="Names or files, with commas: bert-mini,electra-small")
        ] = None,
        columns: Annotated[
            list[str] | None, typer.Option("--column", "-c", help="role=name of a column: -c text=review")
        ] = None,
        workers: Annotated[int | None, typer.Option("--workers", "-w", min=1, help="Local processes.")] = None,
        device: Annotated[str | None, typer.Option("--device", help="cpu or cuda; a GPU if there is one.")] = None,
    ) -> None:
        """Find the pre-training that pays on your text and task, and take the model home."""
        from rich.console import Console
        from rich.text import Text

        console = Console(highlight=False, soft_wrap=True)
        typer.echo(f"Planning {minutes:g} minutes", err=True)
        from etude.cli.column_options import named_columns
        from etude.study.execute import Stopped
        from etude.study.leaderboard import print_leaderboard
        from etude.study.pick import pick as run

        candidates: dict[str, dict[str, Any]] | None = None
        if recipes:
            candidates = {Path(name).stem: {"recipe": name} for name in recipes.split(",") if name}
        try:
            found = run(
                text, task, train, out, minutes, dev=dev, test=test, columns=named_columns(columns or [], {}),
                candidates=candidates, on="processes" if workers else "here", workers=workers or 1, device=device,
                say=lambda line: console.print(Text(line, style="dim")),
            )  # fmt: skip
        except (Stopped, KeyboardInterrupt):
            typer.echo("Stopped and saved. The same command goes on.", err=True)
            raise typer.Exit(INTERRUPTED) from None
        print_leaderboard(found.report.results, console)
        if found.pays:
            console.print(f"Best: {found.winner}. Use it with: etude predict {found.model} < lines.txt")
        else:
            console.print(
                "Nothing beats no pre-training here, on this text with these minutes: the model trained on the labels "
                f"alone is in {found.model}. More text or more minutes may change that."
            )
        console.print(f"Report: {found.report.page}")
