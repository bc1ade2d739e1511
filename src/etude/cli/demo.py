"""`etude demo`: the way from text to a model, on the built-in world."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    @app.command()
    def demo(
        out: Annotated[Path, typer.Option("--out", "-o", help="Where everything goes.")] = Path("demo"),
        language: Annotated[str, typer.Option("--language", help="en or ko.")] = "en",
        minutes: Annotated[
            float | None,
            typer.Option("--minutes", help="How long to pre-train; as the toy's recipe says if not given."),
        ] = None,
        seed: Annotated[int, typer.Option("--seed")] = 0,
    ) -> None:
        """Write a small world, pre-train on it, and fill blanks: two minutes on a CPU."""
        from rich.console import Console
        from rich.text import Text

        from etude.cli.pretrain import INTERRUPTED
        from etude.demo import demo as run

        console = Console(highlight=False)
        found = run(out, language, minutes, seed, say=lambda words: console.print(Text(words, style="dim")))
        if not found.run.finished:
            console.print(f"Stopped and saved. 'etude demo -o {out}' goes on.")
            raise typer.Exit(INTERRUPTED)
        console.print()
        for blank in found.blanks:
            right = any(
                guess.token == blank.answer.lower() or guess.token == blank.answer for guess in blank.guesses[:1]
            )
            console.print(blank.text)
            guesses = ", ".join(f"{guess.token} {guess.probability:.0%}" for guess in blank.guesses)
            console.print(f"  {'✓' if right else '·'} {guesses}  (it was: {blank.answer})\n")
        console.print(
            f"Loss at masked tokens of held-out text: {found.loss:.2f} nats; "
            f"knowing only how often each token occurs: {found.unigram:.2f}."
        )
        console.print(
            f'The model card: {found.run.folder}/README.md. Next: etude fill {found.run.folder} "The [MASK] ..."'
        )
