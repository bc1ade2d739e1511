"""Which examples a built task accepts, and the warning about the others: once.

A reader refuses what is wrong by itself. Some examples are wrong only for a task that is built: a label it never saw,
a text of which its tokenizer leaves nothing. `--skip-bad` leaves those out too, and counts them with the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from etude.errors import UserError
from etude.objectives.base import Rows
from etude.tasks.base import BatchT, E, RowT, Task
from etude.tasks.data.examples import Examples

log = logging.getLogger("etude")


def admit_examples(
    task: Task[E, RowT, BatchT], examples: Examples[E], skip_bad: bool, seed: int = 0
) -> tuple[Examples[E], Rows[RowT]]:
    """The examples that have rows, and their rows; bad ones are counted in `bad`, or the first is raised."""
    try:
        return examples, task.rows(examples, seed)
    except UserError as error:
        if not skip_bad:
            raise
        first = error
    good, messages = [], []
    for number in range(len(examples)):  # each alone, which is slow: only where there is something to find
        try:
            task.rows(examples.part([number]), 0)
            good.append(number)
        except UserError as error:
            messages.append(str(error))
    if not good or not messages:
        raise first
    accepted = examples.part(good)
    accepted.bad = [*examples.bad, *messages]
    return accepted, task.rows(accepted, seed)


def warn_bad(examples: Examples[E]) -> None:
    """Log how many examples were left out, and why the first was."""
    if examples.bad:
        log.warning("%s: %d bad examples left out; the first: %s", examples.source, len(examples.bad), examples.bad[0])


@contextmanager
def warn_once(seen: set[tuple[object, ...]] | None = None) -> Iterator[None]:
    """Log each warning about a file once, however often the file is read and under whatever path.

    `seen`: what was logged of the parts of a file before these, which the caller keeps; of them all each warning comes
    once, whatever its numbers are.
    """
    has_parts = seen is not None
    seen = set() if seen is None else seen

    def is_new(record: logging.LogRecord) -> bool:
        parts = record.args if isinstance(record.args, tuple) else ()
        named = [Path(part).name if isinstance(part, str) else part for part in parts]
        key = (record.msg, *(part for part in named if isinstance(part, str) or not has_parts))
        repeated = key in seen
        seen.add(key)
        return not repeated

    log.addFilter(is_new)
    try:
        yield
    finally:
        log.removeFilter(is_new)
