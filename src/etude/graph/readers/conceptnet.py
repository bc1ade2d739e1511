"""ConceptNet's dump, assertions.csv: five columns with tabs between them, whatever the name says.

    /a/[/r/AtLocation/,/c/en/dog/n/,/c/en/kennel/]  /r/AtLocation  /c/en/dog/n  /c/en/kennel  {..., "weight": 2.0}

Edges whose ends are both of the wanted language are read. A concept is its term: without the language, without part of
speech and sense, with spaces for underscores (`ice cream`), as the published extracts of ConceptNet have them.
Relations lose their /r/. Merging relations and choosing concepts is a matter of the model that reads the graph.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

from etude.errors import UserError
from etude.graph.readers.base import ReadSettings, SkipCounts, TripleBlock, parse_weight, refuse_empty
from etude.graph.readers.lines import FileWatch, read_lines
from etude.text.prepare.sources import SourceFile

MARK = "/a/["  # what every line begins with
COLUMNS = 5
WEIGHT = '"weight":'


def read_conceptnet(
    file: SourceFile, settings: ReadSettings, counts: SkipCounts, watch: FileWatch | None = None
) -> Iterator[TripleBlock]:
    """Yield the edges between concepts of one language, with their weights."""
    language = settings.language or "en"
    prefix = f"/c/{language}/"
    inside = f"\t{prefix}"
    cut = len(prefix)
    languages: set[str] = set()
    has_edges = False
    for first, texts in read_lines(file, watch):
        _check_line(file.path, first, texts[0])
        # most lines of the whole dump are of other languages: nothing of them is split
        chosen = [(line, text) for line, text in enumerate(texts, first) if inside in text]
        if not has_edges:
            languages.update(text.partition("\t/c/")[2].partition("/")[0] for text in texts[:1000])
        heads, relations, tails, weights = [], [], [], []
        lines: list[int] = []
        for line, text in chosen:
            columns = text.split("\t")
            if len(columns) != COLUMNS:
                raise UserError(f"{file.path}:{line}: {len(columns)} columns, not {COLUMNS}. Is it ConceptNet's dump?")
            _, relation, head, tail, facts = columns
            if not head.startswith(prefix) or not tail.startswith(prefix):
                continue
            head, tail = head[cut:].partition("/")[0], tail[cut:].partition("/")[0]
            relation = relation.removeprefix("/r/")
            if not head or not relation or not tail:
                role = "head" if not head else "relation" if not relation else "tail"
                raise refuse_empty(file.path, line, role)
            heads.append(head.replace("_", " "))
            relations.append(relation)
            tails.append(tail.replace("_", " "))
            weights.append(_parse_weight(file.path, line, facts))
            lines.append(line)
        counts["of another language"] += len(texts) - len(lines)
        has_edges = has_edges or bool(lines)
        yield TripleBlock(heads, relations, tails, lines, weights)
    if not has_edges:
        known = f" Languages of its lines: {', '.join(sorted(languages - {''})[:20])}." if languages else ""
        raise UserError(f"{file.path} has no edge with both ends in '{language}' (--language).{known}")


def _check_line(path: str, line: int, text: str) -> None:
    """Check that a line looks like the dump; of lines that are not read, one a block is looked at."""
    columns = text.count("\t") + 1
    if columns != COLUMNS or not text.startswith(MARK):
        raise UserError(f"{path}:{line}: {columns} columns, not {COLUMNS} of ConceptNet, the first of them {MARK}...].")


def _parse_weight(path: str, line: int, facts: str) -> float:
    """Return the weight, the last key of the JSON object as a rule; a quarter of the time of reading all of it."""
    start = facts.rfind(WEIGHT)
    if start >= 0 and facts[-1] == "}":
        try:
            weight = float(facts[start + len(WEIGHT) : -1])
            if math.isfinite(weight):
                return weight
        except ValueError:
            pass
    try:
        return parse_weight(path, line, json.loads(facts)["weight"])
    except (ValueError, RecursionError, KeyError, TypeError):
        raise UserError(f"{path}:{line}: the last column is no JSON object with a weight.") from None
