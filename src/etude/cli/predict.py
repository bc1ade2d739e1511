"""`etude predict`, `etude evaluate`, `etude features`: transferred and pre-trained runs in use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

Columns = Annotated[
    list[str] | None, typer.Option("--column", "-c", help="role=name of a column, if not as in training.")
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave bad examples out, and count them.")]


def register(app: typer.Typer) -> None:
    @app.command()
    def evaluate(
        run: Annotated[Path, typer.Argument(metavar="RUN", help="A fine-tuned run.")],
        file: Annotated[Path, typer.Argument(metavar="FILE", help="Labelled examples.")],
        columns: Columns = None,
        skip_bad: SkipBad = False,
        as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
        report: Annotated[Path | None, typer.Option("--report", help="An HTML page: confusion, worst errors.")] = None,
        predictions: Annotated[Path | None, typer.Option("--predictions", help="Write the answers here too.")] = None,
    ) -> None:
        """The official scores of a run on a file, with 95 % intervals."""
        import json

        from etude.cli.column_options import named_columns
        from etude.inference.task_model import Tuned
        from etude.tasks.example_filter import warn_bad, warn_once

        tuned = Tuned.open(run)
        examples = tuned.read(file, named_columns(columns or []), skip_bad)
        warn_bad(examples)
        with warn_once():
            scores = tuned.evaluate(examples)
            answers = tuned.predict(examples) if predictions is not None or report is not None else []
        if predictions is not None:
            tuned.write(answers, predictions)
        if report is not None:
            from etude.transfer.error_report import write_report

            judged, counts = tuned.task.judge(examples, answers), tuned.task.confusion(examples, answers)
            write_report(report, f"{run.name} on {file.name}", scores, examples, judged, counts)
        if as_json:
            typer.echo(json.dumps({name: score.json() for name, score in scores.items()}))
            return
        width = max(map(len, scores))
        for name, score in scores.items():
            typer.echo(f"{name:<{width}} {score}")

    @app.command()
    def predict(
        run: Annotated[Path, typer.Argument(metavar="RUN", help="A fine-tuned run.")],
        file: Annotated[
            Path | None,
            typer.Argument(metavar="[FILE]", help="Lines, or a file of examples; standard input if left out."),
        ] = None,
        columns: Columns = None,
        skip_bad: Annotated[
            bool,
            typer.Option("--skip-bad", help='Answer a bad line by {"error": ...}; leave bad records of a table out.'),
        ] = False,
    ) -> None:
        """One JSON answer a line, in order: of plain texts, of JSON objects, or of the examples of a file (.csv …)."""
        import contextlib
        import json
        import sys

        from etude.cli.column_options import named_columns
        from etude.errors import UserError
        from etude.inference.task_model import Tuned, holds_lines
        from etude.tasks.example_filter import warn_bad

        tuned = Tuned.open(run).with_columns(named_columns(columns or []))
        with contextlib.ExitStack() as stack:
            if file is not None and not file.is_file():
                raise UserError(f"There is no file {file}.")
            if file is not None and not holds_lines(file):
                examples = tuned.read(file, skip_bad=skip_bad, labelled=False)
                warn_bad(examples)
                for answer in tuned.predict(examples):
                    sys.stdout.write(json.dumps(answer, ensure_ascii=False) + "\n")
                return
            # a line ends at \n only: texts may hold U+2028 and its kind
            lines = (
                stack.enter_context(open(file, encoding="utf-8", newline="\n"))
                if file is not None
                else stack.enter_context(open(sys.stdin.fileno(), encoding="utf-8", newline="\n", closefd=False))
            )
            try:
                for answer in tuned.stream(lines, str(file or "standard input"), skip_bad):
                    sys.stdout.write(json.dumps(answer, ensure_ascii=False) + "\n")
                    sys.stdout.flush()
            except UnicodeDecodeError as problem:
                raise UserError(f"{file or 'standard input'} is not UTF-8: {problem}. Convert it.") from None

    @app.command()
    def features(
        run: Annotated[Path, typer.Argument(metavar="RUN", help="Any run.")],
        file: Annotated[Path, typer.Argument(metavar="FILE", help="One text a line, or examples with a text column.")],
        out: Annotated[Path, typer.Option("--out", "-o", help="The .npz file.")],
        layers: Annotated[str, typer.Option(help="last, last4, all, or numbers such as 0,-1.")] = "last",
        pool: Annotated[
            Literal["mean", "max", "start", "last", "none"], typer.Option(help="One vector a text; none: one a token.")
        ] = "mean",
        text: Annotated[str | None, typer.Option("--text", help="The column of the text.")] = None,
    ) -> None:
        """States of texts as arrays: vectors (texts, layers, width), or with --pool none one array a text."""
        from etude.inference.features import extract_file

        told = extract_file(run, file, out, layers, pool, text)
        typer.echo(f"{out}: {told}", err=True)
