"""What is printed of names, columns, texts and messages: as text, whatever they hold.

A file name or a column may hold escape sequences, which move the cursor, recolour or retitle a terminal, and brackets,
which Rich takes for markup. Control characters other than line ends and tabs are shown escaped on a terminal; into a
file or a pipe the text goes as it is.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console

KEPT = "\n\t"


def is_first_process() -> bool:
    """Whether this process prints for all: the only one, or of several under torchrun the first."""
    return os.environ.get("RANK", "0") == "0"


def to_json(values: object) -> str:
    """Return values as JSON, which has no infinity: a number that is not finite becomes null."""
    try:
        return json.dumps(values, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(_without_nonfinite(values), ensure_ascii=False, allow_nan=False)


def _without_nonfinite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_nonfinite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nonfinite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def escape_controls(text: str) -> str:
    """Return a text whose control characters, direction marks and lone surrogates are shown as escapes."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in KEPT or (letter.isspace() and ord(letter) > 0xA0)
        else letter.encode("unicode_escape", "surrogatepass").decode()
        for letter in text
    )  # fmt: skip


def echo(text: object = "", nl: bool = True, err: bool = False) -> None:
    """Print a line; on a terminal as plain text."""
    stream = sys.stderr if err else sys.stdout
    line = str(text)
    typer.echo(escape_controls(line) if stream.isatty() else line, nl=nl, err=err)


def make_console(stderr: bool = False, soft_wrap: bool = False, highlight: bool = False) -> Console:
    """A console that takes no markup and shows control characters as escapes."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class PlainConsole(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                if segment.control or segment.text.isprintable():
                    yield segment
                else:
                    yield Segment(escape_controls(segment.text), segment.style)

    return PlainConsole(stderr=stderr, soft_wrap=soft_wrap, highlight=highlight, markup=False, emoji=False)
