"""Checks of sources against the other options of a preparation, before any work."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from etude.errors import UserError
from etude.text.prepare.sources import SOURCE_SIDE, TARGET_SIDE, Source
from etude.text.remote.urls import is_url

PLAIN = ("text", SOURCE_SIDE)  # formats without fields


def refuse_text_field(name: str, sources: Sequence[Source], are_pairs: bool) -> None:
    """Raise UserError where no source is read by a field of this name: a .json would be read as it stands."""
    if are_pairs:
        raise UserError(f"--text-field {name} is left unread: --pairs names the fields of both sides.")
    files = [file for source in sources for file in source.files if file.format not in (*PLAIN, TARGET_SIDE)]
    if not files:
        raise UserError(
            f"--text-field {name} names a field of records, but {sources[0].files[0].path} is read as plain text. The "
            "names of records end in .jsonl, .csv, .tsv or .parquet."
        )


def refuse_sources_inside(out: Path, sources: Sequence[Source]) -> None:
    """Raise UserError where a source lies in the folder that the corpus replaces."""
    folder = out.resolve()
    for source in sources:
        for file in source.files:
            if file.format != "hub" and not is_url(file.path) and Path(file.path).resolve().is_relative_to(folder):
                raise UserError(
                    f"{file.path} lies in {out}, which the corpus would replace. Choose another name for it."
                )
