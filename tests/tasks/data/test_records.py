"""Readers: what was written is read back, whatever the letters; what is wrong is told with its line."""

from __future__ import annotations

import base64
import csv
import datetime
import gzip
import io
import json
import lzma
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from etude.errors import UserError
from etude.inference.predictor import holds_lines
from etude.tasks.classify import LabelledText, read
from etude.tasks.data.examples import Examples, label_names, label_numbers
from etude.tasks.data.records import dump_record, records
from tests.shared_data import DATA

TASKS = DATA / "tasks"
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

whole = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30).filter(str.strip)
flat = whole.filter(lambda text: not set(text) & set("\t\n\r"))
label = st.sampled_from(["0", "1", "긍정", "a label"])


def rows_of(found: Examples[LabelledText]) -> list[tuple[str, str | None]]:
    return [(item.texts[0], item.label) for item in found]


def as_jsonl(rows: list[tuple[str, str]]) -> bytes:
    return b"".join(json.dumps({"label": b, "text": a}, ensure_ascii=False).encode() + b"\n" for a, b in rows)


def as_csv(rows: list[tuple[str, str]]) -> bytes:
    file = io.StringIO(newline="")
    csv.writer(file).writerows([("text", "label"), *rows])
    return file.getvalue().encode()


def as_tsv(rows: list[tuple[str, str]]) -> bytes:
    return "".join(f"{a}\t{b}\n" for a, b in [("text", "label"), *rows]).encode()


@given(st.lists(st.tuples(whole, label), min_size=1, max_size=6), st.sampled_from(["", ".gz", ".xz", ".zst"]))
@quick
def test_jsonl_round_trip(tmp_path: Path, rows: list[tuple[str, str]], squeezed: str) -> None:
    squeeze: Callable[[bytes], bytes] = {
        "": bytes,
        ".gz": gzip.compress,
        ".xz": lzma.compress,
        ".zst": zstandard.ZstdCompressor().compress,
    }[squeezed]
    path = tmp_path / f"examples.jsonl{squeezed}"
    path.write_bytes(squeeze(as_jsonl(rows)))
    found = read(path)
    assert rows_of(found) == rows
    assert found.places == [f"{path}:{line}" for line in range(1, len(rows) + 1)]


@given(st.lists(st.tuples(whole, label), min_size=1, max_size=6))
@quick
def test_csv_round_trip(tmp_path: Path, rows: list[tuple[str, str]]) -> None:
    """Any letters at all: commas, quotes and line ends inside a field."""
    path = tmp_path / "examples.csv"
    path.write_bytes(as_csv(rows))
    found = read(path)
    assert rows_of(found) == rows


@pytest.mark.parametrize("name", ["L.CSV", "L.Csv", "L.csv.GZ", "L.CSV.XZ", "L.CSV.ZST", "L.v2.CSV"])
def test_endings_count_in_any_case(tmp_path: Path, name: str) -> None:
    pack: dict[str, Callable[[bytes], bytes]] = {
        ".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.ZstdCompressor().compress,
    }  # fmt: skip
    path = tmp_path / name
    rows = [("a fine film", "1"), ("a dull one", "0")]
    path.write_bytes(pack.get(path.suffix.lower(), bytes)(as_csv(rows)))
    assert rows_of(read(path)) == rows
    assert not holds_lines(path)


@given(st.lists(st.tuples(flat, label), min_size=1, max_size=6))
@quick
def test_tsv_round_trip(tmp_path: Path, rows: list[tuple[str, str]]) -> None:
    """A quotation mark is a letter."""
    path = tmp_path / "examples.tsv"
    path.write_bytes(as_tsv(rows))
    found = read(path)
    assert rows_of(found) == rows


@given(st.binary(max_size=60), st.sampled_from([".jsonl", ".csv", ".tsv", ".jsonl.gz", ".csv.xz", ".tsv.zst"]))
@quick
def test_any_bytes_are_examples_or_one_message(tmp_path: Path, content: bytes, suffix: str) -> None:
    path = tmp_path / f"noise{suffix}"
    path.write_bytes(content)
    try:
        assert isinstance(read(path), Examples)
    except UserError as problem:
        assert str(path) in str(problem)


