"""Where a line of an input file ends: line feeds, those of Windows, and returns where there is nothing else."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from tests.text.prepare.test_readers import PACK, nfc, read, write

from etude.text.prepare import readers
from etude.text.prepare.readers import Position, ReadSettings, read_blocks
from etude.text.prepare.sources import find_sources


def test_lines_end_at_line_feeds_only(tmp_path: Path) -> None:
    texts = ["a\u2028b\u0085c\u000bd\u001ce\rf", "next"]
    for kind in (".jsonl", ".txt", ".csv", ".tsv"):
        given_texts = [text.replace("\r", "") for text in texts]  # a bare return in CSV must be quoted by its writer
        assert read(write(tmp_path / f"a{kind}", given_texts)).texts == nfc(given_texts)
    assert read(write(tmp_path / "b.jsonl", texts)).texts == nfc(texts)


def test_windows_line_ends_and_byte_order_marks(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n\r\nthree\r\n")
    assert read(tmp_path / "a.txt").texts == ["one\ntwo", "three"]
    (tmp_path / "a.csv").write_bytes(b'\xef\xbb\xbftext,n\r\n"x\r\ny",1\r\n')
    assert read(tmp_path / "a.csv").texts == ["x\r\ny"]


@pytest.mark.parametrize("packing", list(PACK))
@pytest.mark.parametrize("kind", [".txt", ".jsonl", ".csv", ".tsv"])
def test_lines_that_end_in_a_return_alone(
    tmp_path: Path, kind: str, packing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As old Macs wrote text, and spreadsheets still write "CSV (Macintosh)"; also from the middle on."""
    monkeypatch.setattr(readers, "BLOCK_BYTES", 1 << 10)
    texts = [f"문서 {n} " + "word " * (n * 37 % 90) + "end" for n in range(120)]
    if kind == ".txt":
        texts = [f"{text}\nand its second line" for text in texts]
    plain = write(tmp_path / f"a{kind}", texts).read_bytes()
    path = tmp_path / f"b{kind}{packing}"
    path.write_bytes(PACK[packing](plain.replace(b"\n", b"\r")))
    files = find_sources(str(path))[0].files
    digests: dict[int, str] = {}
    whole = list(read_blocks(files, ReadSettings(), Position(), digests.__setitem__))
    assert b"".join(block.payload for block in whole).count(b"\r") == 0
    assert digests == {0: hashlib.sha256(path.read_bytes()).hexdigest()}, "of the file as it is"
    for number in range(len(whole) - 1):
        rest = list(read_blocks(files, ReadSettings(), whole[number].after))
        assert [block.parts for block in rest] == [block.parts for block in whole[number + 1 :]]
        assert [block.payload for block in rest] == [block.payload for block in whole[number + 1 :]]
    documents = read(path)
    assert documents.texts == nfc(texts)
    assert [origin.line for origin in documents.origins] == [
        origin.line for origin in read(tmp_path / f"a{kind}").origins
    ]


def test_returns_of_a_file_of_line_feeds_are_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\rtwo\r\rthree\n\nfour\n")
    assert read(tmp_path / "a.txt").texts == ["one\rtwo\r\rthree", "four"]
