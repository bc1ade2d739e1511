"""Tagged sentences from files: columns as in the CoNLL shared tasks, CoNLL-U, and JSON lines.

    columns   a word a line, a blank line between sentences, tabs or spaces between columns; -DOCSTART- lines and
              comments are left out. A column is named by its number from 0 or, from the right, from -1; "tokens" is
              the first and "tags" the last. Files of four columns are taken for CoNLL-2003's: tokens pos chunk ner.
    CoNLL-U   ten columns with tabs: id form lemma upos xpos feats head deprel deps misc. Words are the syntactic
              ones: the lines of multiword tokens (3-4) and of empty nodes (3.1) are left out. CoNLL-U Plus names its
              own in "# global.columns".
    JSON      lists under any names: {"tokens": [...], "ner": [...]}

Each also compressed. Every sentence comes as a record of columns, whatever the file, so that one reader of records
takes its words and tags. Errors name the line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.errors import UserError
from etude.tasks.data.examples import Record, short
from etude.tasks.data.records import READ_ERRORS, Records, file_kind, open_file, read_lines, records

JSON = (".jsonl", ".json")
OTHERS = (".csv", ".parquet", ".yaml", ".yml", ".pdf", ".zip")  # no columns of words, whatever is inside
CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
CONLL03 = ("tokens", "pos", "chunk", "ner")
DOCUMENT = "-DOCSTART-"


class Sentence(dict[str, Any]):
    """The columns of one sentence by name, and where its words stand."""

    def __init__(self, columns: Record, source: Path, lines: list[int]) -> None:
        super().__init__(columns)
        self.source, self.lines = source, lines

    def place(self, word: int) -> str:
        return f"{self.source}:{self.lines[min(word, len(self.lines) - 1)]}"


def sentences(path: str | Path) -> Records:
    """(place, columns) of every sentence, in order, one in memory at a time; errors as `reading.records` has them."""
    path = Path(path)
    kind = file_kind(path)
    if kind in JSON:
        yield from records(path)
        return
    if kind in OTHERS:
        raise UserError(
            f"{path}: tagged sentences are read from files of columns (.conll, .conllu, .tsv, .txt) and from JSON "
            f"({', '.join(JSON)}), not from '{kind}'. Convert the file."
        )
    try:
        form = _form(path)
        with open_file(path) as file:
            yield from _columns(path, read_lines(path, file), form)
    except FileNotFoundError:
        raise UserError(f"There is no file {path}.") from None
    except READ_ERRORS as problem:
        raise UserError(f"{path} cannot be read: {problem}. Is it whole, and is its name right?") from None


def dump(words: Sequence[str], *columns: Sequence[str]) -> str:
    """One sentence as columns with tabs between them, and the blank line behind it."""
    for word in words:
        if not word.strip(" ") or set(word) & set("\t\n\r") or word == DOCUMENT or (word[0] == "#" and " " in word):
            raise ValueError(f"{short(word)} cannot be a word of a file of columns")
    return "".join("\t".join(fields) + "\n" for fields in zip(words, *columns, strict=True)) + "\n"


# --- the form of a file -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Form:
    tabs: bool
    width: int  # columns of every line
    numbered: bool  # CoNLL-U: the first column counts words
    names: tuple[str, ...]  # "" where a column has none

    def split(self, line: str) -> list[str]:
        # a word may hold other white space (U+00A0), so only the separator itself divides
        return line.split("\t") if self.tabs else [field for field in line.split(" ") if field]

    def comment(self, line: str) -> bool:
        """Whether a line before the first word of a sentence is none of its words."""
        if not line.startswith("#"):
            return False
        fields = self.split(line)
        return len(fields) != self.width or " " in fields[0]  # KLUE has "## id<tab>text" before two columns


def _form(path: Path) -> _Form | None:
    """Seen from the first line with words; None where there is none."""
    named: tuple[str, ...] = ()
    with open_file(path) as file:
        for _, line in read_lines(path, file):
            if isinstance(line, UserError):
                raise line
            line = line.rstrip("\r\n")
            if line.startswith("# global.columns ="):
                named = tuple(line.partition("=")[2].lower().split())
            tabs = "\t" in line
            fields = line.split("\t") if tabs else line.split(" ")
            remark = line.startswith("#") and (" " in fields[0] or not tabs)
            if not line.strip(" \t") or fields[0] == DOCUMENT or (remark and not _hash_word(line)):
                continue
            fields = [field for field in fields if tabs or field]
            if not named and tabs and len(fields) == len(CONLLU) and fields[0].partition("-")[0].isdecimal():
                named = CONLLU
            if named and len(named) != len(fields):
                raise UserError(
                    f"{path}: its comment names {len(named)} columns, and its first word has {len(fields)}."
                )
            width = len(fields)
            plain = CONLL03 if width == len(CONLL03) else ("tokens", *[""] * (width - 2), "tags")[:width]
            return _Form(tabs, width, bool(named) and named[0] == "id", named or plain)
    return None


def _hash_word(line: str) -> bool:
    """A "#" that stands alone as a word before one or more tags ("# O"), not before a remark."""
    fields = line.split()
    return fields[0] == "#" and len(fields) > 1 and all(_tag_like(field) for field in fields[1:])


def _tag_like(field: str) -> bool:
    return field == "O" or field[:2] in ("B-", "I-", "E-", "S-")


# --- sentences --------------------------------------------------------------------------------------


def _columns(path: Path, lines: Iterator[tuple[int, str | UserError]], form: _Form | None) -> Records:
    if form is None:
        return
    rows: list[list[str]] = []
    numbers: list[int] = []
    wrong: UserError | None = None
    started = 0
    for number, line in lines:
        if isinstance(line, UserError):
            wrong, started = wrong or line, started or number
            continue
        line = line.rstrip("\r\n")
        if not line.strip(" \t"):
            if started:
                yield f"{path}:{started}", wrong or _sentence(path, form, rows, numbers)
            rows, numbers, wrong, started = [], [], None, 0
            continue
        if not started and form.comment(line):
            continue
        fields = form.split(line)
        if fields[0] == DOCUMENT:
            continue
        started = started or number
        if wrong is not None:
            continue
        if len(fields) != form.width:
            wrong = _ragged(path, number, fields, form)
        elif not form.numbered or fields[0].isdecimal():  # 3-4 is a multiword token, 3.1 an empty node
            if not fields[form.names.index("form") if form.numbered else 0]:
                wrong = UserError(f"{path}:{number}: the word of this line is empty. Fill it, or remove the line.")
            rows.append(fields)
            numbers.append(number)
    if started:
        yield f"{path}:{started}", wrong or _sentence(path, form, rows, numbers)


def _ragged(path: Path, number: int, fields: list[str], form: _Form) -> UserError:
    between = "tabs" if form.tabs else "spaces"
    return UserError(
        f"{path}:{number}: {len(fields)} columns with {between} between them, and the first line with words has "
        f"{form.width}. Is a column missing, or a separator one too many?"
    )


def _sentence(path: Path, form: _Form, rows: list[list[str]], numbers: list[int]) -> Record | UserError:
    if not rows:
        return UserError(f"{path}: a sentence holds no words, only multiword tokens or empty nodes.")
    columns: Record = {}
    for place, column in enumerate(map(list, zip(*rows, strict=True))):
        columns[str(place)] = columns[str(place - form.width)] = column
        if form.names[place]:
            columns[form.names[place]] = column
    if "form" in columns:
        columns["tokens"] = columns["form"]
    return Sentence(columns, path, numbers)
