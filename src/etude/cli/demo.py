"""`etude demo`: the main job on the built-in world."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

INTERRUPTED = 3  # the exit code of work that was asked to stop: what is done is saved


def register(app: typer.Typer) -> None:
    @app.command()
    def demo(
        out: Annotated[Path, typer.Option("--out", "-o", help="Where everything goes.")] = Path("demo"),
        language: Annotated[str, typer.Option("--language", help="en or ko.")] = "en",
        minutes: Annotated[float, typer.Option("--minutes", help="How long it may take, about.", min=0.5)] = 4.5,
        workers: Annotated[
            int | None, typer.Option("--workers", "-w", min=1, help="Processes; as many as cores, four at most.")
        ] = None,
        seed: Annotated[int, typer.Option("--seed", help="Another seed is another town.")] = 0,
    ) -> None:
        """Compare several ways to pre-train, at toy size and equal compute: six minutes at most, on a CPU."""
        from rich.console import Console
        from rich.text import Text

        from etude.errors import UserError

        console = Console(highlight=False, soft_wrap=True)
        console.print(Text("Writing a small world, pre-training on it, comparing. Loading…", style="dim"))
        if language not in ("en", "ko"):
            raise UserError(f"--language {language}: the world speaks en and ko.")
        from etude.study.demo import demo as run
        from etude.study.demo import gain
        from etude.study.execute import Stopped
        from etude.study.leaderboard import print_leaderboard

        try:
            found = run(out, language, minutes, workers, seed, lambda line: console.print(Text(line, style="dim")))
        except (Stopped, KeyboardInterrupt):
            typer.echo(f"Stopped and saved. 'etude demo -o {out}' goes on.", err=True)
            raise typer.Exit(INTERRUPTED) from None
        console.print()
        print_leaderboard(found.results, console)
        best = gain(found)
        if best is not None:
            console.print(f"\n{best[0]}: {best[1]:+.1f} points over no pre-training, with the same few labels.")
        console.print(f"Report: {found.page}")
