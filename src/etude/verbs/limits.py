"""Checks of option values that several verbs share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from etude.errors import UserError


def require_at_least(option: str, value: float | None, least: float) -> None:
    """Raises UserError where a number is below its least value."""
    if value is not None and not value >= least:
        raise UserError(f"{option}={value:g} is too small: it must be at least {least:g}.")


def require_folder_of(path: str | Path | None, what: str) -> None:
    """Raise UserError where a file cannot be written for want of its folder: before the work, not after it."""
    if path is not None and not Path(path).parent.is_dir():
        raise UserError(f"There is no folder {Path(path).parent} for the {what}. Make it, or name another.")


def require_device(device: str | None) -> None:
    """Raise UserError where this machine has no device of this name; None is what there is."""
    if device is None:
        return
    import torch

    try:
        has_memory = not torch.empty(0, device=device).is_meta
    except (RuntimeError, AssertionError, ImportError):  # NotImplementedError is a RuntimeError
        has_memory = False
    if not has_memory:
        known = "cpu, or cuda or cuda:N for a GPU" if torch.cuda.is_available() else "cpu: this machine has no GPU"
        raise UserError(f"--device {device}: there is no such device here. Take {known}.")


def refuse_given(options: Mapping[str, tuple[object, object]], reason: str) -> None:
    """Raise UserError at the first option whose value is not its default; `options` are (value, default) by name."""
    for name, (value, default) in options.items():
        if value != default:
            raise UserError(f"--{name.replace('_', '-')} {reason}")
