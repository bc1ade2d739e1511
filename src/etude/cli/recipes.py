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

        from etude.recipes.document import recipe_names
        from etude.recipes.size import measure, short

        console = Console()
        with console.status("Counting"):
            sizes = [(recipe, measure(recipe)) for recipe in map(Recipe.load, recipe_names())]
        table = Table(box=None, header_style="bold", pad_edge=False)
        table.add_column("recipe", no_wrap=True)
        table.add_column("system", no_wrap=True)
        for heading in ("parameters", "FLOPs a token"):
            table.add_column(heading, justify="right", no_wrap=True)
        for recipe, size in sorted(sizes, key=lambda row: (row[0].system, row[1].parameters)):
            parameters, flops = short(size.parameters, "KMBT"), short(size.flops_per_token, "KMGT")
            table.add_row(recipe.name, recipe.system, parameters, flops)
        console.print(table)
        console.print(
            "Parameters of the model without heads; FLOPs forward and backward over full sequences.", style="dim"
        )
        console.print("One recipe in full: etude recipes NAME [model.layers=6 ...]", style="dim")
