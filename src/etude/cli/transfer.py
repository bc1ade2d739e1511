"""`etude finetune`, `augment` and `prompt`: scores, tables and counts."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from etude.cli.activity import show_activity
from etude.cli.adapter import Call, Command
from etude.cli.exits import advise_resuming, exit_interrupted
from etude.cli.printing import echo, is_first_process, to_json
from etude.errors import UserError, quote_path
from etude.verbs import transfer as verbs

if TYPE_CHECKING:
    from etude.transfer.prompt import PromptResult
    from etude.verbs.task_run import SuiteRun, TaskRun
    from etude.verbs.transfer import AugmentCounts


def present_finetune(call: Call[TaskRun], *, resume: Path | None = None) -> None:
    """Prints the scores on dev; a suite and --resume are verbs of their own.

    Args:
        resume: Continue this run, which was stopped, from its last checkpoint.
    """
    options = call.options
    if resume is not None:
        if call.words or set(call.given) - {"quiet", "parallel"}:
            raise UserError("--resume takes nothing but the run: its task, files and settings are inside.")
        with show_activity(f"resuming {resume}", bool(options["quiet"])):
            tuned = verbs.resume_finetune(resume, parallel=options["parallel"], quiet=options["quiet"])
        print_task_run(tuned, resume)
        return
    arguments = call.arguments
    with show_activity(call.stage, bool(arguments["quiet"])):
        from etude.transfer.suite import SUITES  # loads torch

    if arguments["task"] in SUITES:
        names = ("train", "out", "settings", "skip_bad", "quiet")
        call.refuse_options(names, f"applies to one task, and {arguments['task']} is a suite of them: leave it out.")
        shared = {name: arguments[name] for name in names}
        with show_activity(call.stage, bool(arguments["quiet"])):
            suite = verbs.finetune_suite(arguments["run"], arguments["task"], **shared)
        print_suite(suite)
    else:
        print_task_run(call(), arguments["out"])


def print_task_run(run: TaskRun, folder: Path) -> None:
    """Scores on dev with intervals, and the table of the trials where there were several."""
    from etude.transfer import search

    if not run.finished:
        exit_interrupted(f"Stopped and saved. Go on with: etude finetune --resume {quote_path(folder)}")
    if not is_first_process():
        return
    if search.is_search(run.folder):
        echo(search.format_table(run.folder))
    scores = run.scores
    width = max(map(len, scores), default=0)
    for name, score in scores.items():
        interval = f"[{score['low']:.4f}, {score['high']:.4f}]"
        echo(f"{name:<{width}} {score['value']:.4f}  {interval}  n = {score['count']:,} (dev)")
    echo(f"Done: {run.folder} (what happened in README.md)", err=True)


def print_suite(run: SuiteRun) -> None:
    from etude.transfer.suite import format_table

    if run.results is None:
        exit_interrupted("Stopped and saved. The same command goes on.")
    if is_first_process():
        echo(format_table(run.results))


def present_augment(call: Call[AugmentCounts], *, quiet: bool = False) -> None:
    """Prints how many examples and copies were written.

    Args:
        quiet: Print no progress.
    """

    def print_progress(read: int, written: int) -> None:
        if sys.stderr.isatty() and not quiet:
            echo(f"\r{read:,} examples read, {written:,} written", nl=False, err=True)

    counts = call(on_progress=print_progress)
    if not quiet:
        copies = counts.written - counts.read
        echo(f"{call.options['out']}: {counts.read:,} examples and {copies:,} copies", err=True)


def present_prompt(call: Call[PromptResult], *, json: bool = False) -> None:
    """Prints a table of scores by shots.

    Args:
        json: Print one JSON object instead of the table.
    """

    def print_progress(answered: int, total: int) -> None:
        if sys.stderr.isatty():
            echo(f"\r{answered:,} of {total:,} answered" + ("\n" if answered == total else ""), nl=False, err=True)

    result = call(on_progress=print_progress)
    echo(to_json(result.json()) if json else prompt_table(result))


RULES = {
    "tokens": "answers compared by log-probability a token",
    "sum": "answers compared by log-probability",
    "characters": "answers compared by log-probability a character",
    "bytes": "answers compared by log-probability a byte",
    "unconditional": "answers compared by what the question adds to their log-probability",
    "written": "right is what the model itself would write",
}


def prompt_table(prompted: PromptResult) -> str:
    """One line a number of shots, what they are compared with, and what a reader cannot see."""
    names = list(prompted.results[0].scores)
    lines = [" ".join(["shots", *(f"{name:<26}" for name in names)]).rstrip()]
    for result in prompted.results:
        cells = (f"{_number(s.value)} [{_number(s.low)}, {_number(s.high)}]" for s in result.scores.values())
        lines.append(" ".join([f"{result.shots:>5}", *(f"{cell:<26}" for cell in cells)]).rstrip())
    count = next(iter(prompted.results[0].scores.values())).count
    lines.append(f"{count:,} examples; {RULES[prompted.results[0].compared]}")
    if prompted.baseline is not None:
        lines.append(f"{prompted.baseline[0]}: accuracy {prompted.baseline[1]:.4f}")
    for result in prompted.results:
        if result.accuracy_by:
            rest = ", ".join(f"{rule} {value:.4f}" for rule, value in result.accuracy_by.items())
            lines.append(f"shots {result.shots}, accuracy by other rules: {rest}")
    for result in prompted.results:
        if result.mean_shots < result.shots:
            lines.append(
                f"! shots {result.shots}: {result.mean_shots:.1f} fitted into the context on average (model.context)"
            )
        if result.truncated:
            lines.append(
                f"! shots {result.shots}: {result.truncated:,} of {count:,} examples were cut to fit the context"
            )
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:.4f}" if value < 100 else f"{value:.4g}"  # a perplexity may have no end


COMMANDS = (
    Command(
        verbs.finetune,
        present_finetune,
        usage="Give a run and a task, for example 'runs/bert classify'",
        hint="'etude tasks' lists the tasks.",
        missing="Name the labelled examples and the folder of the new run: --train FILE -o runs/NAME.",
        resume=partial(advise_resuming, "finetune"),
    ),
    Command(verbs.augment, present_augment),
    Command(verbs.prompt, present_prompt),
)