@given(
    st.lists(st.tuples(flat, label), min_size=1, max_size=5),
    st.integers(0, 200),
    st.sampled_from(["jsonl", "tsv", "csv"]),
)
@quick
def test_damage_is_told_or_harmless(tmp_path: Path, rows: list[tuple[str, str]], place: int, kind: str) -> None:
    """One byte of a good file is lost."""
    content = {"jsonl": as_jsonl, "tsv": as_tsv, "csv": as_csv}[kind](rows)
    path = tmp_path / f"damaged.{kind}"
    path.write_bytes(content[: place % len(content)] + content[place % len(content) + 1 :])
    try:
        found = read(path, skip_bad=True)
        assert len(found) + len(found.bad) <= len(rows) + 1
    except UserError as problem:
        assert str(path) in str(problem)


def write(folder: Path, name: str, content: str) -> Path:
    path = folder / name
    path.write_bytes(content.encode())
    return path


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.jsonl",
            '{"text": "x", "label": 1}\n{"text": "y"}\n',
            r"a\.jsonl:2: there is no column 'label'.* -c label=COLUMN;",
        ),
        ("a.jsonl", '{"txt": "x", "label": 1}\n', r":1: there is no column 'text'. Did you mean 'txt'"),
        ("a.jsonl", '{"text": "x", "label": 1}\n\n{"text": " ", "label": 1}\n', r":3: the text .* is empty"),
        ("a.jsonl", '{"text": "x", "label": 1}\n{"text": "x", "label": \n', r":2: not JSON"),
        ("a.jsonl", "text,label\nx,1\n", r":1: not JSON.*table with commas: if the file is one, name it \.csv\."),
        ("a.jsonl", "text\tlabel\nx, y\t1\n", r":1: not JSON.*table with tabs: if the file is one, name it \.tsv\."),
        ("a.jsonl", '{"text": "x, y", "label": \n', r":1: not JSON: [^.]*\. Every line must be one object\.$"),
        ("a.jsonl", "[1, 2]\n", r":1: \[1, 2\] is not an object"),
        ("a.jsonl", '{"text": ["x"], "label": 1}\n', r':1: the column \'text\' holds \["x"\], not a text'),
        ("a.jsonl", '{"text": "x", "label": null}\n', r":1: the column 'label' holds null"),
        ("a.jsonl", '{"text": "x", "label": NaN}\n', r":1: the column 'label' holds NaN, so there is no label"),
        ("a.jsonl", '{"text": "x", "label": " "}\n', r":1: the label .* is empty"),
        ("a.jsonl", '{"text": "a\\ud800", "label": 1}\n', r":1: .*surrogate"),
        ("a.csv", "text,label\nx,1\ny\n", r"a\.csv:3: 1 fields, and the header names 2"),
        ("a.csv", 'text,label\nx,1\n"y,1\n', r":3: not CSV"),
        ("a.csv", "text,text,label\nx,y,1\n", r":1: the header names 'text' twice"),
        ("a.csv", 'text,label\n"two\nlines",1\n,0\n', r":4: the text .* is empty"),
        ("a.tsv", "text\tlabel\nx y\t1\nx\ty\t1\n", r"a\.tsv:3: 3 fields"),
        (
            "a.csv",
            "text;label\nx;1\n",
            r":2: its columns are divided by semicolons \('text;label'\)\. Save it with commas",
        ),
        ("a.csv", "text\tlabel\nx\t1\n", r":2: its columns are divided by tabs .* Save it with the ending \.tsv"),
        ("a.tsv", "phrase\tlabel\nx\t1\n", r":2: there is no column 'text'.*as in -c text=phrase; 'etude tasks TASK'"),
        (
            "a.csv",
            "id,the words,mark\n1,good stuff,5\n",
            r"no columns 'text' and 'label'.*as in -c 'text=the words' -c label=mark; 'etude tasks TASK'",
        ),
        ("a.csv", "id,text,stars\n1,good,5\n", r"no column 'label'.*as in -c label=stars; 'etude tasks TASK'"),
        ("a.csv", 'text,label\n" ",1\n', r":2: the text in the column 'text' is empty.*--skip-bad"),
        ("a.jsonl", "", r"a\.jsonl holds no examples"),
        ("a.csv", "text,label\n", r"holds no examples"),
        ("a.txt", "x", r"a\.txt: examples are read from \.jsonl, \.csv, \.tsv, \.json"),
        ("a.jsonl.gz", "not squeezed", r"a\.jsonl\.gz cannot be read"),
    ],
)
def test_one_message_with_file_and_line(tmp_path: Path, name: str, content: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(write(tmp_path, name, content))


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"There is no file .*gone\.csv"):
        read(tmp_path / "gone.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(UserError, match=r"folder\.csv is a folder, and a file is expected"):
        read(tmp_path / "folder.csv")


def test_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "x", "label": 1}\n{"text": "\xff", "label": 1}\n')
    with pytest.raises(UserError, match=r"a\.jsonl:2: not UTF-8 at byte 10"):
        read(path)
    assert rows_of(read(path, skip_bad=True)) == [("x", "1")]


