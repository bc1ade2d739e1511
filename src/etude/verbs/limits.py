"""Checks of option values that several verbs share."""

from __future__ import annotations

from etude.errors import UserError


def require_at_least(option: str, value: float | None, least: float) -> None:
    """Raises UserError where a number is below its least value."""
    if value is not None and not value >= least:
        raise UserError(f"{option}={value:g} is too small: it must be at least {least:g}.")
