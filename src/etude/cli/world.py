"""`etude world`: write text and labelled examples about the invented town."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    @app.command("world")
    def world(
        out: Annotated[Path, typer.Option("-o", "--out", help="Folder for text.txt, tasks/ and knowledge/.")],
        megabytes: Annotated[float, typer.Option(help="How much text.", min=0.001)] = 5.0,
        language: Annotated[str, typer.Option(help="en or ko.")] = "en",
        seed: Annotated[int, typer.Option(help="Another seed is another town.")] = 0,
        tasks: Annotated[bool, typer.Option(help="Also write the labelled examples.")] = True,
    ) -> None:
        """Write text about the built-in town, with gold labels for every task."""
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # lazy: --help stays fast

        from etude.world import World

        town = World(seed, language)
        columns = (TextColumn("{task.description:>22}"), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, transient=True) as bar:
            line = bar.add_task("text", total=1.0)
            town.write(out, megabytes, tasks, lambda part, share: bar.update(line, description=part, completed=share))
        typer.echo(
            f"{out / 'text.txt'}: {(out / 'text.txt').stat().st_size / 1e6:.1f} MB about town {seed} ({language})"
        )
        if tasks:
            typer.echo(f"{out / 'tasks'}: {len(list((out / 'tasks').glob('*.jsonl')))} files of labelled examples")
        typer.echo(f"{out / 'knowledge'}: {len(town.facts())} facts")
