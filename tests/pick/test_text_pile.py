"""The text of a pick: files of any form and field in one pile, all problems at once, the corpus of just that."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as arrow
import pyarrow.parquet
import pytest

from etude.pick.problems import Problem
from etude.pick.text_pile import TextPile, find_text, read_text
from etude.text.corpus.corpus import Corpus


def write_lines(path: Path, items: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items), encoding="utf-8")
    return str(path)


def texts_of(corpus: Corpus) -> list[str]:
    """Documents of both splits, as text."""
    documents = []
    for split in ("train", "valid"):
        if corpus.manifest["parts"][split]["documents"]:
            part = Corpus.open(corpus.folder, split=split)
            for number in range(len(part.documents)):
                tokens = part.tokens(int(part.documents[number]), int(part.documents[number + 1]))
                documents.append(part.tokenizer.decode(tokens))
    return sorted(documents)


def check_text(
    sources: list[str], text_field: str | list[str] | None = None, errors: str = "strict", **options: bool
) -> tuple[TextPile | None, list[Problem]]:
    found, problems = find_text(sources, text_field, errors)
    pile, read_problems = read_text(found, errors, **options)
    return pile, problems + read_problems


def pile_of(sources: list[str], **options: Any) -> TextPile:
    pile, problems = check_text(sources, **options)
    assert pile is not None, [str(problem) for problem in problems]
    return pile


@pytest.fixture
def mixed(tmp_path: Path) -> list[str]:
    plain = tmp_path / "a.txt"
    plain.write_text("plain one\n\nplain two\n", encoding="utf-8")
    table = tmp_path / "c.csv"
    table.write_text("id,review\n1,a review\n2,another review\n", encoding="utf-8")
    pyarrow.parquet.write_table(arrow.table({"body": ["a body"]}), tmp_path / "d.parquet")
    packed = tmp_path / "e.jsonl.gz"
    packed.write_bytes(gzip.compress(b'{"text": "a text", "document": "not this"}\n'))
    return [
        str(plain), write_lines(tmp_path / "b.jsonl", [{"content": "한국어 문서"}]), str(table),
        str(tmp_path / "d.parquet"), str(packed),
    ]  # fmt: skip


EXPECTED = ["a body", "a review", "a text", "another review", "plain one", "plain two", "한국어 문서"]


def test_files_of_different_fields_are_one_pile(mixed: list[str], tmp_path: Path) -> None:
    pile, problems = check_text(mixed)
    assert pile is not None
    assert [file.text_field for file in pile.files] == ["text", "content", "review", "body", "text"]
    assert pile.documents == 7 and not pile.duplicates
    assert len(problems) == 3 and not any(problem.is_fatal for problem in problems), "each guess is said"
    corpus = pile.prepare(tmp_path / "out" / "corpus", "char")
    assert texts_of(corpus) == EXPECTED


def test_a_field_can_be_named_for_one_file(mixed: list[str], tmp_path: Path) -> None:
    pile = pile_of(mixed, text_field=[f"{mixed[4]}=document"])
    assert [file.text_field for file in pile.files] == ["text", "content", "review", "body", "document"]
    assert "not this" in texts_of(pile.prepare(tmp_path / "corpus", "char"))


def test_one_field_for_all_goes_to_prepare_as_it_is(tmp_path: Path) -> None:
    sources = [write_lines(tmp_path / f"{n}.jsonl", [{"body": f"text {n}", "text": 1}]) for n in range(2)]
    pile = pile_of(sources, text_field="body")
    assert pile.unify_fields(tmp_path / "again") == (sources, "body")
    assert not (tmp_path / "again").exists()


def test_a_pile_that_grows_is_written_again_under_its_new_field(tmp_path: Path) -> None:
    """What lies in the folder from before has the field that most files had then."""
    old = [write_lines(tmp_path / "a.jsonl", [{"text": "a"}]), write_lines(tmp_path / "b.jsonl", [{"my/field": "b"}])]
    new = [write_lines(tmp_path / f"{name}.jsonl", [{"body": name}]) for name in "cd"]
    folder = tmp_path / "again"
    for sources, field in ((old, "text"), ([*old, *new], "body")):
        paths, common = pile_of(sources).unify_fields(folder)
        assert common == field
        for path in paths:
            assert field in json.loads(Path(path).read_text())


def test_the_fingerprint_follows_the_content(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"text": "x", "body": "y"}])
    first = pile_of([path]).fingerprint
    assert pile_of([path]).fingerprint == first
    assert pile_of([path], text_field="body").fingerprint != first
    assert pile_of([path], unique=True).fingerprint != first
    write_lines(Path(path), [{"text": "z", "body": "y"}])
    assert pile_of([path]).fingerprint != first


def test_all_problems_at_once(tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(b'{"text": "fine"}\n{"txt": "x"}\n[1]\n{"text": 5}\n{no\n' + '{"text": "굿"}\n'.encode("cp949"))
    korean = tmp_path / "cp949.txt"
    korean.write_bytes("ascii\nline\n\n한글 문서\n".encode("cp949"))
    table = tmp_path / "table.csv"
    table.write_text("id,memo\n1,x\n", encoding="utf-8")
    archive = tmp_path / "scan.txt"
    archive.write_bytes(b"%PDF-1.4 ...")
    sources = [str(tmp_path / "gone.txt"), str(bad), str(korean), str(table), str(archive), str(tmp_path / "no*.txt")]
    pile, problems = check_text(sources)
    assert pile is None
    messages = [str(problem) for problem in problems if problem.is_fatal]
    for start in (
        f"{tmp_path}/gone.txt: no such file", f"{tmp_path}/no*.txt: no file matches", f"{bad}:2: no field 'text'",
        f"{bad}:3: a JSON object", f"{bad}:4: the field 'text' is 5", f"{bad}:5: not JSON", f"{bad}:6 is not UTF-8",
        f"{korean}:4 is not UTF-8", f"{table} has no column 'text'", f"{archive} is not text but a PDF",
    ):  # fmt: skip
        assert any(message.startswith(start) for message in messages), (start, messages)
    assert len(messages) == 10
    assert any("It reads as CP949" in message for message in messages)


def test_bad_records_can_be_left_out(tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(b'{"text": "fine"}\n{"txt": "x"}\n{"text": "good"}\n{no\n')
    plain = tmp_path / "a.txt"
    plain.write_text("plain", encoding="utf-8")
    pile, problems = check_text([str(bad), str(plain)], skip_bad=True)
    assert pile is not None and pile.documents == 3
    (problem,) = problems
    assert problem.count == 2 and not problem.is_fatal and f"{bad}:2:" in str(problem)
    assert texts_of(pile.prepare(tmp_path / "corpus", "char")) == ["fine", "good", "plain"]


def test_invalid_bytes_can_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"ab\xffc")
    assert check_text([str(path)])[0] is None
    pile = pile_of([str(path)], errors="replace")
    assert texts_of(pile.prepare(tmp_path / "corpus", "char")) == ["ab\ufffdc"]
    assert any("--errors is" in str(problem) for problem in check_text([str(path)], errors="ignore")[1])


def test_empty_sources_and_duplicates(tmp_path: Path) -> None:
    empty, path = tmp_path / "empty.txt", tmp_path / "a.txt"
    empty.write_text("\n\n")
    path.write_text("same\n\nsame\n\nother\n")
    pile, problems = check_text([str(empty), str(path)])
    assert pile is None
    assert str(problems[0]).startswith(f"{empty}: no document")
    pile, problems = check_text([str(path)])
    assert pile is not None and pile.duplicates == 1
    assert "--unique" in str(problems[0])
    pile = pile_of([str(path)], unique=True)
    assert texts_of(pile.prepare(tmp_path / "corpus", "char")) == ["other", "same"]


def test_fields_that_make_no_sense(mixed: list[str]) -> None:
    for text_field, words in (
        (["gone.csv=x"], "gone.csv is not among the text"), (["a", "b"], "for all files"), (["=x"], "names no field"),
    ):  # fmt: skip
        _, problems = check_text(mixed, text_field)
        assert any(problem.is_fatal and words in str(problem) for problem in problems)


def test_a_large_pile_is_read_by_workers(tmp_path: Path) -> None:
    path = tmp_path / "big.txt"
    path.write_text("".join(f"document number {n} with some words in it\n\n" for n in range(60_000)))
    pile = pile_of([str(path)])
    assert pile.documents == 60_000 and pile.bytes > 2_000_000
