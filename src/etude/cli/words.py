"""Words of a command line as values: settings, columns, numbers, values to compare."""

from __future__ import annotations

import re
from collections.abc import Sequence

from etude.errors import UserError

_SETTING = re.compile(r"[^/=]+=")  # with a '/' before the '=' it is a path


def split_settings(words: Sequence[str], grouped: bool = True) -> tuple[list[str], dict[str, object]]:
    """Separates places from settings, `group.name=value`; where not `grouped`, `name=value` is one too."""
    places = [word for word in words if not _SETTING.match(word)]
    settings = {}
    for word in words:
        if _SETTING.match(word):
            key, _, text = word.partition("=")
            if grouped and "." not in key:
                raise UserError(
                    f"'{word}' is no setting: its name lacks the group, as in model.layers=4, train.lr=1e-3."
                )
            settings[key] = _parse_value(text, f"the override '{word}'")
    return places, settings


def _parse_value(text: str, place: str) -> object:
    """A value as it would stand in a recipe; `place` names it in messages."""
    from etude.recipes.document import parse_value

    return parse_value(text, place)


def parse_columns(pairs: Sequence[str]) -> dict[str, str]:
    """`role=name` words by role."""
    columns = {}
    for pair in pairs:
        role, _, name = pair.partition("=")
        if not role or not name:
            raise UserError(f"'{pair}' names no column. Write role=name, such as text=review.")
        columns[role] = name
    return columns


def parse_values(words: Sequence[str]) -> dict[str, list[object]]:
    """`group.name=a,b,c` as {"group.name": [a, b, c]}, each value as it would stand in a recipe."""
    values: dict[str, list[object]] = {}
    for word in words:
        key, _, listed = word.partition("=")
        if "." not in key or not listed:
            raise UserError(f"'{word}' varies nothing. Write group.name=a,b,c, such as train.lr=2e-5,5e-5.")
        values[key] = [_parse_value(value, f"--vary {word}") for value in listed.split(",") if value.strip()]
    return values


def parse_share(text: str | None) -> float | str | None:
    """A number, or else the path of a file."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


def parse_numbers(text: str, number: type[int] | type[float], option: str) -> list[int] | list[float]:
    """Numbers with commas between them."""
    try:
        return [number(word) for word in text.split(",")]
    except ValueError:
        whole, example = ("whole numbers", "0,1,4") if number is int else ("numbers", "1,2.5")
        raise UserError(f"{option} {text}: write {whole} with commas between them, such as {example}.") from None
