"""Sources of text: files, patterns, folders, URLs and hub data sets, checked before any work.

Formats go by the name: .txt (and every other name given outright), .jsonl (also .json, where the file is named and not
its folder: large data sets call their lines so), .csv, .tsv, .parquet, .tmx (pairs alone), each also with .gz, .xz or
.zst behind. What begins with s3://, gs://, hf:// or https:// is remote: a file, a folder or a pattern of files, read as
a stream (text/remote). `hub:name`, `hub:name:configuration` or `hub:name:configuration:split` is a data set of the hub.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from etude.errors import UserError, escape_path
from etude.text.remote.urls import is_url, make_local

if TYPE_CHECKING:
    from etude.text.remote.storage import RemoteInfo

FORMATS = {
    ".txt": "text", ".text": "text", ".md": "text", ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "tsv",
    ".parquet": "parquet", ".tmx": "tmx",
}  # fmt: skip
NAMED_FORMATS = {".json": "jsonl"}  # of files named outright: in a folder, a .json is rather about the texts than one
COMPRESSIONS = {".gz": "gz", ".xz": "xz", ".zst": "zst"}
HUB = "hub:"
LISTED_SUFFIXES = 5  # of files that are left out
SOURCE_SIDE, TARGET_SIDE = "source_side", "target_side"  # formats of the two files of a parallel text

# The first bytes of other kinds of files: a message that names the kind helps more than a byte offset.
FILE_SIGNATURES = (
    (b"%PDF", "a PDF"), (b"PK\x03\x04", "a ZIP archive (or an Office document)"), (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"), (b"GIF8", "a GIF image"), (b"\x7fELF", "a program"), (b"\x1f\x8b", "gzip data"),
    (b"\xfd7zXZ", "xz data"), (b"\x28\xb5\x2f\xfd", "zstd data"), (b"BZh", "bzip2 data"), (b"PAR1", "a Parquet file"),
    (b"SQLite format 3", "a data base"), (b"\xff\xfe", "UTF-16 text"), (b"\xfe\xff", "UTF-16 text"),
)  # fmt: skip


@dataclass(frozen=True)
class SourceFile:
    """A file to read text from, or a hub data set."""

    path: str  # as the user wrote it: goes into the manifest
    format: str  # text, jsonl, csv, tsv, parquet, tmx or hub; of pairs in two files, source_side and target_side
    compression: str  # gz, xz, zst or nothing
    size: int  # bytes on disk; 0 for a hub data set
    version: str = ""  # of a remote file: changes with its content
    target_side: SourceFile | None = None  # of a source_side: the file whose lines are their translations


def identify_file(file: SourceFile) -> list[str | int]:
    """Return what says that a file is still the one that was read: its path, its size, and its time or its version."""
    version: str | int = file.version
    if not version:
        with contextlib.suppress(OSError):
            version = Path(file.path).stat().st_mtime_ns
    return [file.path, file.size, version or 0]


@dataclass(frozen=True)
class Source:
    """One source as the user gave it, with its weight in the mix."""

    name: str
    weight: float
    files: tuple[SourceFile, ...]
    left_out: tuple[str, ...] = ()  # of a folder: paths whose names say no format of text


SourceInput = str | Path | Sequence[str | Path] | Mapping[str, float]


def find_sources(sources: SourceInput, weights: Sequence[float] | None = None) -> list[Source]:
    """Return the sources in the order given; files of a pattern or folder are sorted by name."""
    if isinstance(sources, Mapping):
        if weights is not None:
            raise UserError("Weights are given twice: once with the sources, once as weights.")
        names, weights = list(sources), list(sources.values())
    else:
        names = [str(sources)] if isinstance(sources, (str, Path)) else [str(name) for name in sources]
    if not names:
        raise UserError("No text was named. Give files, folders or patterns such as 'books/*.txt'.")
    if weights is None:
        weights = [1.0] * len(names)
    if len(weights) != len(names):
        raise UserError(
            f"{len(names)} sources have {len(weights)} weights; each needs one. Quote patterns ('books/*.txt') "
            "so that the shell does not turn one source into many."
        )
    for name, weight in zip(names, weights, strict=True):
        if not 0 < weight < 1000:
            raise UserError(f"The weight of {name} is {weight:g}; it must lie above 0 and below 1000.")
    return [Source(name, float(weight), *_list_files(name)) for name, weight in zip(names, weights, strict=True)]


def describe_left_out(source: Source) -> str:
    """Return what a folder holds beside its texts, in words: "2 .bz2, 1 .pdf"; empty where that is nothing."""
    counts = Counter(Path(path).suffix.lower() or "without an ending" for path in source.left_out)
    shown = [f"{count:,} {suffix}" for suffix, count in counts.most_common(LISTED_SUFFIXES)]
    return ", ".join([*shown, *(["others"] if len(counts) > LISTED_SUFFIXES else [])])


def _list_files(name: str) -> tuple[tuple[SourceFile, ...], tuple[str, ...]]:
    """Return the files of a source, and those of a folder that are left out."""
    if not name:  # which a path takes for the folder one is in: an unset variable of a shell
        raise UserError("A source of text has an empty name. Give files, folders or patterns such as 'books/*.txt'.")
    if name.startswith(HUB):
        if not name.removeprefix(HUB).partition(":")[0]:
            raise UserError(f"'{name}' names no data set of the hub. Write for example hub:wikitext.")
        return (SourceFile(name, "hub", "", 0),), ()
    name = str(make_local(name))
    if is_url(name):
        return _list_remote(name)
    path = Path(name)
    try:
        path.stat()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # a text in the place of a path
            raise UserError(
                f"A source of text is the path of a file, and this is longer than a path: {name[:60]!r}… Write texts "
                "to a file first: a document each, with blank lines between them."
            ) from None
    if path.is_dir():
        inside = sorted(_walk_folder(path))
        files = tuple(describe_file(str(child)) for child in inside if _is_known(child))
        if not files:
            kinds = ", ".join(sorted(FORMATS))
            raise UserError(
                f"The folder {name} holds no text files. Looked for {kinds}, also packed as .gz, .xz, .zst."
            )
        return files, tuple(str(child) for child in inside if not _is_known(child))
    if path.is_file():
        return (describe_file(name),), ()
    # Path.glob takes no absolute pattern
    matches = sorted(match for match in glob.glob(name, recursive=True) if Path(match).is_file())  # noqa: PTH207
    if not matches:
        what = "no file matches the pattern" if glob.has_magic(name) else "no such file or folder"
        if path.exists():
            what = "neither a file nor a folder, and text is read twice. Write what comes from a pipe to a file first"
        raise UserError(f"{name}: {what}.")
    return tuple(describe_file(match) for match in matches), ()


def _walk_folder(path: Path) -> Iterator[Path]:
    """Yield the files under a folder that are not hidden, also behind links to other folders, each folder once.

    `Path.rglob` would leave out what is behind a link, and what it may not read, without a word.
    """
    waiting: list[Path] = [path]
    links: list[Path] = []
    seen: set[tuple[int, int]] = set()
    while waiting or links:
        # links come last: of a folder that is inside and linked to as well, its own place counts
        folder = waiting.pop() if waiting else links.pop(0)
        try:
            status = folder.stat()
            with os.scandir(folder) as entries:
                children = sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda e: e.name)
        except OSError as problem:
            raise UserError(
                f"The folder {folder} cannot be read: {problem.strerror or problem}. Make it readable, or name the "
                "files and folders beside it."
            ) from None
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        for child in children:
            if child.is_dir():
                (links if child.is_symlink() else waiting).append(folder / child.name)
            elif child.is_file() or (child.is_symlink() and _is_known(Path(child.name))):  # a link may lead nowhere
                yield folder / child.name


def _list_remote(url: str) -> tuple[tuple[SourceFile, ...], tuple[str, ...]]:
    """The files of a URL: one file, a folder of files, or a pattern; and those of a folder that are left out."""
    from etude.text.remote.storage import Storage  # plain paths do without

    storage = Storage(url)
    if glob.has_magic(_without_query(url)):
        matches = [info for info in storage.match(url) if not _remote_name(info.url).name.startswith(".")]
        if not matches:
            raise UserError(f"{url}: no file matches the pattern.")
        return tuple(_describe_remote(info) for info in matches), ()
    info = None if url.endswith("/") else storage.describe(url)
    if info is not None:
        return (_describe_remote(info),), ()
    base = len(url.rstrip("/")) + 1
    inside = [info for info in storage.list_files(url) if not _is_hidden(Path(info.url[base:]))]
    files = [info for info in inside if _is_known(_remote_name(info.url))]
    if inside and not files:
        raise UserError(f"The folder {url} holds no text files. Looked for {', '.join(sorted(FORMATS))}, also packed.")
    if not files:
        raise UserError(f"{url}: there is no such file, folder or bucket.")
    left_out = tuple(info.url for info in inside if not _is_known(_remote_name(info.url)))
    return tuple(_describe_remote(info) for info in files), left_out


def find_file(name: str) -> SourceFile | None:
    """Return the file of a path or a URL; None where there is none."""
    if not is_url(name):
        return describe_file(name) if Path(name).is_file() else None
    from etude.text.remote.storage import Storage  # plain paths do without

    info = Storage(name).describe(name)
    return None if info is None else _describe_remote(info)


def _describe_remote(info: RemoteInfo) -> SourceFile:
    return SourceFile(info.url, *_parse_name(_remote_name(info.url)), info.size, info.version)


def _without_query(url: str) -> str:
    return url.partition("?")[0] if url.startswith("http") else url


def _remote_name(url: str) -> Path:
    return Path(_without_query(url).rpartition("/")[2])


def _is_known(path: Path) -> bool:
    suffixes = path.suffixes
    if suffixes and suffixes[-1].lower() in COMPRESSIONS:
        suffixes = suffixes[:-1]
    return bool(suffixes) and suffixes[-1].lower() in FORMATS


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def describe_file(name: str) -> SourceFile:
    path = Path(name)
    try:
        name.encode()
    except UnicodeEncodeError:  # the manifest, which is UTF-8, holds the names of all files
        raise UserError(f"The name of the file {escape_path(name)} is not UTF-8. Rename it.") from None
    try:
        size = path.stat().st_size
        with path.open("rb"):
            pass
    except OSError as problem:
        link = f" It is a link to {escape_path(str(path.readlink()))}." if path.is_symlink() else ""
        raise UserError(f"{name} cannot be read: {problem.strerror or problem}.{link}") from None
    return SourceFile(name, *_parse_name(path), size)


def _parse_name(path: Path) -> tuple[str, str]:
    """The format and the compression that the name of a file says."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compression = COMPRESSIONS.get(suffixes[-1], "") if suffixes else ""
    if compression:
        suffixes = suffixes[:-1]
    suffix = suffixes[-1] if suffixes else ""
    return FORMATS.get(suffix) or NAMED_FORMATS.get(suffix, "text"), compression


def refuse_binary(name: str, start: bytes) -> None:
    """Raise UserError if a file that should be text is something else."""
    for mark, kind in FILE_SIGNATURES:
        if start.startswith(mark):
            hint = "turn it into UTF-8 text first"
            if kind.split()[0] in ("gzip", "xz", "zstd"):
                hint = "its name should say so: .txt.gz, .txt.xz, .txt.zst"
            elif kind == "UTF-16 text":
                hint += " (etude prepare reads a text with --encoding utf-16)"
            raise UserError(f"{name} is not text but {kind}; {hint}.")
    if (place := start.find(b"\0")) >= 0:
        raise UserError(f"{name} is a binary file: byte {place} is 0. Only text can be prepared.")
