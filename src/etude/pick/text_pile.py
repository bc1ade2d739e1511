"""The user's text: every file is read once before anything is computed, and all that is wrong is collected.

The reading is that of `etude prepare` (text/prepare), so what passes here is what a corpus can be made of. Files of one
pile may keep their text under different fields: `TextPile.prepare` writes those that differ again under one name.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from etude.chance import fold
from etude.cores import count_cores
from etude.errors import UserError
from etude.pick.problems import Problem, merge_alike
from etude.pick.text_fields import DEFAULT_FIELD, choose_fields
from etude.text.corpus.corpus import Corpus
from etude.text.prepare.documents import Documents, parse_documents
from etude.text.prepare.prepare import MIN_BYTES_FOR_WORKERS, Progress, prepare
from etude.text.prepare.readers import BlockPart, Position, ReadSettings, read_blocks
from etude.text.prepare.scan import HASHES, ScanResult, scan
from etude.text.prepare.sources import Source, SourceFile, find_sources
from etude.text.prepare.worker_pool import WorkerPool
from etude.text.tokenizer.tokenizer import Tokenizer

MAX_PROBLEMS = 1000  # of one file that are remembered; the others are counted
DUPLICATE_SHARE = 0.05  # from which on duplicates are worth a warning


@dataclass(frozen=True)
class PileFile:
    """A file of the pile, read to its end."""

    file: SourceFile
    text_field: str  # of its records; "text" for plain text, which has none
    sha256: str
    bad: int = 0  # records left out

    @property
    def has_fields(self) -> bool:
        return self.file.format != "text"


@dataclass(frozen=True)
class TextPile:
    """Text that passed every check, and how a corpus is made of exactly that."""

    sources: tuple[str, ...]  # as the user named them
    files: tuple[PileFile, ...]
    errors: str
    unique: bool
    documents: int
    bytes: int  # of text
    duplicates: int  # documents whose text came before

    @property
    def fingerprint(self) -> str:
        """A hash of the content of all files and of how they are read: what a corpus depends on."""
        parts = [f"{file.sha256} {file.text_field} {file.bad}" for file in self.files]
        return f"{fold('pile', self.errors, int(self.unique), *parts):016x}"

    def prepare(
        self,
        out: str | Path,
        tokenizer: str | Path | Tokenizer,
        *,
        valid: float = 0.01,
        seed: int = 0,
        workers: int | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> Corpus:
        """Make a corpus of this text at `out`; files that are written again lie in `<out>.text`."""
        out = Path(out)
        sources, text_field = self.unify_fields(out.parent / f"{out.name}.text")
        return prepare(
            sources, out, tokenizer, valid=valid, workers=workers, text_field=text_field, unique=self.unique,
            errors=self.errors, seed=seed, progress=progress,
        )  # fmt: skip

    def unify_fields(self, folder: Path) -> tuple[list[str], str]:
        """Return sources and the one text field for `prepare`.

        Files with another field than most, or with bad records, are written again into `folder` as JSON lines.
        """
        fields = [file.text_field for file in self.files if file.has_fields and not file.bad]
        common = max(dict.fromkeys(fields), key=fields.count, default=DEFAULT_FIELD)
        if not any(_differs(file, common) for file in self.files):
            return list(self.sources), common
        sources = []
        for file in self.files:
            source = Path(file.file.path)
            if _differs(file, common):
                key = fold(file.sha256, file.text_field, common, self.errors, file.bad)
                source = folder / f"{source.name.split('.')[0]}-{key:016x}.jsonl"
                if not source.is_file():  # a preparation that was killed goes on with the same file
                    _write_records(file, ReadSettings(file.text_field, errors=self.errors), source, common)
            sources.append(str(source))
        return sources, common


def _differs(file: PileFile, common: str) -> bool:
    return file.has_fields and (file.text_field != common or file.bad > 0)


def _write_records(file: PileFile, settings: ReadSettings, target: Path, name: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(".writing")
    with partial.open("w", encoding="utf-8") as writer:
        for documents in _read_documents(file.file, settings, lambda place, message: None):
            writer.writelines(json.dumps({name: text}, ensure_ascii=False) + "\n" for text in documents.texts)
    partial.replace(target)


# --- checking ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FoundText:
    """Sources of text that were found, unread, and the field that is read of each file."""

    sources: list[Source]
    fields: dict[str, str]


def find_text(
    sources: Sequence[str | Path], text_field: str | Sequence[str] | None = None, errors: str = "strict"
) -> tuple[FoundText, list[Problem]]:
    """Find the files of all text, and what is wrong with their names and the options.

    text_field: the field for all files, or for some of them as FILE=FIELD; where a file has none, "text", else the
    first usual name that its records have.
    """
    problems: list[Problem] = []
    if errors not in ("strict", "replace"):
        problems.append(Problem(f"--errors is 'strict' or 'replace', not '{errors}'."))
    source_list: list[Source] = []
    for name in sources:
        try:
            source_list += find_sources(str(name))
        except UserError as error:
            problems.append(Problem(str(error)))
    fields, field_problems = choose_fields(source_list, text_field)
    return FoundText(source_list, fields), problems + field_problems


def read_text(
    found: FoundText, errors: str = "strict", unique: bool = False, skip_bad: bool = False
) -> tuple[TextPile | None, list[Problem]]:
    """Read all text once; return the pile, None where it cannot be used, and every problem."""
    problems: list[Problem] = []
    source_list, fields = found.sources, found.fields
    states = {path: _FileState() for path in fields}
    counts = _Counts()
    for name in dict.fromkeys(fields.values()):
        part = [
            Source(source.name, 1.0, files)
            for source in source_list
            if (files := tuple(file for file in source.files if fields[file.path] == name))
        ]
        _read_part(part, ReadSettings(name, errors=errors), unique, states, counts)
    for path, state in states.items():
        problems += _describe_bad(path, state, skip_bad)
    failed = any(problem.is_fatal for problem in problems)
    if not failed:
        problems += [
            Problem(f"{source.name}: no document with any text was found in it. Name another source.")
            for source in source_list
            if not counts.documents.get(source.name)
        ]
    if not source_list or any(problem.is_fatal for problem in problems):
        return None, problems
    total = sum(counts.documents.values())
    duplicates = total - counts.distinct
    if duplicates > DUPLICATE_SHARE * total and not unique:
        message = f"The text: {duplicates:,} of {total:,} documents are exact duplicates; --unique drops them."
        korean = f"텍스트: 문서 {total:,}개 중 {duplicates:,}개가 완전히 같은 중복입니다. --unique를 쓰면 제거합니다."
        problems.append(Problem(message, False, korean=korean))
    pile_files = [
        PileFile(file, fields[file.path], states[file.path].sha256, states[file.path].bad)
        for source in source_list
        for file in source.files
    ]
    names = tuple(source.name for source in source_list)
    return TextPile(names, tuple(pile_files), errors, unique, total, counts.bytes, duplicates), problems


@dataclass
class _FileState:
    sha256: str = ""
    bad: int = 0
    messages: list[tuple[str, str]] = field(default_factory=list)  # place and message of bad records
    failure: str | None = None  # why the rest of the file cannot be read

    def add(self, place: str, message: str) -> None:
        self.bad += 1
        if len(self.messages) < MAX_PROBLEMS:
            self.messages.append((place, message))


@dataclass
class _Counts:
    documents: dict[str, int] = field(default_factory=dict)  # by the name of the source
    bytes: int = 0
    hashes: list[np.ndarray] = field(default_factory=list)

    @property
    def distinct(self) -> int:
        return len(np.unique(np.concatenate(self.hashes))) if self.hashes else 0

    def add(self, name: str, documents: int) -> None:
        self.documents[name] = self.documents.get(name, 0) + documents


def _read_part(
    sources: list[Source], settings: ReadSettings, unique: bool, states: Mapping[str, _FileState], counts: _Counts
) -> None:
    """Read sources with one field: all at once by the scan of `prepare`, file by file where that finds a problem."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            result = _scan(sources, settings, unique, Path(folder))
            counts.hashes.append(np.fromfile(Path(folder) / HASHES, "<u8"))
    except UserError:
        for source in sources:
            for file in source.files:
                _read_file(source.name, file, settings, states[file.path], counts)
        return
    counts.bytes += result.bytes
    for source, blocks, entries in zip(sources, result.blocks, result.files, strict=True):
        counts.add(source.name, sum(blocks))
        for entry in entries:
            states[entry["path"]].sha256 = entry["sha256"]