def test_bad_examples_are_skipped_on_request_and_counted(tmp_path: Path) -> None:
    path = write(
        tmp_path, "a.jsonl", '{"text": "x", "label": 1}\n{"text": "", "label": 1}\noops\n{"text": "y", "label": 0}\n'
    )
    found = read(path, skip_bad=True)
    assert rows_of(found) == [("x", "1"), ("y", "0")] and found.places == [f"{path}:1", f"{path}:4"]
    assert len(found.bad) == 2 and ":2:" in found.bad[0] and ":3:" in found.bad[1]


def test_an_unseen_label(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", "review,stars\ngood,positive\nbad,negativ\n")
    found = read(path, {"text": "review", "label": "stars"})
    labels = [item.label for item in found]
    with pytest.raises(UserError, match=r"a\.csv:3: the label 'negativ' .* Did you mean 'negative'"):
        label_numbers(labels, ["negative", "positive"], found.places)
    assert label_numbers(labels, ["positive", "negativ"], found.places).tolist() == [0, 1]


def test_labels_have_an_order_of_their_own() -> None:
    assert label_names(["10", "9", "1", "10"]) == ["1", "9", "10"]
    assert label_names(["b", "10", "a"]) == ["10", "a", "b"]


def test_labels_of_json_and_no_labels(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", '{"text": "x", "label": true}\n{"text": "y", "label": 0}\n')
    assert rows_of(read(path)) == [("x", "true"), ("y", "0")]
    assert rows_of(read(path, labelled=False)) == [("x", None), ("y", None)]


def test_a_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    for name, mark in (("a.csv", ","), ("a.tsv", "\t")):
        path = tmp_path / name
        path.write_bytes(b"\xef\xbb\xbf" + f"text{mark}label\r\nx{mark}1\r\n".encode())
        found = read(path)
        assert rows_of(found) == [("x", "1")] and found.places == [f"{path}:2"]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".txt", ".jsonl"])
def test_lines_that_end_in_a_return_alone(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    mark = "," if suffix == ".csv" else "\t"
    lines = [f"text{mark}label", f"x{mark}1", "", f"y{mark}2"]
    if suffix == ".jsonl":
        lines = ["", '{"text": "x", "label": "1"}', "", '{"text": "y", "label": "2"}']
    for end in ("", "\r"):
        path.write_bytes(b"\xef\xbb\xbf" + ("\r".join(lines) + end).encode())
        found = read(path)
        assert rows_of(found) == [("x", "1"), ("y", "2")] and found.places == [f"{path}:2", f"{path}:4"]


def test_long_fields(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", f"text,label\n{'x' * 200_000},1\n")
    assert len(read(path)[0].texts[0]) == 200_000


@pytest.mark.skipif(not TASKS.is_dir(), reason="the development data is not beside this checkout")
def test_real_files() -> None:
    found = read(TASKS / "cola" / "valid.jsonl.xz")
    assert len(found) == 526 and label_names(item.label for item in found) == ["0", "1"]
    korean = read(TASKS / "korean_hate_speech" / "train.jsonl.xz", {"label": "hate"})
    assert len(korean) == 7896 and label_names(item.label for item in korean) == ["hate", "none", "offensive"]


def test_labels_in_decomposed_hangul_are_the_same_labels(tmp_path: Path) -> None:
    path = tmp_path / "x.tsv"
    names = ["긍정", unicodedata.normalize("NFD", "긍정")]
    path.write_text("text\tlabel\n" + "".join(f"x\t{name}\n" for name in names), encoding="utf-8")
    assert [item.label for item in read(path)] == ["긍정", "긍정"]


def test_rows_of_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "labels.parquet"
    table = {"text": ["하나", "two"], "label": [1, 0], "day": [datetime.date(2026, 1, 2)] * 2, "tokens": [["a"], ["b"]]}
    pyarrow.parquet.write_table(pyarrow.table(table), path)
    assert list(records(path)) == [
        (f"{path}:1", {"text": "하나", "label": 1, "day": "2026-01-02", "tokens": ["a"]}),
        (f"{path}:2", {"text": "two", "label": 0, "day": "2026-01-02", "tokens": ["b"]}),
    ]
    dates = tmp_path / "dates.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": [[datetime.date(2024, 5, 1)]], "label": ["a"]}), dates)
    with pytest.raises(UserError, match=r'dates\.parquet:1: the column \'text\' holds \["2024-05-01"\], not a text'):
        read(dates)
    texts = [b"good", "좋다".encode(), b"b\xff"]  # bytes, as many writers leave them; a column that nobody reads
    pyarrow.parquet.write_table(pyarrow.table({"text": texts, "label": list("aba"), "image": [b"\x89"] * 3}), path)
    with pytest.raises(UserError, match=r"labels\.parquet:3: the column 'text' holds .*xff.*, not a text"):
        read(path)
    some = read(path, skip_bad=True)
    assert [item.texts[0] for item in some] == ["good", "좋다"] and len(some.bad) == 1
    path.write_bytes(b"no parquet at all")
    with pytest.raises(UserError, match="cannot be read as Parquet"):
        list(records(path))


