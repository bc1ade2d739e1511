"""Texts for features are the lines of a file, as an editor shows them."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from etude.errors import UserError
from etude.inference import features
from etude.inference.features import extract, read_texts
from tests.tiny_models import encoder


def test_lines_come_without_their_ends_and_without_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for content in ("하나\ntwo", "하나\r\ntwo\r\n"):
        for encoding in ("utf-8", "utf-8-sig"):
            path.write_bytes(content.encode(encoding))
            assert read_texts(path, None) == ["하나", "two"]
    path.write_bytes("하나\u2028둘\n".encode())
    assert read_texts(path, None) == ["하나\u2028둘"]


def test_a_packed_text_is_read_and_a_table_is_known_by_its_last_suffix(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress("하나\ntwo\n".encode()))
    assert read_texts(tmp_path / "a.txt.gz", None) == ["하나", "two"]
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(b"one\ntwo\n")[:-9])
    with pytest.raises(UserError, match=r"cut\.txt\.gz is damaged"):
        read_texts(tmp_path / "cut.txt.gz", None)
    (tmp_path / "A.TXT.GZ").write_bytes(gzip.compress(b"one\n"))
    assert read_texts(tmp_path / "A.TXT.GZ", None) == ["one"]
    table = tmp_path / "reviews.txt.jsonl"
    table.write_text('{"text": "하나"}\n', encoding="utf-8")
    assert read_texts(table, None) == ["하나"]


def test_what_is_no_text_is_told_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for content, message in ((b"a\n \nb\n", r"a\.txt:2: .*empty"), (b"\xff", "not UTF-8 at byte 0"), (b"", "no lines")):
        path.write_bytes(content)
        with pytest.raises(UserError, match=message) as told:
            read_texts(path, None)
        assert "--skip-bad" not in str(told.value), "there is no such option here"
    path.write_bytes(b"a\n \nb\n")
    assert read_texts(path, None, skip_empty=True) == ["a", "b"]


def test_texts_that_are_cut_are_told(caplog: pytest.LogCaptureFixture) -> None:
    model = encoder()
    assert model.model.context is not None
    extract(model, ["the cat"])
    assert not caplog.messages
    extract(model, ["the cat " * model.model.context, "the cat"])
    assert caplog.messages == [f"1 of 2 texts are longer than {model.model.context} tokens and were cut."]


def test_layers_that_there_are_not_are_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.txt").write_text("the cat\n", encoding="utf-8")
    monkeypatch.setattr(features, "load", lambda run: encoder())
    features.extract_file("a run", tmp_path / "a.txt", tmp_path / "a.npz", layers="last4")
    assert [message.partition(":")[2] for message in caplog.messages] == [" all of them are taken."]


def test_another_pooling_or_layer_is_refused() -> None:
    with pytest.raises(UserError, match="pool is one of mean, max, start, last, none, not 'average'"):
        extract(encoder(), ["the cat"], pool="average")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"^layers=\[9\]: this model has the layers 0"):
        extract(encoder(), ["the cat"], layers=[9])


def test_advice_names_the_options_of_the_verb(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"opinion": "a"}\n', encoding="utf-8")
    with pytest.raises(UserError, match=r"there is no column 'text'.*opinion.* --text NAME names the column") as told:
        read_texts(path, None)
    assert "-c " not in str(told.value)
    assert read_texts(path, "opinion") == ["a"]
    path.write_text('{"text": ""}\n', encoding="utf-8")
    with pytest.raises(UserError, match=r"a\.jsonl:1: .*is empty") as told:
        read_texts(path, None)
    assert "--skip-bad" not in str(told.value)
