"""`etude prompt`: a task put to a causal model in words, with some examples shown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from etude.cli.generate import Device, Model

if TYPE_CHECKING:
    from etude.transfer.prompt import PromptResult


def register(app: typer.Typer) -> None:
    app.command()(prompt)


def prompt(
    run: Model,
    file: Annotated[Path, typer.Argument(metavar="TASK.yaml", help="The task in words; docs/prompting.md shows some.")],
    shots: Annotated[
        str, typer.Option(help="How many examples are shown before each: numbers with commas.")
    ] = "0,1,4,16",
    train: Annotated[Path | None, typer.Option(help="Examples to show, in place of the file's.")] = None,
    test: Annotated[Path | None, typer.Option(help="Examples to ask, in place of the file's.")] = None,
    limit: Annotated[int | None, typer.Option(help="Ask only the first so many.")] = None,
    seed: Annotated[int, typer.Option(help="Another seed shows other examples.")] = 0,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave bad examples out.")] = False,
    predictions: Annotated[Path | None, typer.Option(help="Write the answers here, one JSON object a line.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    device: Device = None,
) -> None:
    """Zero-, one- and few-shot scores of a causal model on a task."""
    import json
    import sys

    from etude.errors import UserError
    from etude.train.checkpoint import write_text
    from etude.transfer.prompt import prompt as ask

    if predictions is not None and not predictions.parent.is_dir():  # told now, not after all has been asked
        raise UserError(f"There is no folder {predictions.parent} for the predictions. Make it, or name another.")

    def tell(done: int, of: int) -> None:
        if sys.stderr.isatty():
            typer.echo(f"\r{done:,} of {of:,} asked" + ("\n" if done == of else ""), nl=False, err=True)

    found = ask(
        run, file, _numbers(shots), train=train, test=test, seed=seed, limit=limit, skip_bad=skip_bad, device=device,
        on_progress=tell,
    )  # fmt: skip
    if predictions is not None:
        lines = (json.dumps({"shots": one.shots, **answer}, ensure_ascii=False) + "\n"
                 for one in found.results for answer in one.answers)  # fmt: skip
        write_text(predictions, "".join(lines))
    typer.echo(json.dumps(found.json(), ensure_ascii=False) if as_json else table(found))


def _numbers(words: str) -> list[int]:
    from etude.errors import UserError

    try:
        return [int(word) for word in words.split(",")]
    except ValueError:
        raise UserError(f"--shots {words}: write whole numbers with commas between them, such as 0,1,4.") from None


HOW = {
    "tokens": "answers compared by log-probability a token",
    "sum": "answers compared by log-probability",
    "characters": "answers compared by log-probability a character",
    "bytes": "answers compared by log-probability a byte",
    "unconditional": "answers compared by what the question adds to their log-probability",
    "written": "right is what the model itself would write",
}


def table(found: PromptResult) -> str:
    """One line a number of shots, what they are compared with, and what a reader cannot see."""
    names = list(found.results[0].scores)
    lines = [" ".join(["shots", *(f"{name:<26}" for name in names)]).rstrip()]
    for one in found.results:
        cells = (f"{_number(s.value)} [{_number(s.low)}, {_number(s.high)}]" for s in one.scores.values())
        lines.append(" ".join([f"{one.shots:>5}", *(f"{cell:<26}" for cell in cells)]).rstrip())
    count = next(iter(found.results[0].scores.values())).count
    lines.append(f"{count:,} examples; {HOW[found.results[0].compared]}")
    if found.baseline is not None:
        lines.append(f"{found.baseline[0]}: accuracy {found.baseline[1]:.4f}")
    for one in found.results:
        if one.accuracy_by:
            rest = ", ".join(f"{rule} {value:.4f}" for rule, value in one.accuracy_by.items())
            lines.append(f"shots {one.shots}, accuracy by other rules: {rest}")
    for one in found.results:
        if one.mean_shots < one.shots:
            lines.append(f"! shots {one.shots}: {one.mean_shots:.1f} fitted into the context on average")
        if one.truncated:
            lines.append(f"! shots {one.shots}: {one.truncated:,} of {count:,} examples were cut to fit the context")
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:.4f}" if value < 100 else f"{value:.4g}"  # a perplexity may have no end
