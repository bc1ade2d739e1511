"""The word that a text ends in (LAMBADA, Paperno et al. 2016): a `context` and the `target` behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from etude.tasks.data.examples import Examples, Record, column_of, gather, text_of
from etude.tasks.data.records import records

COLUMNS = {"context": ("context", "text", "passage"), "target": ("target", "answer", "word")}


@dataclass(frozen=True)
class LastWord:
    context: str
    target: str


def parse(record: Record, columns: Mapping[str, str], where: str) -> LastWord:
    named = {role: column_of(record, role, columns, usual) for role, usual in COLUMNS.items()}
    return LastWord(text_of(record, named["context"], where), text_of(record, named["target"], where).strip())


def read(path: str | Path, columns: Mapping[str, str] | None = None, skip_bad: bool = False) -> Examples[LastWord]:
    return gather(records(path), lambda record, where: parse(record, columns or {}, where), path, skip_bad)
