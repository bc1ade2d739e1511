"""`etude world`: write text and labelled examples about the invented town."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    @app.command("world")
    def world(
        out: Annotated[Path, typer.Option("-o", "--out", help="Folder for text.txt and tasks/.")],
        megabytes: Annotated[float, typer.Option(help="How much text.", min=0.001)] = 5.0,
        language: Annotated[str, typer.Option(help="en or ko.")] = "en",
        seed: Annotated[int, typer.Option(help="Another seed is another town.")] = 0,
        tasks: Annotated[bool, typer.Option(help="Also write the labelled examples.")] = True,
    ) -> None:
        """Write text about the built-in town, with gold labels for every task."""
        from etude.world import World  # lazy: --help stays fast

        World(seed, language).write(out, megabytes, tasks)
        typer.echo(
            f"Wrote {megabytes:g} MB of text to {out / 'text.txt'}" + (f", tasks to {out / 'tasks'}" if tasks else "")
        )