def test_lists_and_maps_of_parquet_hold_plain_values(tmp_path: Path) -> None:
    """A record is written again (a split of a study, a copy of an example): dates in a list broke that off."""
    pytest.importorskip("pyarrow")
    import pyarrow
    import pyarrow.parquet

    day, path = datetime.date(2026, 1, 2), tmp_path / "a.parquet"
    columns = {
        "days": pyarrow.array([[day, None]]),
        "map": pyarrow.array([[("a", b"b")]], type=pyarrow.map_(pyarrow.string(), pyarrow.binary())),
        "image": pyarrow.array([{"bytes": b"\x89", "at": day}]),
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    [(_, record)] = records(path)
    image = {"bytes": b"\x89", "at": "2026-01-02"}
    assert record == {"days": ["2026-01-02", None], "map": [["a", "b"]], "image": image}
    written = {**record, "image": {**image, "bytes": base64.b64encode(b"\x89").decode()}}
    assert json.loads(dump_record(record)) == written


halves = st.text(st.characters() | st.characters(categories=["Cs"]), max_size=5)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | halves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(halves, inner, max_size=3),
    max_leaves=5,
)


@given(st.lists(st.dictionaries(halves, values, max_size=3), max_size=2))
@settings(parent=quick, max_examples=30)
def test_what_is_written_as_lines_is_read_back(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    """Whatever its columns hold: half a surrogate pair, U+2028, the names of other columns."""
    path = tmp_path / "written.jsonl"
    path.write_text("".join(dump_record(row) + "\n" for row in rows), encoding="utf-8")
    # two halves that meet are read as the character that they are
    assert [record for _, record in records(path)] == [json.loads(json.dumps(row)) for row in rows]


def test_columns_are_known_in_any_case(tmp_path: Path) -> None:
    """A spreadsheet's "Review" is a review; a name that fits exactly goes first."""
    (tmp_path / "a.csv").write_text("Id,Review,Label\n1,fine,good\n")
    assert rows_of(read(tmp_path / "a.csv")) == [("fine", "good")]
    (tmp_path / "b.csv").write_text("TEXT,review,label\nno,yes,good\n")
    assert rows_of(read(tmp_path / "b.csv")) == [("yes", "good")]


def test_text_files_with_tabs_are_tables(tmp_path: Path) -> None:
    """NSMC is published as ratings_train.txt: a header, tabs, and quotation marks that are letters."""
    (tmp_path / "ratings_train.txt").write_text('id\tdocument\tlabel\n1\t"좋아요\t1\n2\t별로\t0\n', encoding="utf-8")
    rows = [record for _, record in records(tmp_path / "ratings_train.txt")]
    assert rows == [
        {"id": "1", "document": '"좋아요', "label": "1"},
        {"id": "2", "document": "별로", "label": "0"},
    ]
    (tmp_path / "lines.txt").write_text("a text\nanother\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"from \.txt files whose first line has tabs"):
        list(records(tmp_path / "lines.txt"))
    with pytest.raises(UserError, match="There is no file"):
        list(records(tmp_path / "none.txt"))
