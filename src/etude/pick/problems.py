"""What is wrong with a user's input, collected: all problems at once, with the user's own file and line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from etude.errors import UserError

MAX_LINES = 20  # of one message; behind them only a count
MAX_ALIKE = 4  # problems of one sort that are listed one by one; more become one line
MAX_PLACES = 5  # further places that such a line names
MAX_LABEL = 60  # characters of a label in a message: where the wrong column is named, labels are whole texts


@dataclass(frozen=True)
class Problem:
    """One line of the message: what, where, what to do.

    What is not fatal is a warning, which also stands on the page of a pick, and so has a Korean text.
    """

    message: str
    is_fatal: bool = True
    count: int = 1  # places it stands for
    korean: str = ""

    def __post_init__(self) -> None:
        if not self.is_fatal and not self.korean:
            raise ValueError(f"a warning needs a Korean text: {self.message}")

    @property
    def texts(self) -> dict[str, str]:
        """The warning by language."""
        return {"en": self.message, "ko": self.korean}

    def __str__(self) -> str:
        return self.message


def cut_label(name: str) -> str:
    """A label as a message has it: cut where it is long."""
    return name if len(name) <= MAX_LABEL else f"{name[:MAX_LABEL]}..."


def quote_label(name: str) -> str:
    """The same in quotes."""
    return f"'{cut_label(name)}'"


def merge_alike(problems: Iterable[tuple[str, str]]) -> list[Problem]:
    """Turn (place, message) into fatal problems; many of one sort, such as a missing column, become one line.

    Of one sort are messages that differ in nothing but their place and in numbers.
    """
    sorts: dict[str, list[tuple[str, str]]] = {}
    for place, message in problems:
        sorts.setdefault(re.sub(r"\d+", "0", message.replace(place, "")), []).append((place, message))
    merged = []
    for members in sorts.values():
        if len(members) <= MAX_ALIKE:
            merged += [Problem(message) for _, message in members]
            continue
        places = [place for place, _ in members[1:]]
        listed = ", ".join(_shorten_place(place, members[0][0]) for place in places[:MAX_PLACES])
        rest = ", ..." if len(places) > MAX_PLACES else ""
        text = f"{members[0][1]} ({len(places)} more like this: {listed}{rest})"
        merged.append(Problem(text, count=len(members)))
    return merged


def _shorten_place(place: str, first: str) -> str:
    """Return "line 7" for a place in the file of the first one."""
    file, _, line = place.rpartition(":")
    return f"line {line}" if line.isdecimal() and file == first.rpartition(":")[0] else place


def raise_all(problems: Sequence[Problem]) -> None:
    """Raise one UserError that lists every fatal problem; return where there is none."""
    fatal = [problem for problem in problems if problem.is_fatal]
    if not fatal:
        return
    if len(fatal) == 1:
        raise UserError(fatal[0].message)
    total = sum(problem.count for problem in fatal)
    lines = [f"{total} problems, found before anything was computed:"]
    lines += [f"  {problem.message}" for problem in fatal[:MAX_LINES]]
    if len(fatal) > MAX_LINES:
        lines.append(f"  ... and {sum(problem.count for problem in fatal[MAX_LINES:])} more.")
    raise UserError("\n".join(lines))
