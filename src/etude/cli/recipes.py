"""`etude recipes`: which systems there are, what each costs, and what one says in full."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    @app.command()
    def recipes(
        name: Annotated[str | None, typer.Argument(help="Print this recipe, resolved.")] = None,
        overrides: Annotated[list[str] | None, typer.Argument(help="Such as model.layers=6.")] = None,
    ) -> None:
        """List the recipes with parameters and FLOPs a token, or print one."""
        from etude.recipes.schema import Recipe

        if name is not None:
            typer.echo(Recipe.load(name, overrides or []).resolve().dump(), nl=False)
            return

        from rich.console import Console
        from rich.table import Table

        from etude.recipes.document import shipped
        from etude.recipes.size import measure, short

        table = Table(box=None, header_style="bold", pad_edge=False)
        table.add_column("recipe", no_wrap=True)
        table.add_column("system", no_wrap=True)
        for heading in ("parameters", "FLOPs a token"):
            table.add_column(heading, justify="right", no_wrap=True)
        for recipe in map(Recipe.load, shipped()):
            size = measure(recipe)
            table.add_row(recipe.name, recipe.system, short(size.parameters), short(size.flops_per_token))
        console = Console()
        console.print(table)
        console.print("FLOPs: forward and backward over full sequences. One in full: etude recipes NAME", style="dim")
