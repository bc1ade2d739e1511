"""Every format gives the documents that were written into it; every problem names file and place."""

from __future__ import annotations

import csv
import errno
import gzip
import json
import lzma
import os
import unicodedata
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from etude.errors import UserError
from etude.text.prepare import readers
from etude.text.prepare.documents import Documents, parse_documents
from etude.text.prepare.readers import Position, ReadSettings, read_blocks
from etude.text.prepare.record_filter import parse_filter
from etude.text.prepare.sources import SourceFile, find_sources

PACK: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data, ".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.ZstdCompressor().compress,
}  # fmt: skip

# text as documents have it: any characters, several lines, but no blank lines, no edges of white space
characters = st.characters(codec="utf-8", exclude_characters="\0\r")
line = st.text(characters, min_size=1, max_size=12).filter(lambda text: text.strip() != "")
document = st.lists(line, min_size=1, max_size=3).map("\n".join).map(str.strip).filter(
    lambda text: bool(text) and not any(part.strip() == "" for part in text.split("\n"))
)  # fmt: skip
some_documents = st.lists(document, min_size=1, max_size=8)
relaxed = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def read(
    path: Path | str, read_settings: ReadSettings | None = None, where: str | None = None, start: Position | None = None
) -> Documents:
    """All documents of a path, through blocks."""
    condition = parse_filter(where) if where else None
    read_settings = read_settings or ReadSettings(fields=condition.fields if condition else ())
    all_documents = Documents()
    for source in find_sources(str(path)):
        for block in read_blocks(source.files, read_settings, start or Position()):
            documents = parse_documents(block.parts, block.payload, read_settings, condition)
            all_documents.texts += documents.texts
            all_documents.origins += documents.origins
            all_documents.filtered += documents.filtered
            all_documents.empty += documents.empty
            all_documents.cut += documents.cut
    return all_documents


def nfc(texts: list[str]) -> list[str]:
    return [unicodedata.normalize("NFC", text) for text in texts]


def write(path: Path, texts: list[str]) -> Path:
    """Documents in the format that the name asks for."""
    suffixes = path.suffixes
    packing = suffixes[-1] if suffixes[-1] in PACK else ""
    kind = suffixes[-2] if packing else suffixes[-1]
    if kind == ".txt":
        data = "\n\n".join(texts).encode()
    elif kind == ".jsonl":
        data = "".join(
            json.dumps({"text": text, "n": n}, ensure_ascii=n % 2 == 0) + "\n" for n, text in enumerate(texts)
        ).encode()
    elif kind in (".csv", ".tsv"):
        plain = path.with_name("plain")
        with plain.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter="\t" if kind == ".tsv" else ",", lineterminator="\n")
            writer.writerow(["n", "text"])
            writer.writerows([n, text] for n, text in enumerate(texts))
        data = plain.read_bytes()
        plain.unlink()
    else:
        plain = path.with_name("plain")
        arrow.parquet.write_table(arrow.table({"n": list(range(len(texts))), "text": texts}), plain, row_group_size=3)
        data = plain.read_bytes()
        plain.unlink()
    path.write_bytes(PACK[packing](data))
    return path


@pytest.mark.parametrize("packing", list(PACK))
@pytest.mark.parametrize("kind", [".txt", ".jsonl", ".csv", ".tsv", ".parquet"])
@given(texts=some_documents)
@settings(parent=relaxed, max_examples=12)
def test_documents_come_back_from_every_format(tmp_path: Path, kind: str, packing: str, texts: list[str]) -> None:
    path = write(tmp_path / f"a{kind}{packing}", texts)
    assert read(path).texts == nfc(texts)


@pytest.mark.parametrize("kind", [".txt", ".jsonl", ".csv", ".parquet"])
def test_reading_may_start_at_any_block(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "BLOCK_BYTES", 1 << 10)
    texts = [f"문서 {n} " + "word " * (n * 37 % 90) + "\nend" for n in range(120)]
    path = write(tmp_path / f"a{kind}", texts)
    files = find_sources(str(path))[0].files
    whole = list(read_blocks(files, ReadSettings(), Position()))
    assert len(whole) > 5
    for number in range(len(whole) - 1):
        rest = list(read_blocks(files, ReadSettings(), whole[number].after))
        assert [block.payload for block in rest] == [block.payload for block in whole[number + 1 :]]
        assert [block.parts for block in rest] == [block.parts for block in whole[number + 1 :]]


