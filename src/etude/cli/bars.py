"""Bars of progress on a terminal that give way to the activity's line until there is progress to draw.

While bars of Rich are drawn, they own the terminal: what else is written to standard error goes through them by lines,
and a line that redraws itself would come out as text. So bars are started by their first update, and not before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn


@contextmanager
def bars_shown(*columns: ProgressColumn, console: Console, transient: bool = False) -> Iterator[Progress]:
    """Yield bars that are not drawn yet: call `start` before each update. They are stopped at the end."""
    from rich.progress import Progress

    bars = Progress(*columns, console=console, transient=transient)
    try:
        yield bars
    finally:
        if bars.live.is_started:
            bars.stop()
