"""What readers of graphs give: triples by name with their lines, and texts about entities."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass, field

from etude.errors import UserError

BREAKS = ("\t", "\n", "\r")  # separators of every text file of names; no name holds one


@dataclass
class EntityRow:
    """What a line says of an entity."""

    name: str
    label: str = ""
    aliases: list[str] = field(default_factory=list)
    description: str = ""
    line: int = 0


@dataclass
class TripleBlock:
    """Triples of consecutive lines of a file, by name."""

    heads: list[str] = field(default_factory=list)
    relations: list[str] = field(default_factory=list)
    tails: list[str] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    weights: list[float] | None = None
    rows: list[EntityRow] = field(default_factory=list)  # where a format mixes triples with labels


@dataclass
class ReadSettings:
    """How files of triples are read."""

    columns: Columns | None = None  # None: head, relation, tail, or by the names of a header
    language: str | None = None  # of ConceptNet's concepts (English if None), and of labels in N-Triples (all if None)


@dataclass(frozen=True)
class Columns:
    """Which column has which role: by order ("relation,head,tail,-") or by name ("head=from,relation=type,tail=to")."""

    order: tuple[str, ...] = ()  # the role of each column; "-" is one that is not read
    names: tuple[tuple[str, str], ...] = ()  # (role, name)
    rest: bool = False  # the last column goes on to the end of the line


SkipCounts = Counter[str]  # what was left out, by reason


def parse_columns(text: str, option: str, roles: tuple[str, ...], required: tuple[str, ...]) -> Columns:
    """Return the columns that an option names; `roles` are those it may name, `required` those it must."""
    words = [word.strip() for word in text.split(",")]
    example = f"Write {option} {','.join(required)}, or {','.join(f'{role}=NAME' for role in required)}."
    by_name = "=" in text
    pairs = [tuple(word.split("=", 1)) for word in words] if by_name else [(word, "") for word in words]
    rest = not by_name and words[-1].endswith("...")
    if rest:
        pairs[-1] = (words[-1].removesuffix("..."), "")
        if pairs[-1][0] != "aliases":
            raise UserError(f"{option} {text}: only aliases may go on to the end of the line. {example}")
    for pair in pairs:
        if len(pair) != 2 or (by_name and not pair[1]):
            raise UserError(f"{option} {text}: '{'='.join(pair)}' names no column. {example}")
        if pair[0] not in roles and (by_name or pair[0] != "-"):
            raise UserError(f"{option} {text}: '{pair[0]}' is none of {', '.join(roles)}. {example}")
    named = [role for role, _ in pairs if role != "-"]
    missing = [role for role in required if role not in named]
    if missing or len(set(named)) < len(named):
        what = f"'{missing[0]}' is missing" if missing else "a column is named twice"
        raise UserError(f"{option} {text}: {what}. {example}")
    if by_name:
        return Columns(names=tuple((role, name) for role, name in pairs))
    return Columns(order=tuple(role for role, _ in pairs), rest=rest)


def refuse_empty(path: str, line: int, role: str) -> UserError:
    """Return the error of a triple or an entity without a name."""
    what = "id" if role == "id" else role
    return UserError(f"{path}:{line}: the {what} is empty. Fill it in, or remove the line.")


def parse_weight(path: str, line: int, value: object) -> float:
    """Return a weight as a finite number."""
    try:
        if isinstance(value, (str, int, float)) and not isinstance(value, bool):
            weight = float(value)
            if math.isfinite(weight):
                return weight
    except (ValueError, OverflowError):
        pass
    raise UserError(f"{path}:{line}: the weight {json.dumps(value)} is no finite number.")


def check_name(path: str, line: int, role: str, name: str) -> str:
    """Return a name without spaces around it; empty or broken ones are errors."""
    name = name.strip()
    if not name:
        raise refuse_empty(path, line, role)
    if any(separator in name for separator in BREAKS):
        raise UserError(f"{path}:{line}: the {role} {name!r} holds a tab or a line break. Names are of one line.")
    return name