def test_small_files_share_blocks_and_order_is_by_name(tmp_path: Path) -> None:
    for number in (3, 1, 2):
        (tmp_path / f"{number}.txt").write_text(f"document {number}\n\nand {number}")
    (tmp_path / "notes.log").write_text("not text of ours")
    (tmp_path / ".hidden.txt").write_text("hidden")
    files = find_sources(str(tmp_path))[0].files
    assert [Path(file.path).name for file in files] == ["1.txt", "2.txt", "3.txt"]
    assert len(list(read_blocks(files, ReadSettings(), Position()))) == 1
    assert read(tmp_path).texts == ["document 1", "and 1", "document 2", "and 2", "document 3", "and 3"]
    assert read(f"{tmp_path}/[12].txt").texts == ["document 1", "and 1", "document 2", "and 2"]
    assert read(tmp_path, ReadSettings(one_document=True)).texts[0] == "document 1\n\nand 1"


def test_work_grows_with_the_number_of_files_and_not_with_its_square(tmp_path: Path) -> None:
    asked = 0

    class CountedFile(SourceFile):
        def __getattribute__(self, name: str) -> Any:
            nonlocal asked
            asked += name == "size"
            return super().__getattribute__(name)

    paths = [tmp_path / f"{number:03}.txt" for number in range(200)]
    for path in paths:
        path.write_text("a few words")
    files = [CountedFile(str(path), "text", "", 11) for path in paths]
    blocks = list(read_blocks(files, ReadSettings(), Position()))
    assert sum(len(block.parts) for block in blocks) == 200 and blocks[-1].disk == 200 * 11
    assert asked < 10 * len(files)


def test_long_documents_are_cut_at_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr(readers, "MAX_DOCUMENT_BYTES", 1 << 11)
    monkeypatch.setattr("etude.text.prepare.documents.MAX_DOCUMENT_BYTES", 1 << 11)
    text = "\n".join(f"줄 {n} 이다" for n in range(500))
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": text}))
    for path, read_settings in (
        ("a.txt", ReadSettings()),
        ("a.txt", ReadSettings(one_document=True)),
        ("a.jsonl", ReadSettings()),
    ):
        documents = read(tmp_path / path, read_settings)
        assert len(documents.texts) > 3 and documents.cut == len(documents.texts) - 1
        assert "\n".join(part.strip("\n") for part in documents.texts) == text
        assert max(len(part.encode()) for part in documents.texts) <= 1 << 11
    (tmp_path / "b.txt").write_text("가" * 5000)  # no space to cut at: whole characters all the same
    assert "".join(read(tmp_path / "b.txt").texts) == "가" * 5000


def test_filter_on_records(tmp_path: Path) -> None:
    for kind in (".jsonl", ".csv", ".parquet"):
        documents = read(write(tmp_path / f"a{kind}", ["zero", "one", "two", "three"]), where="n>=2")
        assert documents.texts == ["two", "three"] and documents.filtered == 2


def test_empty_records_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "  "}\n\n{"text": "x"}\n{"text": ""}')
    documents = read(tmp_path / "a.jsonl")
    assert documents.texts == ["x"] and documents.empty == 2


