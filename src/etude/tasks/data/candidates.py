"""Queries with candidates, some of them relevant: examples of the ranking task, from three forms of files.

    {"query": "...", "candidates": ["...", ...], "labels": [0, 1, ...]}      one record a query; or "positive", the
                                                                             numbers of the relevant ones
    query, candidate, label                                                  one record a pair (WikiQA, TREC-QA, CSV and
                                                                             TSV of any origin): neighbours of one
                                                                             query are a group
    {"query": "...", "positives": [...], "negatives": [...]}                 retrieval sets

A label above 0 is relevant, as in trec_eval. Records of one query are neighbours: files of ranking sets are written
so, and so a file is read without being held.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.errors import UserError
from etude.tasks.data.examples import (
    Examples,
    Record,
    check_columns,
    checked_text,
    column_of,
    gather,
    number_of,
    short,
    text_of,
    value_of,
)
from etude.tasks.data.records import Records, records

COLUMNS = {
    "query": ("query", "question", "Question", "text_a"),
    "candidates": ("candidates", "passages", "choices", "documents"),
    "labels": ("labels", "relevance"),
    "candidate": ("candidate", "passage", "sentence", "Sentence", "answer", "text_b"),
    "label": ("label", "Label", "is_selected"),
    "id": ("query_id", "qid", "QuestionID", "question_id"),
}


@dataclass(frozen=True)
class Query:
    text: str
    candidates: tuple[str, ...]
    relevant: tuple[bool, ...] | None = None


def parse(record: Record, columns: Mapping[str, str], where: str, labelled: bool = True) -> Query:
    """One query with all its candidates."""
    named = {role: column_of(record, role, columns, usual) for role, usual in COLUMNS.items()}
    text = text_of(record, named["query"], where)
    if "positives" in record and named["candidates"] not in record:
        record = _joined(record, named, where)
    candidates = _list(value_of(record, named["candidates"], where), named["candidates"], where)
    texts = tuple(checked_text(candidate, named["candidates"], where) for candidate in candidates)
    if not texts:
        raise UserError(f"{where}: a query without candidates. Give at least one, or remove it.")
    if not labelled:
        return Query(text, texts)
    return Query(text, texts, _relevant(record, named, len(texts), where))


def _joined(record: Record, named: Mapping[str, str], where: str) -> Record:
    parts = [_list(record.get(name) or [], name, where) for name in ("positives", "negatives")]
    labels = [1] * len(parts[0]) + [0] * len(parts[1])
    return {**record, named["candidates"]: [*parts[0], *parts[1]], named["labels"]: labels}


def _list(value: Any, column: str, where: str) -> list[Any]:
    if isinstance(value, str) and value.lstrip().startswith("["):  # a list in a cell of a CSV file
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = None
    if not isinstance(value, list):
        raise UserError(f"{where}: the column '{column}' holds {short(value)}, not a list of candidates.")
    return value


def _relevant(record: Record, named: Mapping[str, str], count: int, where: str) -> tuple[bool, ...]:
    if "positive" in record and named["labels"] not in record:
        value = record["positive"]
        chosen = value if isinstance(value, list) else [value]
        wrong = [
            label for label in chosen if isinstance(label, bool) or not isinstance(label, int) or not 0 <= label < count
        ]
        if wrong:
            raise UserError(f"{where}: 'positive' holds {short(wrong[0])}, which is no number from 0 to {count - 1}.")
        return tuple(number in chosen for number in range(count))
    labels = _list(value_of(record, named["labels"], where), named["labels"], where)
    if len(labels) != count:
        raise UserError(f"{where}: {count} candidates and {len(labels)} labels: give one each.")
    return tuple(number_of({named["labels"]: label}, named["labels"], where) > 0 for label in labels)


# --- files ------------------------------------------------------------------------------------------


def read(
    path: str | Path, columns: Mapping[str, str] | None = None, skip_bad: bool = False, labelled: bool = True
) -> Examples[Query]:
    named = columns or {}
    rows = records(path) if skip_bad else check_columns(records(path), lambda r, at: parse_row(r, named, at, labelled))
    return gather(
        group_pairs(rows, named, labelled),
        lambda record, where: parse(record, named, where, labelled),
        path,
        skip_bad,
    )


def parse_row(record: Record, columns: Mapping[str, str], where: str, labelled: bool = True) -> Query | _Pair:
    """Parse a record as a file has it: a query with all its candidates, or with one."""
    if _is_whole(record, columns):
        return parse(record, columns, where, labelled)
    return _parse_pair(record, columns, where, labelled)


def _is_whole(record: Record, columns: Mapping[str, str]) -> bool:
    return column_of(record, "candidates", columns, COLUMNS["candidates"]) in record or "positives" in record


_Pair = tuple[str, str, float]


def _parse_pair(record: Record, columns: Mapping[str, str], where: str, labelled: bool) -> _Pair:
    named = {role: column_of(record, role, columns, COLUMNS[role]) for role in ("query", "candidate", "label")}
    texts = text_of(record, named["query"], where), text_of(record, named["candidate"], where)
    return (*texts, number_of(record, named["label"], where) if labelled else 0.0)


def group_pairs(records: Records, columns: Mapping[str, str], labelled: bool = True) -> Records:
    """Records of pairs as records of queries; other records as they are. A bad pair makes its group a bad one."""
    group: _Group | None = None
    for where, record in records:
        if isinstance(record, UserError):
            if group is not None:
                group.wrong = group.wrong or record
            else:
                yield where, record
            continue
        whole = _is_whole(record, columns)
        key = None if whole else _key(record, columns)
        if group is not None and (whole or key != group.key):
            yield group.where, group.finished(columns)
            group = None
        if whole:
            yield where, record
            continue
        group = group or _Group(where, key, [])
        group.add(record, columns, where, labelled)
    if group is not None:
        yield group.where, group.finished(columns)


def _key(record: Record, columns: Mapping[str, str]) -> Any:
    """What neighbours of one query share: the query's id where there is one, else its text."""
    for role in ("id", "query"):
        name = column_of(record, role, columns, COLUMNS[role])
        if name in record:
            return role, str(record[name])
    return None


@dataclass
class _Group:
    where: str
    key: Any
    pairs: list[_Pair]
    wrong: UserError | None = None

    def add(self, record: Record, columns: Mapping[str, str], where: str, labelled: bool) -> None:
        try:
            self.pairs.append(_parse_pair(record, columns, where, labelled))
        except UserError as problem:
            self.wrong = self.wrong or problem

    def finished(self, columns: Mapping[str, str]) -> Record | UserError:
        """One record of all candidates, under the names that `parse` will look for."""
        if self.wrong is not None:
            return self.wrong
        return {
            columns.get("query", "query"): self.pairs[0][0],
            columns.get("candidates", "candidates"): [pair[1] for pair in self.pairs],
            columns.get("labels", "labels"): [pair[2] for pair in self.pairs],
        }
