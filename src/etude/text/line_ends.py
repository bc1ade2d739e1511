"""Lines that end in a carriage return alone: text of old Macs, and what spreadsheets call "CSV (Macintosh)".

A line ends at a line feed, and returns inside of lines are text. Only where a file begins without any line feed do its
returns end lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

SAMPLE_BYTES = 1 << 16  # of the start of a file that are looked at


def has_return_ends(start: bytes) -> bool:
    """Whether the lines of a file end in returns alone, by its first SAMPLE_BYTES."""
    return b"\r" in start and b"\n" not in start


def split_returns(lines: Iterator[str]) -> Iterator[str]:
    """Yield lines, each with its end, of a stream that is cut at line feeds; at returns where it has none of those."""
    first = next(lines, "")
    if "\r" not in first or first.endswith("\n"):
        if first:
            yield first
        yield from lines
    else:  # all there is
        yield from re.findall(r"[^\r]*\r|[^\r]+$", first)