def test_a_hub_data_set_is_read_as_a_stream(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    folder = tmp_path / "set"
    folder.mkdir()
    write(folder / "train.jsonl", ["하나", "둘", "셋"])
    assert read(f"hub:{folder}").texts == ["하나", "둘", "셋"]
    files = find_sources(f"hub:{folder}")[0].files
    assert read(f"hub:{folder}", start=Position(0, 2, 3)).texts == ["셋"] and files[0].format == "hub"
    with pytest.raises(UserError, match="body"):
        read(f"hub:{folder}", ReadSettings(text_field="body"))
    with pytest.raises(UserError, match="cannot be read"):
        read(f"hub:{tmp_path}/nothing")


def test_a_blank_line_of_any_white_space_ends_a_document_in_a_large_file(tmp_path: Path) -> None:
    space = [chr(code) for code in range(0x110000) if chr(code).isspace() and chr(code) != "\n"]
    for number, blank in enumerate(["\u3000", "\xa0 ", "".join(space)]):
        texts = [f"{n} " + "긴 글 " * 1000 for n in range(300)]  # three megabytes: a document of more than one is cut
        (tmp_path / f"{number}.txt").write_text(f"\n{blank}\n".join(texts))
        documents = read(tmp_path / f"{number}.txt")
        assert documents.cut == 0 and documents.texts == [text.strip() for text in texts]


@pytest.mark.parametrize("form", ["jsonl", "parquet", "hub"])
def test_dotted_names_reach_into_objects(tmp_path: Path, form: str) -> None:
    """As data sets of the hub keep translations: {"translation": {"en": ..., "ko": ...}}."""
    texts = {"en": ["one", "two"], "ko": ["하나", "둘"]}
    rows = [
        {"translation": {"en": en, "ko": ko}, "meta": {"n": n}}
        for n, (en, ko) in enumerate(zip(*texts.values(), strict=True))
    ]
    source = str(tmp_path / f"train.{form}")
    if form == "parquet":
        arrow.parquet.write_table(arrow.Table.from_pylist(rows), source)
    else:
        source = str(tmp_path / "train.jsonl")
        Path(source).write_text("".join(json.dumps(row) + "\n" for row in rows))
    if form == "hub":
        pytest.importorskip("datasets")
        source = f"hub:{tmp_path}"
    text = ReadSettings(text_field="translation.ko", fields=("meta.n",))
    assert read(source, text).texts == texts["ko"]
    assert read(source, text, where="meta.n>=1").texts == ["둘"]
    assert read(source, text, where="not meta.n").texts == ["하나"]
    pairs = ReadSettings(pairs=("translation.en", "translation.ko"))
    assert read(source, pairs).texts == ["one\n하나", "two\n둘"]
    for name in ("translation.fr", "other.ko"):
        with pytest.raises(UserError, match=rf"no (?:field|column) '{name}' to read text from \(--text-field\)"):
            read(source, ReadSettings(text_field=name))
    (tmp_path / "a.csv").write_text("translation,translation.en\nx,y\n")  # cells of a table hold no objects
    assert read(tmp_path / "a.csv", ReadSettings(text_field="translation.en")).texts == ["y"]
    with pytest.raises(UserError, match=r"no column 'translation\.ko'"):
        read(tmp_path / "a.csv", text)


def test_an_empty_name_is_not_the_folder_one_is_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("text")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="empty name"):
        find_sources(["a.txt", ""])


def test_sources_that_are_not_there(tmp_path: Path) -> None:
    for name, word in (("no.txt", "no such file"), ("*.txt", "no file matches"), ("", "")):
        if name:
            with pytest.raises(UserError, match=word):
                find_sources(str(tmp_path / name))
    with pytest.raises(UserError, match="holds no text files"):
        find_sources(str(tmp_path))
    with pytest.raises(UserError, match="No text"):
        find_sources([])
    for name in ("hub:", "hub::train"):
        with pytest.raises(UserError, match="names no data set"):
            find_sources(name)


def test_weights_belong_to_sources(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    path = str(tmp_path / "a.txt")
    assert [source.weight for source in find_sources({path: 2.5})] == [2.5]
    for weights in ([1.0, 2.0], [0.0], [-1.0], [float("nan")]):
        with pytest.raises(UserError, match="weight"):
            find_sources(path, weights)


def problem(tmp_path: Path, name: str, data: bytes, **read_settings: Any) -> str:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError) as caught:
        read(tmp_path / name, ReadSettings(**read_settings))
    message = str(caught.value)
    assert name in message and "\n" not in message
    return message


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv"])
def test_invalid_utf8_is_told_by_its_line_and_byte(tmp_path: Path, name: str) -> None:
    start = {"a.txt": "좋아 ", "a.jsonl": '{"text": "좋아 ', "a.csv": "text\n좋아 "}[name].encode()
    end = {"a.txt": b" end", "a.jsonl": b' end"}', "a.csv": b" end\n"}[name]
    message = problem(tmp_path, name, start + b"\xff" + end)
    assert f"{name}, line {start.count(10) + 1}, " in message
    assert f"byte {len(start)} " in message and "--errors replace" in message
    assert read(tmp_path / name, ReadSettings(errors="replace")).texts == ["좋아 \ufffd end"]


