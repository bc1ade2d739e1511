"""Columns of a file by role, whichever option names them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from etude.errors import UserError, suggest_name


def name_columns(columns: Mapping[str, str] | None, **roles: str | None) -> dict[str, str]:
    """Columns by role, those with an option of their own among them."""
    return {role: name for role, name in roles.items() if name is not None} | dict(columns or {})


def check_roles(columns: Mapping[str, str], roles: Iterable[str], kind: str) -> dict[str, str]:
    """Return columns by role; UserError where a task has no such role: the option would change nothing."""
    known = list(roles)
    for role in columns:
        if role not in known:
            raise UserError(
                f"The task {kind} has no column of the role '{role}': it reads {', '.join(known)}."
                f"{suggest_name(role, known)}"
            )
    return dict(columns)
