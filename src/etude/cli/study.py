"""`etude study`: runs a study file and ends in a report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

INTERRUPTED = 3  # the exit code of work that was asked to stop: what is done is saved


def register(app: typer.Typer) -> None:
    @app.command()
    def study(
        file: Annotated[Path, typer.Argument(help="A study, such as studies/mlm-vs-electra.yaml")],
        words: Annotated[
            list[str] | None, typer.Argument(metavar="[key=value ...]", help="Settings to change: seeds.pretrain=1")
        ] = None,
        out: Annotated[
            Path | None, typer.Option("--out", "-o", help="Its folder; runs/study-NAME if not given.")
        ] = None,
        budget: Annotated[
            str | None, typer.Option("--budget", help="In place of the study's: 10m, 2h, 1e12 (FLOPs), 5e6tokens.")
        ] = None,
        dry: Annotated[bool, typer.Option("--dry-run", help="Show the cells, their cost and what is cached.")] = False,
        on: Annotated[str, typer.Option("--on", help="here, processes or ray.")] = "here",
        workers: Annotated[
            int | None, typer.Option("--workers", "-w", min=1, help="So many local processes (means --on processes).")
        ] = None,
        gpu: Annotated[bool, typer.Option("--gpu", help="Take the study's section 'gpu'.")] = False,
        text: Annotated[
            list[str] | None, typer.Option("--text", help="In place of the study's: files, or a prepared corpus.")
        ] = None,
        data: Annotated[Path | None, typer.Option("--data", help="The folder that the tasks' files lie under.")] = None,
        device: Annotated[str | None, typer.Option("--device", help="cpu or cuda; a GPU if there is one.")] = None,
        cell: Annotated[str | None, typer.Option("--cell", help="Only this cell, by the first letters.")] = None,
        retry: Annotated[bool, typer.Option("--retry", help="Try cells again that failed before.")] = False,
        report_only: Annotated[
            bool, typer.Option("--report", help="Do no cell: write the report of what there is.")
        ] = False,
        language: Annotated[str, typer.Option("--language", help="The report opens in en or ko.")] = "en",
        quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the result.")] = False,
    ) -> None:
        """Compare recipes on your text and tasks for the same compute; a kill at any moment loses nothing."""
        from rich.console import Console
        from rich.text import Text

        from etude.errors import UserError

        console = Console(highlight=False, soft_wrap=True)
        if not quiet:  # torch takes seconds to load: say at once what is going on
            typer.echo(f"Planning {file}", err=True)
        if on not in ("here", "processes", "ray"):
            raise UserError(f"--on {on}: cells run here, on processes or on ray.")
        if language not in ("en", "ko"):
            raise UserError(f"--language {language}: the report speaks en and ko.")
        from etude.study import runner as running
        from etude.study.budget import parsed
        from etude.study.execute import Stopped
        from etude.study.leaderboard import print_leaderboard
        from etude.study.settings import Study, changes_of

        changes = changes_of(words or [])
        if budget:
            changes["budget"] = parsed(budget)
        if text:
            changes |= _text(text)
        loaded = Study.load(file, gpu, changes)
        folder = out or Path("runs") / f"study-{loaded.name}"
        if dry:
            _dry(loaded, folder, data, device, workers or 1, cell, console)
            return
        way: Any = "processes" if workers and on == "here" else on
        try:
            report = running.run(
                loaded, folder, on=way, workers=workers or 2, data=data, device=device, retry=retry, only=cell,
                work=not report_only, language=language,
                say=lambda line: None if quiet else console.print(Text(line, style="dim")),
            )  # fmt: skip
        except (Stopped, KeyboardInterrupt):
            typer.echo(f"Stopped and saved. The same command goes on (-o {folder}).", err=True)
            raise typer.Exit(INTERRUPTED) from None
        print_leaderboard(report.results, console)
        _claims(report.results, console)
        for line in report.failed:
            console.print(Text(f"Failed: {line}", style="red"))
        console.print(f"Report: {report.page}")


def _claims(results: dict[str, Any], console: Any) -> None:
    from rich.text import Text

    from etude.study.leaderboard import VERDICTS, percent
    from etude.study.settings import in_language

    styles = {"holds": "green", "fails": "red"}
    for claim in results["claims"]:
        said = f"{VERDICTS[claim['verdict']]}: {in_language(claim['claim'], 'en')}"
        if "mean" in claim:
            said += f" ({percent(claim['mean'], sign=True)}, {percent(claim['low'])} … {percent(claim['high'])})"
        line = Text(said, style=styles.get(claim["verdict"], ""))
        console.print(line)


def _dry(
    study: Any, folder: Path, data: Path | None, device: str | None, workers: int, cell: str | None, console: Any
) -> None:
    import contextlib
    import tempfile

    from etude.study import plan as plans
    from etude.study.leaderboard import plan_table, plan_words
    from etude.study.runner import chosen

    with contextlib.ExitStack() as stack:
        # a dry run leaves nothing behind
        place = folder if folder.is_dir() else Path(stack.enter_context(tempfile.TemporaryDirectory()))
        plan = plans.make(study, place, data=data, device=device, dry=True)
        console.print(plan_table(plan, chosen(plan, cell)))
        console.print(plan_words(plan, workers))


def _text(places: list[str]) -> dict[str, Any]:
    """--text as changes of the study: a prepared corpus, or files. What else the study says of its text stays."""
    if len(places) == 1 and (Path(places[0]) / "manifest.json").is_file():
        return {"text.world": None, "text.files": None, "text.corpus": places[0]}
    return {"text.world": None, "text.files": places, "text.corpus": None}
