"""Where a model lies: a folder, or an id on the hub. Loads nothing, so that a mistyped path is told at once."""

from __future__ import annotations

from pathlib import Path

from etude.errors import UserError

HUB = "hf:"  # before an id on the hub


def require_folder(source: str | Path) -> Path:
    """Return the folder of a model as a path; raise UserError where it does not exist."""
    folder = Path(source)
    if not folder.is_dir():
        raise UserError(f"There is no folder {source}. Give a folder of a model, or an id on the hub as 'hf:org/name'.")
    return folder
