"""Names of served runs: the last part of each folder, and as many parts before it as tell two of them apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from etude.errors import UserError


def name_runs(places: Sequence[str | Path]) -> list[str]:
    """Return a name for each folder or hub ID, such as reviews/best and news/best for what two picks found."""
    parts = [Path(place).resolve().parts[1:] if Path(place).exists() else (str(place),) for place in places]
    if len(set(parts)) < len(parts):
        twice = next(place for number, place in enumerate(places) if parts[number] in parts[:number])
        raise UserError(f"{twice} is named twice. Name each run once: requests tell runs apart by name.")
    lengths = [1] * len(parts)
    while True:
        names = ["/".join(part[-length:]) for part, length in zip(parts, lengths, strict=True)]
        counts = Counter(names)
        longer = [
            length + 1 if counts[name] > 1 and length < len(part) else length
            for name, part, length in zip(names, parts, lengths, strict=True)
        ]
        if longer == lengths:
            return names
        lengths = longer
