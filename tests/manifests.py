"""Manifests that are changed and signed again: only their schema, or what they vouch for, is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from etude.text.checked_files import MANIFEST, SIGNATURE, write_manifest

__all__ = ["read_values", "resign", "write_manifest"]


def read_values(folder: Path) -> dict[str, Any]:
    """Return the values of a folder's manifest without its hash."""
    values: dict[str, Any] = json.loads((folder / MANIFEST).read_bytes())
    values.pop(SIGNATURE)
    return values


def resign(folder: Path) -> None:
    """Sign a changed manifest, where it still has values to sign."""
    try:
        values = json.loads((folder / MANIFEST).read_bytes())
        if isinstance(values, dict):
            values.pop(SIGNATURE, None)
            write_manifest(folder, values)
    except (ValueError, RecursionError):
        pass
