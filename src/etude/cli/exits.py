"""Exit codes, and ending a command with one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import typer

from etude.cli.printing import is_first_process
from etude.errors import quote_path

INTERRUPTED = 3  # of work that was asked to stop: what is done is saved
# files of a run and of a search, and of a suite, that were begun; where they are written they stand beside torch, which
# takes seconds to load
BEGUN, SUITE = ("recipe.yaml", "trials.json"), "suite_request.json"


def exit_interrupted(message: str) -> NoReturn:
    """Says on stderr how to go on, and ends the command."""
    if is_first_process():
        typer.echo(message, err=True)
    raise typer.Exit(INTERRUPTED)


def advise_resuming(verb: str, values: Mapping[str, Any]) -> str:
    """Say how a run goes on that a command has begun in `--resume` or `-o`; empty where it has not come to that."""
    place = values.get("resume") or values.get("out")
    folder = Path(place) if place else None
    if folder is not None and (folder / SUITE).is_file():
        return "The same command goes on."
    if folder is None or not any((folder / name).is_file() for name in BEGUN):
        return ""
    return f"Go on with: etude {verb} --resume {quote_path(folder)}"


@contextmanager
def interruptible(message: str) -> Iterator[None]:
    """A study that is stopped, or Ctrl-C, ends the command with the message.

    Its exception is looked up when something is raised: loading torch takes seconds, which a verb counts as its own.
    """
    try:
        yield
    except KeyboardInterrupt:
        exit_interrupted(message)
    except Exception as error:
        from etude.study.execute import Interrupted

        if isinstance(error, Interrupted):
            exit_interrupted(message)
        raise
