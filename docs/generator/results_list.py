"""The list of laboratory results: every report with its date and the commits it names."""

from __future__ import annotations

import os
import re
from pathlib import Path

from docs.generator.commands import cell
from docs.generator.outside import DOCS, ROOT

FOLDERS = (DOCS / "results", ROOT / "benchmarks" / "results")
COMMIT = re.compile(r"\b(?=[0-9a-f]*\d)(?=\d*[a-f])[0-9a-f]{7}\b")


def reports() -> list[Path]:
    """The newest first."""
    files = [file for folder in FOLDERS for file in folder.glob("*.md") if file.name != "index.md"]
    return sorted(files, key=lambda file: (date_of(file), file.name), reverse=True)


def date_of(file: Path) -> str:
    """Of the file's name, or the first that its text names."""
    date = re.search(r"20\d\d-\d\d-\d\d", file.name + "\n" + file.read_text(encoding="utf-8"))
    if date is None:
        raise ValueError(f"{file} names no date")
    return date[0]


def page() -> str:
    rows = []
    for file in reports():
        text = file.read_text(encoding="utf-8")
        title = re.sub(r", 20\d\d-\d\d-\d\d(?: and \d+)?", "", text.partition("\n")[0].lstrip("# "))
        commits = list(dict.fromkeys(COMMIT.findall(text)))
        listed = ", ".join(f"`{commit}`" for commit in commits[:4]) + (" …" if len(commits) > 4 else "")
        link = Path(os.path.relpath(file, DOCS / "results")).as_posix()
        date = f'<span class="date">{date_of(file)}</span>'
        rows.append(f"| {date} | [{cell(title)}]({link}) | {listed or 'not recorded'} |")
    return "\n".join(["| date | report | commits |", "|---|---|---|", *rows]) + "\n"
