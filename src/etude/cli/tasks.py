"""`etude tasks`: what a run can be fine-tuned to."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    @app.command()
    def tasks() -> None:
        """List the tasks: their scores, files and columns, with the names those have in published files."""
        from etude.tasks.reading import KINDS, SQUEEZED
        from etude.transfer.named import NAMED
        from etude.transfer.plan import task_kinds
        from etude.transfer.suite import SUITES

        for kind, module in task_kinds().items():
            typer.echo(f"{kind:<12} {module.SUMMARY}")
            typer.echo(f"{'':<12}   scores: {module.SCORES}")
            typer.echo(f"{'':<12}   files: {' '.join(getattr(module, 'FILES', KINDS))}")
            for role, names in module.COLUMNS.items():
                typer.echo(f"{'':<12}   column {role}: {', '.join(names)}")
            sets = [
                f"{name} ({', '.join(f'{key}={value}' for key, value in one.settings.items())})"
                if one.settings
                else name
                for name, one in NAMED.items()
                if one.kind == kind
            ]
            if sets:
                typer.echo(f"{'':<12}   by name: {', '.join(sets)}")
        for name, members in SUITES.items():
            typer.echo(f"{name:<12} a suite with one score: {', '.join(members)}; --train names the folder of all")
        typer.echo(f"\nFiles may be squeezed ({' '.join(SQUEEZED)}). Other names of columns: -c role=name.")
