"""Counts of mentions: how often a surface names an entity, as in "Paris  Q90  812"; the best of priors.

They come from text with anchors. A file of them may be about more entities than a graph has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from etude.errors import UserError
from etude.graph.graph import Graph
from etude.graph.linking.surfaces import Surface


def read_counts(path: Path, graph: Graph) -> list[Surface]:
    """Read a file of surface, entity and count, parted by tabs; entities that the graph does not have are left out."""
    counts: list[Surface] = []
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # other breaks may be in a surface
    except OSError as problem:
        raise UserError(f"{path} cannot be read: {problem.strerror}.") from None
    except UnicodeDecodeError as problem:
        raise UserError(f"{path} is not UTF-8: byte {problem.start} is invalid.") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        parts = line.removesuffix("\r").split("\t")
        try:
            surface, name, count = parts[0], parts[1], float(parts[2])
        except (IndexError, ValueError):
            raise UserError(
                f"{path}:{number}: expected surface, entity and count, parted by tabs, not {line[:60]!r}."
            ) from None
        if not 0 < count < float("inf"):
            raise UserError(f"{path}:{number}: the count is {parts[2]}. Counts are above 0.")
        entity = graph.entities.find(name)
        if entity is not None:
            counts.append((surface, entity, count))
    if not counts:
        raise UserError(f"{path} has no count of an entity of this graph: the second column holds names of entities.")
    return counts


def hash_counts(counts: Sequence[Surface]) -> str:
    """Return a hash of counts of mentions; "" without any."""
    digest = hashlib.sha256()
    for surface, entity, count in counts:
        digest.update(f"{surface}\t{entity}\t{count:.17g}\n".encode())
    return digest.hexdigest() if counts else ""
