"""Sources beyond the number of files that a process may open are read side by side all the same."""

from __future__ import annotations

import gzip
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.text.prepare.small_texts import as_bytes, some_text

from etude.text.prepare import open_readers, readers
from etude.text.prepare.prepare import prepare
from etude.text.prepare.readers import Position, ReadSettings
from etude.text.prepare.sources import find_sources


@contextmanager
def few_open_files(count: int) -> Iterator[None]:
    """Let this process have no more than so many files open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def write_books(folder: Path, count: int, documents: int = 25) -> list[str]:
    folder.mkdir()
    paths = [folder / f"{number:03}.txt" for number in range(count)]
    for number, path in enumerate(paths):
        path.write_text("\n\n".join(some_text(documents, seed=number)), encoding="utf-8")
    return list(map(str, paths))


def test_more_books_than_open_files(tmp_path: Path, small_blocks: None) -> None:
    books = write_books(tmp_path / "books", 150, documents=13)
    assert sum(Path(book).stat().st_size > readers.BLOCK_BYTES for book in books) > 100, "read in several blocks"
    prepare(books, tmp_path / "many", "bytebpe:300")
    with few_open_files(100):
        prepare(books, tmp_path / "few", "bytebpe:300")
    assert as_bytes(tmp_path / "many") == as_bytes(tmp_path / "few")


@pytest.mark.parametrize("packing", ["", ".gz"])
def test_a_source_goes_on_where_it_was_closed(
    tmp_path: Path, small_blocks: None, monkeypatch: pytest.MonkeyPatch, packing: str
) -> None:
    books = write_books(tmp_path / "books", 6)
    if packing:
        for book in books:
            Path(book + packing).write_bytes(gzip.compress(Path(book).read_bytes()))
    sources = [source.files for source in find_sources([book + packing for book in books])]
    monkeypatch.setattr(open_readers, "LEAST_READERS", 2)
    monkeypatch.setattr(open_readers, "OTHER_FILES", 1 << 60)
    opened = open_readers.OpenReaders(sources, ReadSettings(), [Position()] * 6)
    texts = [b""] * 6
    unread = list(range(6))
    while unread:
        for number in list(unread):
            block = opened.read(number)
            assert len(opened.readers) <= 2
            if block is None:
                unread.remove(number)
            else:
                texts[number] += block.payload
    assert texts == [Path(book).read_bytes() for book in books]
