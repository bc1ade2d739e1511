"""`etude bench`: how fast this machine trains a recipe."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    @app.command()
    def bench(
        words: Annotated[
            list[str],
            typer.Argument(metavar="RECIPE CORPUS [key=value ...]", help="As for 'etude pretrain'."),
        ],
        seconds: Annotated[float, typer.Option(help="For each micro-batch, once it runs at speed.")] = 2.0,
    ) -> None:
        """Measure this machine: tokens/s, share of its peak, the best micro-batch, where the time goes."""
        from rich.console import Console
        from rich.table import Table

        from etude.bench import bench as measure
        from etude.card import hardware, versions
        from etude.cli.words import recipe_corpus_overrides

        recipe, corpus, overrides = recipe_corpus_overrides(words)
        console = Console()
        console.print(f"{hardware()}; {versions()}", highlight=False)
        found = measure(recipe, corpus, overrides=overrides, seconds=seconds)
        settings = found.recipe.train
        console.print(
            f"{found.recipe.name} in {settings.precision}; the best matrix product here runs at "
            f"{found.peak / 1e12:.3g} TFLOP/s",
            highlight=False,
        )
        table = Table(box=None, pad_edge=False)
        for name in ("micro-batch", "tokens/s", "of peak", "memory", "waits for batches", "until at speed"):
            table.add_column(name, justify="right")
        for one in found.measured:
            if one.speed is None:
                table.add_row(f"{one.micro_tokens:,}", "out of memory")
                continue
            held = f"{one.memory / 1e9:.2f} GB" if one.memory else "?"
            best = " *" if one is found.best else ""
            table.add_row(
                f"{one.micro_tokens:,}{best}",
                f"{one.speed.tokens_per_second:,.0f}",
                f"{found.share(one):.1%}",
                held,
                f"{one.speed.waited:.1%}",
                f"{one.speed.started:.1f} s",
            )
        console.print(table)
        total = sum(found.parts.values())
        if total:
            said = ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in found.parts.items())
            console.print(f"A step at {found.best.micro_tokens:,} tokens, part by part: {said}.", highlight=False)
        console.print(f"Fastest: train.micro_tokens={found.best.micro_tokens}", highlight=False)