def test_invalid_utf8_far_into_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "BLOCK_BYTES", 1 << 10)
    good = "한 줄이다.\n\n".encode() * 500
    message = problem(tmp_path, "a.txt", good + b"x\xc3\x28" + good)
    assert "line 1001, " in message and f"byte {len(good) + 1} " in message
    rows = b"text\n" + "한 줄이다.\n".encode() * 500
    assert "line 502, " in problem(tmp_path, "a.csv", rows + b"x\xc3\x28\n")


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"%PDF-1.7 \xe2", "PDF"), (b"PK\x03\x04abc", "ZIP"), (b"text\0more", "byte 4 is 0"),
        (b"\xff\xfea\0b\0", "--encoding utf-16"), (gzip.compress(b"hello", mtime=0), "gzip"),
    ],
)  # fmt: skip
def test_binary_files_are_refused(tmp_path: Path, data: bytes, word: str) -> None:
    assert word in problem(tmp_path, "a.txt", data)
    assert word in problem(tmp_path, "a.txt", data, errors="replace")


def test_a_zero_byte_later_on_is_damage(tmp_path: Path) -> None:
    data = b"x" * 70_000 + b"\n\n" + b"y\0z"
    message = problem(tmp_path, "a.txt", data)
    assert "line 3, " in message and "byte 70003 is 0" in message
    assert read(tmp_path / "a.txt", ReadSettings(errors="replace")).texts[-1] == "y\ufffdz"


@pytest.mark.parametrize("packing", [".gz", ".xz", ".zst"])
def test_damaged_archives(tmp_path: Path, packing: str) -> None:
    packed = PACK[packing]("".join(f"line {n}\n" for n in range(3000)).encode())
    assert "damaged" in problem(tmp_path, f"a.txt{packing}", packed[: len(packed) // 2])
    assert "damaged" in problem(tmp_path, f"a.txt{packing}", b"not packed at all")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"text": "a"}\n{"txt": "b"}\n', ["line 2", "'text'", "'txt'"]),
        (b'{"text": "a"}\n\n{"text": 5}\n', ["line 3", "not text"]),
        (b'{"text": "a"}\n{"text": null}\n', ["line 2", "null"]),
        (b'{"text": "a"}\n{"text": "b"\n', ["line 2", "not JSON"]),
        (b'["text"]\n', ["line 1", "object"]),
        (b'{"text": "a\\ud800b"}\n', ["line 1", "surrogate"]),
        (b'{"text": "x"}\n{"text": "a\\u0000b"}\n', ["line 2", "character 1 of 'text' is U+0000", "--errors replace"]),
        ('{"text": "a\u2028b"}\n{"txt": "b"}\n'.encode(), ["line 2"]),
    ],
)
def test_bad_records_are_told_by_their_line(tmp_path: Path, data: bytes, words: list[str]) -> None:
    message = problem(tmp_path, "a.jsonl", data)
    assert all(word in message for word in words), message


def test_half_a_surrogate_pair_in_an_ernie_record_is_told_by_its_line(tmp_path: Path) -> None:
    data = b'{"sentences": [{"wordpieces": ["a\\ud800", "b"], "qid": [null, "Q1"]}]}\n'
    read_settings = {"text_field": "sentences", "fields": ("sentences",), "anchors": "ernie"}
    assert "line 1: character 1 of 'sentences'" in problem(tmp_path, "a.jsonl", data, **read_settings)
    assert read(tmp_path / "a.jsonl", ReadSettings(**read_settings, errors="replace")).texts == ["a\ufffd b"]


def test_lone_surrogates_and_zeros_can_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a\\ud800b \\ud83d\\ude42"}\n{"text": "c\\u0000d"}\n')
    assert read(tmp_path / "a.jsonl", ReadSettings(errors="replace")).texts == ["a\ufffdb 🙂", "c\ufffdd"]


