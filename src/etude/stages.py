"""What is going on, for whoever watches: work reports its stages, and a command line shows them.

    report_stage("reading examples")    what takes time now
    report_stage(None)                  from here on the work shows its own progress, or has ended

Nobody listens unless `listen` was called, so a library call prints nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Listener = Callable[[str | None], None]
_listeners: list[Listener] = []


def report_stage(stage: str | None) -> None:
    """Tell the innermost listener what is going on; None: the line is needed for something else."""
    if _listeners:
        _listeners[-1](stage)


@contextmanager
def listen(listener: Listener) -> Iterator[None]:
    """Receive the stages of the work inside."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
