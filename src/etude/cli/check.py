"""`etude check`: what a run will be, before it is one."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    @app.command()
    def check(
        words: Annotated[
            list[str],
            typer.Argument(metavar="RECIPE CORPUS [key=value ...]", help="As for 'etude pretrain'."),
        ],
    ) -> None:
        """Say before a run: parameters, memory, FLOPs, time, data problems, the loss to beat."""
        from rich.console import Console
        from rich.table import Table

        from etude.cli.arguments import recipe_corpus_overrides
        from etude.pretraining.check import check as look

        recipe, corpus, overrides = recipe_corpus_overrides(words)
        found = look(recipe, corpus, overrides=overrides)
        table = Table(show_header=False, box=None, pad_edge=False)
        table.add_column(style="bold")
        table.add_column()
        settings = found.recipe.train
        minutes = found.seconds / 60
        time = f"{minutes:,.1f} min" if minutes < 90 else f"{minutes / 60:,.1f} h"
        for name, value in (
            ("recipe", f"{found.recipe.name}: {found.recipe.model_kind} + {found.recipe.objective_kind}"),
            ("parameters", f"{found.parameters:,}"),
            ("memory", f"about {found.needs} on {settings.device} in {settings.precision}"),
            ("steps", f"{found.steps:,} of {settings.batch_tokens or 0:,} tokens"),
            ("tokens", f"{found.tokens:,}, {found.epochs:.2f} times through the text"),
            ("FLOPs", f"{found.flops:.3e} ({found.speed.flops_per_token:.3e} a token)"),
            ("time", f"about {time} at {found.speed.tokens_per_second:,.0f} tokens/s (measured just now)"),
            ("loss at the start", f"{found.speed.loss:.3f}"),
            ("loss to beat", f"{found.unigram_nats:.3f} (knowing only how often each token occurs)"),
        ):
            table.add_row(name, value)
        console = Console()
        console.print(table)
        for problem in found.problems:
            console.print(f"[yellow]![/yellow] {problem}", highlight=False)
        if not found.problems:
            console.print("No problems found.")
