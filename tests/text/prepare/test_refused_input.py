"""Bad text or settings: one message, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.text.prepare.small_texts import as_bytes, documents_of, some_text

from etude.errors import UserError
from etude.text.prepare.prepare import prepare

BAD: list[tuple[str, bytes | None, dict[str, Any], str]] = [
    ("no.txt", None, {}, "no such file"),
    ("a.txt", b"", {}, "corpus is empty"),
    ("a.txt", b" \n\n \n", {}, "corpus is empty"),
    ("a.txt", b"good\n\nb\xffd", {}, "byte 7 is invalid"),
    ("a.txt", b"\x7fELF\0\0", {}, "not text"),
    ("a.txt", b"bin\0ary", {}, "binary"),
    ("a.txt", b"text", {"encoding": "utf-16", "errors": "replace"}, "is not utf-16: .*--encoding utf-16-le"),
    ("a.jsonl", b'{"text": "x"}\n{"body": "y"}\n', {}, "line 2"),
    ("a.jsonl", b'{"text": "x", "n": 1}\n', {"where": "n>5"}, "left out all 1"),
    ("a.jsonl", b'{"text": "x"}\n', {"where": "score>5"}, "no record has a field 'score'"),
    ("a.jsonl", b'{"text": "x"}\n', {"where": "score>"}, "filter"),
    ("a.txt", b"x", {"where": "n>5"}, "plain text"),
    ("a.txt", b"x", {"text_field": "body"}, "read as plain text"),
    ("a.json", b'{\n "text": "x"\n}\n', {}, r"a\.json, line 1: not JSON .*one JSON object a line"),
    ("a.jsonl", b"text,label\nx,1\n", {}, r"line 1: not JSON .*with commas: if the file is one, name it \.csv\."),
    ("a.jsonl", b'{"en": "x", "ko": "y"}\n', {"text_field": "body", "pairs": "en,ko"}, "left unread"),
    ("a.txt", b"x", {"tokenizer": "bpe"}, "size"),
    ("a.txt", b"x", {"tokenizer": "bep:100"}, "neither"),
    ("a.txt", b"x", {"tokenizer": "no/such/tokenizer.json"}, "neither"),
    ("a.txt", b"x", {"tokenizer": "word:100000", "ids": "uint16"}, "does not fit"),
    ("a.txt", b"x", {"valid": 1.5}, "valid"),
    ("a.txt", b"x", {"valid": 0.999}, "valid=0.999 holds out, or the weights leave out, each of the 1 documents"),
    ("a.txt", b"x", {"weights": [0.001]}, "weights leave out"),
    ("a.txt", b"\x01", {"tokenizer": "wordpiece:30"}, "single token"),
    ("a.txt", b"x", {"errors": "ignore"}, "errors"),
    ("a.txt", b"x", {"weights": [1, 2]}, "weights"),
    ("a.txt", b"x", {"workers": -1}, "workers"),
    ("a.txt", b"x", {"ids": "int8"}, "uint16"),
    ("a.txt", b"x", {"sample_bytes": 0}, "sample"),
    ("a.txt", b"x", {"sample_bytes": -5}, "sample"),
]


@pytest.mark.parametrize(("name", "data", "options", "word"), BAD)
def test_bad_input_is_one_message_and_leaves_nothing(
    tmp_path: Path, name: str, data: bytes | None, options: dict[str, Any], word: str
) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    before = as_bytes(tmp_path)
    options = {"tokenizer": "char", **options}
    with pytest.raises(UserError, match=word) as caught:
        prepare(tmp_path / name, tmp_path / "deep" / "er" / "out", **options)
    assert "\n" not in str(caught.value)
    assert as_bytes(tmp_path) == before and not (tmp_path / "deep").exists()


def test_bad_input_in_a_worker_is_the_same_message(tmp_path: Path, small_blocks: None) -> None:
    (tmp_path / "a.txt").write_bytes("\n\n".join(some_text(50)).encode() + b"\n\nb\xffd\n\n" + b"x\xfe")
    messages = []
    for workers in (0, 2):
        with pytest.raises(UserError) as caught:
            prepare(tmp_path / "a.txt", tmp_path / "out", "char", workers=workers)
        messages.append(str(caught.value))
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt"]
    assert messages[0] == messages[1]


def test_errors_replace_goes_on(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"good\n\nb\xffd")
    assert documents_of(prepare(tmp_path / "a.txt", tmp_path / "c", "char", valid=0, errors="replace")) == [
        "good",
        "b\ufffdd",
    ]