def _scan(sources: list[Source], settings: ReadSettings, unique: bool, folder: Path) -> ScanResult:
    size = sum(file.size for source in sources for file in source.files)
    workers = 0 if size < MIN_BYTES_FOR_WORKERS else count_cores()
    with WorkerPool(workers) as pool:
        pool.broadcast(({"task": "setup", "reading": asdict(settings), "where": None, "seed": 0}, {}))
        return scan(sources, settings, None, pool, folder, 0, 0.0, 0, unique, lambda done, text, documents: None)


def _read_file(name: str, file: SourceFile, settings: ReadSettings, state: _FileState, counts: _Counts) -> None:
    def set_hash(number: int, digest: str) -> None:
        state.sha256 = digest

    counts.add(name, 0)
    try:
        for documents in _read_documents(file, settings, state.add, set_hash):
            counts.add(name, len(documents.texts))
            counts.bytes += sum(map(len, documents.encoded))
            counts.hashes.append(documents.hashes)
    except UserError as error:
        state.failure = str(error)


def _describe_bad(path: str, state: _FileState, skip_bad: bool) -> list[Problem]:
    problems = [] if state.failure is None else [Problem(state.failure)]
    if state.bad and skip_bad:
        place, first = state.messages[0]
        korean = f"{path}: 잘못된 레코드 {state.bad}개를 뺐습니다. 첫 레코드: {place}"
        message = f"{path}: {state.bad} bad records left out; the first: {first}"
        problems.append(Problem(message, False, state.bad, korean))
    else:
        problems += merge_alike(state.messages)
    return problems


