"""Exit codes, and ending a command with one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

from etude.cli.printing import is_first_process

INTERRUPTED = 3  # of work that was asked to stop: what is done is saved


def exit_interrupted(message: str) -> NoReturn:
    """Says on stderr how to go on, and ends the command."""
    if is_first_process():
        typer.echo(message, err=True)
    raise typer.Exit(INTERRUPTED)


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
