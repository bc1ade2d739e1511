"""Files and records of tagged sentences: every kind is read, and what is wrong is told with its place."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import pytest

from etude.errors import UserError
from etude.tasks import entity_typing
from etude.tasks.tag.task import Settings, TaggedSentence, learn, parse, read


def test_files_of_all_kinds(tmp_path: Path) -> None:
    columns = tmp_path / "a.conll"
    columns.write_text("Kim NNP I-NP B-PER\nwent VBD I-VP O\n\nSeoul NNP I-NP B-LOC\n", encoding="utf-8")
    found = read(columns)
    assert [item.tags for item in found] == [["B-PER", "O"], ["B-LOC"]] and found.places[1] == f"{columns}:4"
    assert [item.tags for item in read(columns, {"tags": "1"})] == [["NNP", "VBD"], ["NNP"]]
    assert read(columns, labelled=False)[0] == TaggedSentence(["Kim", "went"], None, False, [1, 2])
    lines = tmp_path / "a.jsonl"
    lines.write_text(
        '{"tokens": ["Kim", "went"], "upos": ["PROPN", "VERB"], "ner": ["B-PER", "O"]}\n'
        '{"chars": ["서", "울", " ", "로"], "ner": ["B-LC", "I-LC", "O", "O"]}\n',
        encoding="utf-8",
    )
    first, second = read(lines)
    assert first.tags == ["B-PER", "O"] and not first.characters and second.characters
    assert read(lines, {"tags": "ner"}).places == [f"{lines}:1", f"{lines}:2"]
    assert parse({"text": "Kim went"}, {}, "x", labelled=False).words == ["Kim", "went"]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"tokens": [], "ner": []}, "x:7: a sentence without a word"),
        ({"tokens": "  ", "ner": []}, "x:7: a sentence without a word"),
        ({"tokens": ["a", "b"], "ner": ["O"]}, "x:7: 2 words in 'tokens', and 1 tags in 'ner'"),
        ({"tokens": ["a", ""], "ner": ["O", "O"]}, "x:7, word 2: an empty word"),
        ({"tokens": ["a", "b"], "ner": ["O", ""]}, "x:7, word 2: no tag in the column 'ner'"),
        ({"tokens": ["a", None], "ner": ["O", "O"]}, "x:7: the column 'tokens' holds"),
        ({"tokens": ["a"]}, "x:7: there is no column 'ner'"),
        ({"ner": ["O"]}, "x:7: there is no column 'tokens'"),
        ({"tokens": ["\ud800"], "ner": ["O"]}, "x:7: 'tokens' holds half a surrogate pair"),
    ],
)
def test_bad_records_are_told_with_their_place(record: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as told:
        parse(record, {}, "x:7")
    assert str(told.value).startswith(message)


def test_bad_files_are_told_with_their_line_or_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text("Kim B-PER\nwent\n\nSeoul B-LOC\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"a\.conll:2: 1 columns"):
        read(path)
    kept = read(path, skip_bad=True)
    assert len(kept) == 1 and len(kept.bad) == 1 and "a.conll:2" in kept.bad[0]
    path.write_text("Kim B-PER\nwent O\n\nto O\nSeoul B_LOC\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"a\.conll:5: 'B_LOC' is no tag of a chunk.*task.scheme=none"):
        learn(read(path), Settings())
    assert learn(read(path), Settings(scheme="none"))["scheme"] is None
    path.write_text("Kim B-PER\nwent O\nSeoul I-LOC\n", encoding="utf-8")
    assert learn(read(path), Settings())["scheme"] == "iob2", "as it is, one slip in it"
    with pytest.raises(UserError, match=r"a\.conll:3: the tag 'I-LOC' cannot stand here in iob2"):
        learn(read(path), Settings(scheme="iob2"))


def test_tags_and_types_in_decomposed_hangul_are_the_same() -> None:
    """Those of one file were refused by a model that another had taught."""
    name = unicodedata.normalize("NFD", "인물")
    assert parse({"tokens": ["하나"], "tags": [f"B-{name}"]}, {}, "here").tags == ["B-인물"]
    mention = {"text": "하나", "start": 0, "end": 2, "labels": [name]}
    assert entity_typing.parse(mention, {}, "here").labels == {"인물"}