def test_bad_tables(tmp_path: Path) -> None:
    assert "'body'" in problem(tmp_path, "a.csv", b"text,n\nx,1\n", text_field="body")
    assert "line 3" in problem(tmp_path, "a.csv", b"n,text\n1,x\n2\n")
    assert "a.tsv" in problem(tmp_path, "a.tsv", b"text\tn\n" + b"x" * 10 + b"\ry\n")
    for name, data in (
        ("a.csv", b'n,text\n1,x\n2,"y\n3,z\n4,z\n'),
        ("a.tsv", b'text\tn\nx\t1\n"Oh," said y\t2\nz\t3\n'),
    ):
        assert "line 3: not readable" in problem(tmp_path, name, data), "no text may swallow those behind it"
        assert "doubled" in problem(tmp_path, name, data)
    assert "Parquet" in problem(tmp_path, "a.parquet", b"PAR1 nonsense")
    write(tmp_path / "b.parquet", ["x"])
    with pytest.raises(UserError, match="'body'"):
        read(tmp_path / "b.parquet", ReadSettings(text_field="body"))
    arrow.parquet.write_table(arrow.table({"text": ["x", None]}), tmp_path / "c.parquet")
    with pytest.raises(UserError, match=r"row 2: the field 'text' is null, not text\. .*--where 'text!=null'"):
        read(tmp_path / "c.parquet")
    assert read(tmp_path / "c.parquet", where="text!=null").texts == ["x"]