# --- reading ----------------------------------------------------------------------------------------


def _read_documents(
    file: SourceFile,
    settings: ReadSettings,
    on_bad: Callable[[str, str], None],
    on_hash: Callable[[int, str], None] | None = None,
) -> Iterator[Documents]:
    """Yield the documents of a file; `on_bad` gets place and message of each bad record, and reading goes on."""
    for block in read_blocks([file], settings, Position(), on_hash):
        start = 0
        for part in block.parts:
            data = block.payload[start : start + part.length]
            start += part.length
            try:
                yield parse_documents([part], data, settings, None)
            except UserError as error:
                if part.kind not in ("lines", "rows"):
                    raise UserError(_shorten_place(part.file, str(error))) from None
                yield from _read_records(part, data, settings, on_bad)


def _read_records(
    part: BlockPart, data: bytes, settings: ReadSettings, on_bad: Callable[[str, str], None]
) -> Iterator[Documents]:
    """Yield the documents of records one by one, so that a bad one hides no other."""
    offset = part.offset
    for number, line in enumerate(data.split(b"\n"), start=part.line):
        single = replace(part, offset=offset, line=number, length=len(line), cut=False)
        offset += len(line) + 1
        try:
            yield parse_documents([single], line, settings, None)
        except UserError as error:
            on_bad(f"{part.file}:{number}", _shorten_place(part.file, str(error)))


def _shorten_place(file: str, message: str) -> str:
    """Write "FILE, line 6, is" and "FILE, line 6:" as "FILE:6 is" and "FILE:6:", as places of labels are."""
    shorter = re.compile(rf"{re.escape(file)}, line (\d+)(,(?= )|(?=:))")
    return shorter.sub(lambda match: f"{file}:{match[1]}", message, count=1)
