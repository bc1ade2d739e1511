"""Which field of its records holds the text of a file: named for all files, for single ones, or found out."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Sequence

from etude.extras import require
from etude.pick.problems import Problem
from etude.text.prepare.decompression import DECOMPRESSION_ERRORS, InputFile
from etude.text.prepare.sources import Source, SourceFile

DEFAULT_FIELD = "text"
# Fields that hold the text of a record where there is no "text"; the first of them counts.
USUAL_FIELDS = ("content", "document", "sentence", "body", "article", "review", "comment", "comments", "title")


def choose_fields(
    sources: Sequence[Source], text_field: str | Sequence[str] | None
) -> tuple[dict[str, str], list[Problem]]:
    """Return the text field of each file, and problems."""
    named = [text_field] if isinstance(text_field, str) else list(text_field or ())
    common, own, problems = _parse_fields(named, sources)
    fields: dict[str, str] = {}
    for source in sources:
        for file in source.files:
            if file.format == "text":
                fields[file.path] = DEFAULT_FIELD
                continue
            given = own.get(_key(file.path), own.get(_key(source.name), common))
            fields[file.path] = given or DEFAULT_FIELD
            if given is None and file.format != "hub":
                name = fields[file.path] = _guess_field(file)
                if name != DEFAULT_FIELD:
                    message = f"{file.path}: text is read from its field '{name}'; --text-field names another."
                    korean = f"{file.path}: 텍스트를 필드 '{name}'에서 읽습니다. 다른 필드는 --text-field로 지정하세요."
                    problems.append(Problem(message, False, korean=korean))
    return fields, problems


def _key(path: str) -> str:
    return os.path.normpath(path)


def _parse_fields(named: Sequence[str], sources: Sequence[Source]) -> tuple[str | None, dict[str, str], list[Problem]]:
    """Return the field for all, those of single sources (FILE=FIELD), and problems."""
    common: str | None = None
    own: dict[str, str] = {}
    problems = []
    known = {_key(source.name) for source in sources} | {_key(file.path) for source in sources for file in source.files}
    for text in named:
        path, equals, name = text.rpartition("=")
        if not name or (equals and not path):
            problems.append(Problem(f"--text-field '{text}' names no field. Write FIELD, or FILE=FIELD for one file."))
        elif equals and _key(path) not in known:
            problems.append(Problem(f"--text-field '{text}': {path} is not among the text. Name it as you did there."))
        elif equals:
            own[_key(path)] = name
        elif common not in (None, name):
            problems.append(
                Problem(f"--text-field names '{common}' and '{name}' for all files. Write FILE=FIELD for single files.")
            )
        else:
            common = name
    return common, own, problems


def _guess_field(file: SourceFile) -> str:
    """The field of a file: "text", else the first usual name that it has, else its only field."""
    names = _list_fields(file)
    usual = [name for name in (DEFAULT_FIELD, *USUAL_FIELDS) if name in names]
    if usual or len(names) != 1:
        return usual[0] if usual else DEFAULT_FIELD
    return names[0]


def _list_fields(file: SourceFile) -> list[str]:
    """Names of the fields of the first record; [] where the file cannot be read, which reading will say."""
    if file.format == "parquet":
        require("pyarrow", f"Reading {file.path}")
        import pyarrow
        import pyarrow.parquet

        try:
            return [] if file.compression else list(pyarrow.parquet.ParquetFile(file.path).schema_arrow.names)
        except (pyarrow.ArrowException, OSError):
            return []
    try:
        input_file = InputFile(file, hashing=False)
        try:
            start = input_file.read(1 << 20).decode("utf-8-sig", "replace")
        finally:
            input_file.close()
    except (*DECOMPRESSION_ERRORS, OSError):
        return []
    lines = [line for line in start.split("\n") if line.strip()]
    if not lines:
        return []
    if file.format == "jsonl":
        try:
            record = json.loads(lines[0])
        except (ValueError, RecursionError):
            return []
        return list(record) if isinstance(record, dict) else []
    return next(csv.reader([lines[0]], delimiter="\t" if file.format == "tsv" else ","), [])
