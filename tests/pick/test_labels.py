"""Labelled files: every kind and form is read back as it was, every problem has the user's own file and line."""

from __future__ import annotations

import csv
import gzip
import io
import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from etude.errors import UserError
from etude.pick.labels import read_labels
from etude.pick.problems import MAX_LINES, Problem, merge_alike, raise_all
from etude.runs.task_plan import task_module
from tests.tasks.labelled_records import records

KINDS = ("classify", "pair", "similarity", "choice", "rank", "relation", "tag", "span")


def write_lines(path: Path, items: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items), encoding="utf-8")
    return path


def write_csv(path: Path, rows: list[list[str]], separator: str = ",") -> Path:
    buffer = io.StringIO()
    csv.writer(buffer, delimiter=separator, lineterminator="\n").writerows(rows)
    path.write_text(buffer.getvalue(), encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_read_back(kind: str, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", records(kind, 12, 0))
    labelled, problems = read_labels(kind, path)
    assert not [problem for problem in problems if problem.is_fatal]
    assert len(labelled) == len(labelled.records) == len(labelled.strata) == len(labelled.groups) == 12
    assert labelled.examples.places == [f"{path}:{number}" for number in range(1, 13)]
    assert labelled.examples.items == task_module(kind).read(path).items
    part = labelled.take([7, 2, 3])
    target = part.write(tmp_path / "out" / "part.jsonl")
    assert task_module(kind).read(target, part.columns).items == part.examples.items
    assert part.examples.places == [f"{path}:8", f"{path}:3", f"{path}:4"]
    assert part.join(labelled.take([0])).examples.items == [*part.examples.items, labelled.examples[0]]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.csv.gz"])
def test_tables_with_columns_of_other_names(name: str, tmp_path: Path) -> None:
    path = write_csv(
        tmp_path / "t", [["리뷰", "평가"], ["재밌다", "긍정"], ["지루해", "부정"]], "\t" if "tsv" in name else ","
    )
    data = path.read_bytes()
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    columns = {"text": "리뷰", "label": "평가"}
    labelled, problems = read_labels("classify", path, columns)
    assert not problems
    assert labelled.classes == ["긍정", "부정"]
    assert labelled.examples.places == [f"{path}:2", f"{path}:3"]
    again = task_module("classify").read(labelled.write(tmp_path / "w.jsonl"), columns)
    assert again.items == labelled.examples.items


def test_files_of_columns_keep_the_line_of_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text("서울 B-LOC\n에 O\n\n그 O\n\nPark B-PER\nran O\n", encoding="utf-8")
    labelled, problems = read_labels("tag", path)
    assert not problems
    assert labelled.examples.places == [f"{path}:1", f"{path}:4", f"{path}:6"]
    assert labelled.strata[0] == {"B-LOC", "O"}
    again = task_module("tag").read(labelled.write(tmp_path / "w.jsonl"))
    assert [item.words for item in again] == [["서울", "에"], ["그"], ["Park", "ran"]]
    assert [item.tags for item in again] == [["B-LOC", "O"], ["O"], ["B-PER", "O"]]


def test_pairs_of_one_query_are_one_example(tmp_path: Path) -> None:
    rows = [["q", "c", "y"], ["who", "a", "0"], ["who", "b", "1"], ["where", "c", "1"], ["where", "d", "0"]]
    path = write_csv(tmp_path / "a.csv", rows)
    columns = {"query": "q", "candidate": "c", "label": "y"}
    labelled, problems = read_labels("rank", path, columns)
    assert not problems
    assert [item.candidates for item in labelled.examples] == [("a", "b"), ("c", "d")]
    assert labelled.examples.places == [f"{path}:2", f"{path}:4"]
    again = task_module("rank").read(labelled.write(tmp_path / "w.jsonl"), columns)
    assert again.items == labelled.examples.items == task_module("rank").read(path, columns).items


def test_all_bad_lines_are_named_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [
        {"text": "good", "label": "a"},
        {"text": " ", "label": "a"},
        {"text": "x", "label": ""},
        {"text": "y"},
        {"text": "z", "label": None},
        {"text": 3, "label": "a"},
        {"label": "b"},
    ]
    data = "".join(json.dumps(line) + "\n" for line in lines).encode() + b"{broken\n" + '{"text": "굿"'.encode("cp949")
    path.write_bytes(data)
    labelled, problems = read_labels("classify", path)
    assert len(labelled) == 1
    assert all(problem.is_fatal for problem in problems)
    for line in range(2, 10):
        assert any(str(problem).startswith(f"{path}:{line}:") for problem in problems), line
    labelled, problems = read_labels("classify", path, skip_bad=True)
    assert len(labelled) == 1 and len(labelled.bad) == 8
    (problem,) = problems
    assert not problem.is_fatal and problem.count == 8 and f"{path}:2:" in str(problem)


def test_a_missing_column_is_one_line(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", [["text", "lable"], *[[f"t{n}", "a"] for n in range(300)]])
    for skip_bad in (False, True):  # where all are left out, that is no warning
        _, (problem,) = read_labels("classify", path, skip_bad=skip_bad)
        assert str(problem).startswith(f"{path}:2: there is no column 'label'. Did you mean 'lable'?")
        assert problem.is_fatal and ("299 more like this: line 3, line 4" in str(problem)) == skip_bad


def test_all_missing_columns_are_one_line(tmp_path: Path) -> None:
    """300 problems, by the record, that proposed the number of a row, and the label on the next try."""
    rows = [[str(n), f"2024-01-{n % 28 + 1:02}", f"{n}번째 리뷰, 길게 쓴 글", "긍부"[n % 2]] for n in range(1, 301)]
    path = write_csv(tmp_path / "레이블.csv", [["연번호", "날짜", "내용", "감정"], *rows])
    _, (problem,) = read_labels("classify", path)
    assert str(problem) == (
        f"{path}:2: there are no columns 'text' and 'label'. Known: 감정, 날짜, 내용, 연번호. Name yours by their "
        "roles, as in -c 'text=내용' -c 'label=감정'; 'etude tasks TASK' lists the roles."
    )
    _, (problem,) = read_labels("classify", path, {"text": "내용"})
    assert "there is no column 'label'" in str(problem) and "as in -c 'label=감정'; " in str(problem)
    counted = write_csv(tmp_path / "b.csv", [["n", "document"], *[[str(n), f"t{n}"] for n in range(30)]])
    _, (problem,) = read_labels("classify", counted)  # what counts up is no label, nor what is read as the text
    assert "as in -c label=COLUMN; " in str(problem)
    rows = [["1", "왜?", f"글 {n}", "0"] for n in range(9)]
    pairs = write_csv(tmp_path / "c.csv", [["q", "질문", "글", "맞음"], *rows])
    _, (problem,) = read_labels("rank", pairs, {"query": "질문"})
    assert "as in -c 'candidate=글' -c 'label=맞음'; " in str(problem)


@pytest.mark.parametrize(("name", "content", "words"), [
    ("gone.csv", None, "There is no file"),
    ("a.docx", b"x", "Rename or convert"),
    ("a.csv", b'text,label\n"x,a\n', ":2: not CSV"),
    ("b.csv", "text,label\n굿,a\n".encode("cp949"), ":2: not UTF-8"),
    ("a.csv.gz", b"no gzip", "cannot be read"),
    ("empty.csv", b"text,label\n", "holds no examples"),
])  # fmt: skip
def test_an_unreadable_file_is_a_problem_with_or_without_skip_bad(
    name: str, content: bytes | None, words: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    for skip_bad in (False, True):
        labelled, problems = read_labels("classify", tmp_path / name, skip_bad=skip_bad)
        assert not len(labelled)
        assert words in str(problems[0]) and problems[0].is_fatal


def test_equal_inputs_share_a_group(tmp_path: Path) -> None:
    texts = ["한국 어", "\u1112\u1161\u11ab국  어 ", "다른", "한국 어"]  # the second decomposed and with more spaces
    labels = ["a", "a", "a", "b"]
    items = [{"id": n, "text": t, "label": y} for n, (t, y) in enumerate(zip(texts, labels, strict=True))]
    path = write_lines(tmp_path / "a.jsonl", items)
    labelled, problems = read_labels("classify", path)
    first, second, third, fourth = labelled.groups
    assert first == second == fourth != third
    (problem,) = problems
    assert not problem.is_fatal
    assert str(problem) == f"{path}:4: the same input as {path}:1, with another answer: 'a' and 'b'."


def test_a_label_may_be_called_like_an_id(tmp_path: Path) -> None:
    """Columns of ids are no input, unless the user says that one of them is: ": there is no column 'idx'"."""
    rows = [{"text": f"text {n % 4}", "idx": n} for n in range(8)]
    labelled, problems = read_labels("classify", write_lines(tmp_path / "a.jsonl", rows), {"label": "idx"})
    assert labelled.classes == [str(n) for n in range(8)]
    assert str(problems[0]).endswith("with another answer: '0' and '4'. (4 such examples)")


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_a_column_is_found_however_its_letters_are_composed(form: Any, tmp_path: Path) -> None:
    """ "there is no column '리뷰'. Known: 리뷰": macOS takes syllables apart."""
    header = [unicodedata.normalize(form, name) for name in ("리뷰", "분류")]
    path = write_csv(tmp_path / "a.csv", [header, *([f"글 {n}", "ab"[n % 2]] for n in range(4))])
    for other in ("NFC", "NFD"):
        named = {"text": unicodedata.normalize(other, "리뷰"), "label": unicodedata.normalize(other, "분류")}
        labelled, problems = read_labels("classify", path, named)
        assert len(labelled) == 4 and labelled.classes == ["a", "b"] and not problems


def test_half_a_character_is_no_label(tmp_path: Path) -> None:
    """It could not be written with the answers: a traceback in the middle of a pick."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a", "label": "\\ud83d"}\n{"text": "b", "label": "\\ud83d\\ude00"}\n')
    labelled, problems = read_labels("classify", path)
    assert labelled.classes == ["😀"] and "a.jsonl:1: the text in 'label' holds half a surrogate" in str(problems[0])


def test_bytes_in_a_column_that_nobody_reads_are_written(tmp_path: Path) -> None:
    """Images beside their captions, in Parquet: the examples of a split are lines of JSON."""
    pytest.importorskip("pyarrow")
    import pyarrow
    import pyarrow.parquet

    rows = {"text": ["a film", "a plot"], "label": ["good", "bad"], "image": [b"\x89PNG", b"\xff\xd8"]}
    pyarrow.parquet.write_table(pyarrow.table(rows), tmp_path / "a.parquet")
    labelled, problems = read_labels("classify", tmp_path / "a.parquet")
    again, _ = read_labels("classify", labelled.write(tmp_path / "split.jsonl"))
    assert not problems and again.examples.items == labelled.examples.items


def test_contradicting_numbers_are_seen_too(tmp_path: Path) -> None:
    pair = {"text_a": "a", "text_b": "b"}
    path = write_lines(tmp_path / "a.jsonl", [{**pair, "score": 1}, {**pair, "score": 4}, {**pair, "score": 1.0}])
    _, problems = read_labels("similarity", path)
    assert [str(problem) for problem in problems] == [f"{path}:2: the same input as {path}:1, with another answer."]


def test_labels_that_look_alike_are_a_warning(tmp_path: Path) -> None:
    rows = [["text", "label"], ["a", "Good"], ["b", "good"], ["c", "1"], ["d", "1.0"], ["e", "bad"]]
    _, problems = read_labels("classify", write_csv(tmp_path / "a.csv", rows))
    assert not any(problem.is_fatal for problem in problems)
    assert sorted("'Good', 'good'" in str(p) or "'1', '1.0'" in str(p) for p in problems) == [True, True]


def test_one_message_lists_at_most_twenty_problems() -> None:
    problems = [Problem(f"{name}.csv: bad") for name in "abcdefghijklmnopqrstuvwxyz"]
    with pytest.raises(UserError) as caught:
        raise_all([Problem("fine", is_fatal=False, korean="괜찮음"), *problems])
    lines = str(caught.value).split("\n")
    assert lines[0].startswith("26 problems") and len(lines) == MAX_LINES + 2
    assert lines[-1].strip() == "... and 6 more."
    raise_all([Problem("fine", is_fatal=False, korean="괜찮음")])
    with pytest.raises(UserError, match=r"^only$"):
        raise_all([Problem("only")])


def test_few_alike_problems_are_listed_one_by_one() -> None:
    few = merge_alike([(f"a:{n}", f"a:{n}: bad") for n in range(4)])
    assert [str(problem) for problem in few] == [f"a:{n}: bad" for n in range(4)]
    (problem,) = merge_alike([(f"a:{n}", f"a:{n}: bad {n}") for n in range(9)])
    assert problem.count == 9 and "8 more like this: line 1, line 2, line 3, line 4, line 5, ..." in str(problem)


def test_nan_of_a_data_frame_is_no_label(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "x", "label": "a"}\n{"text": "y", "label": NaN}\n{"text": "z", "label": "nan"}\n')
    labelled, problems = read_labels("classify", path)
    assert labelled.classes == ["a", "nan"]
    assert [str(problem).startswith(f"{path}:2: the column 'label' holds NaN") for problem in problems] == [True]


def test_korean_spreadsheets_are_recognised(tmp_path: Path) -> None:
    rows = "text,label\n정말 재미있는 영화였다,긍정\n지루했다,부정\n"
    for encoding, name in (("cp949", "CP949"), ("utf-16", "UTF-16"), ("latin-1", "CP1252"), ("cp1251", None)):
        path = tmp_path / f"{encoding}.csv"
        other = {"latin-1": "text,label\ncaf\xe9 na\xefve,a\n", "cp1251": "text,label\nхорошо,да\n"}
        path.write_bytes(other.get(encoding, rows).encode(encoding))
        _, problems = read_labels("classify", path)
        assert "not UTF-8" in str(problems[0])
        assert (f"iconv -f {name} -t UTF-8" in str(problems[0])) if name else ("iconv" not in str(problems[0]))


def test_queries_that_say_nothing_are_left_out(tmp_path: Path) -> None:
    """Their answers have no score: folds that counted on them ended the pick with an error of numpy."""
    silent = [{"query": "none", "candidates": ["a", "b"], "labels": [0, 0]},
              {"query": "all", "candidates": ["a"], "labels": [1]}]  # fmt: skip
    path = write_lines(tmp_path / "a.jsonl", [*silent, *records("rank", 12, 0)])
    labelled, problems = read_labels("rank", path)
    (warning,) = [problem for problem in problems if "relevant" in problem.message]
    assert not warning.is_fatal and warning.count == 2 and warning.message.startswith(f"{path}:1: 2 queries")
    assert len(labelled) == len(labelled.records) == 12 and labelled.examples.places[0] == f"{path}:3"
    module = task_module("rank")
    answers = module.majority(labelled.examples, labelled.examples)
    assert len(module.scoring(module.Settings(), {}).outcome(labelled.examples, answers).parts) == 12
    assert any(problem.is_fatal for problem in read_labels("rank", write_lines(tmp_path / "b.jsonl", silent))[1])
