"""`etude tasks`: what a run can be fine-tuned to."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    @app.command()
    def tasks() -> None:
        """List the tasks, their columns and the names those have in published files."""
        from etude.transfer.plan import task_kinds
        from etude.transfer.suite import SUITES

        for kind, module in task_kinds().items():
            typer.echo(f"{kind:<12} {module.SUMMARY}")
            for role, names in module.COLUMNS.items():
                typer.echo(f"{'':<12}   {role}: {', '.join(names)}")
        for name, members in SUITES.items():
            typer.echo(
                f"{name:<12} a suite with one score: {', '.join(members)}; --train names the folder that holds them"
            )
        typer.echo("\nFiles: .jsonl .csv .tsv .json (also .gz .xz .zst). Other names of columns: -c role=name.")
