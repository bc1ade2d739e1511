"""Words of a command line that several commands share: columns by role, settings apart from places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from etude.errors import UserError


def named_columns(pairs: Sequence[str], more: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """role=name words as a mapping, joined with options of their own."""
    found = {role: name for role, name in (more or {}).items() if name is not None}
    for pair in pairs:
        role, equals, name = pair.partition("=")
        if not equals or not role or not name:
            raise UserError(f"'{pair}' names no column. Write role=name, such as text=review.")
        found[role] = name
    return found


def settings_and_places(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """(places, settings): a setting is a word with '=' whose left side has a dot."""
    settings = [word for word in words if "=" in word and "." in word.split("=", 1)[0]]
    return [word for word in words if word not in settings], settings
