"""A column of entities: what a text mentions, by name, as published files have it.

[["Q76", 0, 12, 0.9], ...]                        ERNIE's files: name, start, end, and how sure the linker was
[{"entity": "Q76", "start": 0, "end": 12}, ...]   the same in words; "name" or "id" in the place of "entity"
"""

from __future__ import annotations

from typing import Any

from etude.errors import UserError
from etude.graph.entity_links import NamedMention
from etude.tasks.data.examples import Record, short


def mentions_of(record: Record, column: str, text: str, where: str) -> tuple[NamedMention, ...] | None:
    """The entities of a record; None where it has no such column."""
    value = record.get(column)
    if value is None:
        return None
    if not isinstance(value, list):
        raise UserError(f"{where}: the column '{column}' holds {short(value)}, not a list of entities.")
    mentions = []
    for entry in value:
        name, start, end = _fields(entry, column, where)
        if not 0 <= start < end <= len(text):
            raise UserError(f"{where}: an entity of '{column}' reaches from {start} to {end}, outside the text.")
        mentions.append(NamedMention(start, end, name))
    return tuple(mentions)


def _fields(entry: Any, column: str, where: str) -> tuple[str, int, int]:
    if isinstance(entry, dict):
        name = next((entry[key] for key in ("entity", "name", "id") if key in entry), None)
        values = (name, entry.get("start"), entry.get("end"))
    else:
        values = tuple(entry[:3]) if isinstance(entry, list) and len(entry) >= 3 else (None, None, None)
    name, start, end = values
    if not isinstance(name, str) or type(start) is not int or type(end) is not int:
        raise UserError(f"{where}: '{column}' holds {short(entry)}, not an entity with its name, start and end.")
    return name, start, end
