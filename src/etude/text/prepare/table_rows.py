"""Rows of tables (CSV, Parquet, the hub) as lines of JSON, the form in which workers parse records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from etude.errors import UserError

if TYPE_CHECKING:
    from pyarrow import RecordBatch

Row = dict[str, object]
JSON_TYPES = (str, int, float, list, dict, type(None))  # what is none of text among them is refused with its record


def write_row(row: Row, text_fields: Sequence[str], errors: str, place: str) -> bytes:
    """Return a row as a line of JSON; UserError where a field of text holds a value that no text stands for.

    Bytes are text in UTF-8: many writers of Parquet do not say that their columns are.
    """
    for name in text_fields:
        value = row.get(name)
        if isinstance(value, bytes):
            try:
                row[name] = value.decode("utf-8", errors)
            except UnicodeDecodeError as problem:
                raise UserError(
                    f"{place}: the field '{name}' is not UTF-8: byte {problem.start} of it is invalid. Is it text? Go "
                    "on with --errors replace, which puts U+FFFD in its place."
                ) from None
        elif not isinstance(value, JSON_TYPES):  # a date, an image
            raise UserError(f"{place}: the field '{name}' is {str(value)[:40]} ({type(value).__name__}), not text.")
    # lone surrogates cannot come from these formats, so every row can be written as UTF-8
    return json.dumps(row, ensure_ascii=False, default=_to_text).encode("utf-8", "surrogatepass")


def strings_as_bytes(batch: RecordBatch) -> RecordBatch:
    """Return rows of Parquet with their texts as bytes: the library's own decoding fails on what is not UTF-8."""
    import pyarrow
    from pyarrow import types

    columns = []
    for column in batch.columns:
        values = column.dictionary_decode() if types.is_dictionary(column.type) else column
        is_text = types.is_string(values.type) or types.is_large_string(values.type)
        columns.append(values.cast(pyarrow.large_binary()) if is_text else values)
    return pyarrow.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _to_text(value: object) -> str:
    """Return what a filter compares, of a value that JSON does not have."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
