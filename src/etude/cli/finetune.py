"""`etude finetune`: a run and a task become a run that does the task."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

INTERRUPTED = 3  # the exit code of a run that was asked to stop: its work is saved


def register(app: typer.Typer) -> None:
    @app.command()
    def finetune(
        words: Annotated[
            list[str] | None,
            typer.Argument(
                metavar="RUN TASK [key=value ...]",
                help="A run (or a folder of transformers), a task, and settings: train.lr=3e-5 task.dropout=0.2 "
                "transfer.frozen=true",
            ),
        ] = None,
        train: Annotated[
            Path | None, typer.Option("--train", help="The examples to learn from; of a suite (glue), its folder.")
        ] = None,
        dev: Annotated[Path | None, typer.Option("--dev", help="The examples the best weights are chosen on.")] = None,
        out: Annotated[Path | None, typer.Option("--out", "-o", help="The folder of the new run.")] = None,
        teacher: Annotated[
            Path | None,
            typer.Option("--teacher", help="Learn the task from this run of it; distill.soft_weight=... say how."),
        ] = None,
        columns: Annotated[
            list[str] | None,
            typer.Option("--column", "-c", help="role=name of a column: -c text=review -c label=stars"),
        ] = None,
        text: Annotated[str | None, typer.Option("--text", help="The column of the text.")] = None,
        label: Annotated[str | None, typer.Option("--label", help="The column of the label.")] = None,
        lr: Annotated[str | None, typer.Option("--lr", help="Rates to choose from on dev: 2e-5,3e-5,5e-5")] = None,
        vary: Annotated[
            list[str] | None,
            typer.Option("--vary", help="Values of a setting to compare on dev: task.pooling=start,mean,max,last"),
        ] = None,
        ways: Annotated[
            bool, typer.Option("--ways", help="Compare features and fine-tuning under all four poolings, in one table.")
        ] = False,
        seeds: Annotated[int, typer.Option("--seeds", min=1, help="So many runs; mean and deviation.")] = 1,
        skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave bad examples out, and count them.")] = False,
        resume: Annotated[Path | None, typer.Option("--resume", help="Go on with this run.")] = None,
        quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    ) -> None:
        """Fine-tune a run on a task, or train a head on its features."""
        from etude.cli.column_options import named_columns, settings_and_places
        from etude.errors import UserError
        from etude.transfer import finetune as single
        from etude.transfer import search as trials
        from etude.transfer import suite

        if resume is not None:
            if words or train or dev or out or teacher:
                raise UserError("--resume takes nothing but the run: its task and files are inside.")
            run = (trials if trials.is_search(resume) else single).resume(resume, quiet)
        else:
            places, overrides = settings_and_places(words or [])
            if len(places) != 2:
                raise UserError(
                    "A run and a task are wanted, for example 'runs/bert classify'; "
                    f"got: {' '.join(places) or 'nothing'}. 'etude tasks' lists the tasks."
                )
            overrides += [f"distill.teacher={teacher}"] if teacher is not None else []
            if train is None or out is None:
                raise UserError("Say what to learn from, and where the run goes: --train FILE -o runs/NAME.")
            if places[1] in suite.SUITES:
                _suite(places[0], places[1], train, out, overrides, skip_bad, quiet)
                return
            named = named_columns(columns or [], {"text": text, "label": label})
            varied = (trials.WAYS if ways else {}) | _varied([*([f"train.lr={lr}"] if lr else []), *(vary or [])])
            if seeds > 1 or any(len(values) > 1 for values in varied.values()):
                run = trials.search(
                    places[0],
                    places[1],
                    train,
                    out,
                    dev=dev,
                    vary=varied,
                    seeds=seeds,
                    columns=named,
                    overrides=overrides,
                    skip_bad=skip_bad,
                    quiet=quiet,
                )
            else:
                overrides += [f"{key}={values[0]}" for key, values in varied.items()]
                run = single.finetune(
                    places[0],
                    places[1],
                    train,
                    out,
                    dev=dev,
                    columns=named,
                    overrides=overrides,
                    skip_bad=skip_bad,
                    quiet=quiet,
                )
        _tell(run.folder, resume or out or run.folder, run.finished)

    def _tell(folder: Path, asked: Path, finished: bool) -> None:
        from etude.runs.task_plan import Plan
        from etude.transfer import search as trials

        if not finished:
            typer.echo(f"Stopped and saved. Go on with: etude finetune --resume {asked}", err=True)
            raise typer.Exit(INTERRUPTED)
        if trials.is_search(folder):
            typer.echo(trials.table(folder))
        scores = Plan.read(folder).scores
        width = max(map(len, scores), default=0)
        for name, one in scores.items():
            typer.echo(
                f"{name:<{width}} {one['value']:.4f}  [{one['low']:.4f}, {one['high']:.4f}]  n = {one['count']:,} (dev)"
            )
        typer.echo(f"Done: {folder} (what happened in README.md)", err=True)


def _suite(base: str, name: str, data: Path, out: Path, overrides: list[str], skip_bad: bool, quiet: bool) -> None:
    from etude.transfer import suite

    result = suite.run_suite(base, name, data, out, overrides, skip_bad, quiet)
    if result is None:
        typer.echo("Stopped and saved. The same command goes on.", err=True)
        raise typer.Exit(INTERRUPTED)
    typer.echo(suite.table(result))


def _varied(words: list[str]) -> dict[str, list[Any]]:
    """key=a,b,c as {key: [a, b, c]}, each value as it would stand in a recipe."""
    from etude.errors import UserError
    from etude.recipes.document import value_of

    found: dict[str, list[Any]] = {}
    for word in words:
        key, equals, values = word.partition("=")
        if not equals or "." not in key or not values:
            raise UserError(f"'{word}' varies nothing. Write group.name=a,b,c, such as train.lr=2e-5,5e-5.")
        found[key] = [value_of(value, f"--vary {word}") for value in values.split(",") if value.strip()]
    return found
