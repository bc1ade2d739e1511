"""The hint on a file of JSON lines that is a table under another name."""

from __future__ import annotations

TABLES = {"\t": ("tabs", ".tsv"), ",": ("commas", ".csv")}


def suggest_table(line: str) -> str:
    """Return a hint where a line that is no JSON looks like a row of a table; "" where it does not."""
    if line.lstrip().startswith(("{", "[")):
        return ""
    for separator, (name, suffix) in TABLES.items():
        if separator in line:
            return f" It looks like a row of a table with {name}: if the file is one, name it {suffix}."
    return ""