def test_a_column_of_bytes_is_text_and_one_of_dates_is_none(tmp_path: Path) -> None:
    """Some writers of Parquet do not say that a column is text."""
    texts = [unicodedata.normalize("NFD", "안녕하세요"), "hello"]
    columns = {"text": [text.encode() for text in texts], "lang": [b"ko", b"en"], "day": [date(2020, 1, 2)] * 2}
    arrow.parquet.write_table(arrow.table(columns), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet").texts == ["안녕하세요", "hello"]
    assert read(tmp_path / "a.parquet", where="lang==ko and day=='2020-01-02'").texts == ["안녕하세요"]
    with pytest.raises(UserError, match=r"a\.parquet, row 1: the field 'day' is 2020-01-02 \(date\), not text"):
        read(tmp_path / "a.parquet", ReadSettings(text_field="day"))
    arrow.parquet.write_table(arrow.table({"text": [b"x", "가".encode()[:2]]}), tmp_path / "b.parquet")
    with pytest.raises(UserError, match=r"b\.parquet, row 2: the field 'text' is not UTF-8: byte 0.*--errors replace"):
        read(tmp_path / "b.parquet")
    assert read(tmp_path / "b.parquet", ReadSettings(errors="replace")).texts == ["x", "\ufffd"]


def test_json_that_is_named_holds_records_and_in_a_folder_is_no_text(tmp_path: Path) -> None:
    """C4 is in .json.gz: as plain text, braces and names of fields would be the corpus."""
    write(tmp_path / "a.jsonl.gz", ["글", "text"]).rename(tmp_path / "a.json.gz")
    (tmp_path / "info.json").write_text('{"license": "none"}')
    (tmp_path / "b.txt").write_text("plain")
    assert read(tmp_path / "a.json.gz").texts == read(tmp_path / "*.json.gz").texts == ["글", "text"]
    assert read(tmp_path).texts == ["plain"]


@pytest.mark.parametrize("kind", [".jsonl", ".csv", ".parquet"])
def test_a_field_is_found_however_its_name_is_composed(tmp_path: Path, kind: str) -> None:
    body, score = (unicodedata.normalize("NFD", name) for name in ("본문", "점수"))
    path = tmp_path / f"a{kind}"
    if kind == ".jsonl":
        path.write_text("".join(json.dumps({body: text, score: number}) + "\n" for number, text in enumerate("가나")))
    elif kind == ".csv":
        path.write_text(f"{score},{body}\n0,가\n1,나\n", encoding="utf-8")
    else:
        arrow.parquet.write_table(arrow.table({score: [0, 1], body: ["가", "나"]}), path)
    assert read(path, ReadSettings(text_field="본문", fields=("점수",)), where="점수>=1").texts == ["나"]
    with pytest.raises(UserError, match="'제목'"):
        read(path, ReadSettings(text_field="제목"))


def test_wiki_links_of_decomposed_korean_are_those_of_composed(tmp_path: Path) -> None:
    text = "[[파일:지도.png|작은 지도]][[서울|수도]]는 크다. [[분류:도시]]"
    records = [{"text": unicodedata.normalize(form, text)} for form in ("NFC", "NFD")]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert [each.strip() for each in read(tmp_path / "a.jsonl", ReadSettings(anchors="wiki")).texts] == 2 * [
        "수도는 크다."
    ]


@given(data=st.binary(max_size=200))
@relaxed
def test_any_bytes_are_read_or_refused(tmp_path: Path, data: bytes) -> None:
    for name in ("a.txt", "a.jsonl", "a.csv", "a.txt.gz", "a.txt.zst", "a.txt.xz", "a.parquet"):
        (tmp_path / name).write_bytes(data)
        for errors in ("strict", "replace"):
            try:
                texts = read(tmp_path / name, ReadSettings(errors=errors)).texts
            except UserError:
                continue
            assert all(text.encode() for text in texts)


@pytest.mark.parametrize("anchors", [None, "wiki"])
def test_every_document_knows_its_line(tmp_path: Path, anchors: str | None) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\n \n\n\nthree\n\n  four\nfive\n\n\t\n")
    documents = read(path, ReadSettings(anchors=anchors))
    places = [documents.find_place(number) for number in range(3)]
    assert places == [(str(path), 1), (str(path), 6), (str(path), 8)]
    with pytest.raises(IndexError):
        documents.find_place(3)
    records = tmp_path / "b.jsonl"
    records.write_text('{"text": "a"}\n\n{"text": " "}\n{"text": "b"}\n')
    documents = read(records)
    assert [documents.find_place(number) for number in range(2)] == [(str(records), 1), (str(records), 4)]
    whole = read(path, ReadSettings(one_document=True))
    assert len(whole.texts) == 1 and whole.find_place(0) == (str(path), 1)


def test_a_column_of_strings_that_is_not_utf8_is_refused_or_replaced(tmp_path: Path) -> None:
    """Writers in C do not check their strings, and pyarrow reads them as they are."""
    offsets = arrow.py_buffer(np.array([0, 2, 4], np.int32).tobytes())
    strings = arrow.Array.from_buffers(arrow.string(), 2, [None, offsets, arrow.py_buffer(b"okb\xff")])
    for number, column in enumerate((strings, strings.cast(arrow.binary()).dictionary_encode())):
        path = tmp_path / f"{number}.parquet"
        arrow.parquet.write_table(arrow.table({"text": column, "lang": strings}), path)
        with pytest.raises(UserError, match=r"row 2: the field 'text' is not UTF-8: byte 1 .*--errors replace"):
            read(path)
        assert read(path, ReadSettings(errors="replace"), where="lang!=ko").texts == ["ok", "b\ufffd"]


def test_a_folder_is_read_behind_links_and_each_folder_once(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    for name in ("texts/a/inner", "elsewhere/deep", "texts/.git"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "x.txt").write_text(name)
    (texts / "b").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (texts / "0").symlink_to(texts / "a", target_is_directory=True)  # a second name of what is inside anyway
    (tmp_path / "elsewhere" / "loop").symlink_to(texts, target_is_directory=True)
    (texts / "gone").symlink_to(tmp_path / "nowhere", target_is_directory=True)
    [source] = find_sources(texts)
    assert [str(Path(file.path).relative_to(texts)) for file in source.files] == ["a/inner/x.txt", "b/deep/x.txt"]
    (texts / "lost.txt").symlink_to("nowhere.txt")
    with pytest.raises(UserError, match=r"lost\.txt cannot be read: No such file .* It is a link to nowhere\.txt\."):
        find_sources(texts)


def test_a_pipe_is_told_from_what_is_not_there(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(UserError, match=r"pipe\.txt: neither a file nor a folder.*to a file first"):
        find_sources(tmp_path / "pipe.txt")


def test_a_folder_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "a.txt").write_text("text")
    scan = os.scandir

    def refuse(folder: Path) -> object:  # permissions mean nothing to root
        if folder == tmp_path / "private":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
        return scan(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(UserError, match="private cannot be read: Permission denied"):
        find_sources(tmp_path)
