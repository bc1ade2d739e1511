"""Which examples a task admits, and what is said of the others: once.

A reader refuses what is wrong by itself. Some examples are wrong only for a task that is built: a label it never saw,
a text of which its tokenizer leaves nothing. `--skip-bad` leaves those out too, and counts them with the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from etude.errors import UserError
from etude.objectives.base import Rows
from etude.tasks.base import Task
from etude.tasks.data.examples import Examples

log = logging.getLogger("etude")


def admit_examples(task: Task, examples: Examples[Any], skip_bad: bool, seed: int = 0) -> tuple[Examples[Any], Rows]:
    """The examples that have rows, and their rows; bad ones are counted in `bad`, or the first is raised."""
    try:
        return examples, task.rows(examples, seed)
    except UserError as problem:
        if not skip_bad:
            raise
        first = problem
    kept, wrong = [], []
    for number in range(len(examples)):  # one by one, which is slow: only where there is something to find
        try:
            task.rows(examples.part([number]), 0)
            kept.append(number)
        except UserError as problem:
            wrong.append(str(problem))
    if not kept or not wrong:
        raise first
    found = examples.part(kept)
    found.bad = [*examples.bad, *wrong]
    return found, task.rows(found, seed)


def warn_bad(examples: Examples[Any]) -> None:
    if examples.bad:
        log.warning("%s: %d bad examples left out; the first: %s", examples.source, len(examples.bad), examples.bad[0])


@contextmanager
def warn_once() -> Iterator[None]:
    """What is said of a file within is said once, however often the file is read and under whatever path."""
    seen: set[tuple[object, ...]] = set()

    def fresh(record: logging.LogRecord) -> bool:
        parts = record.args if isinstance(record.args, tuple) else ()
        key = (record.msg, *(Path(part).name if isinstance(part, str) else part for part in parts))
        known = key in seen
        seen.add(key)
        return not known

    log.addFilter(fresh)
    try:
        yield
    finally:
        log.removeFilter(fresh)
