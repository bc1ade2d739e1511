"""A saved baseline behind the verbs: load, predict, evaluate, export, serve; of lists, tables and files."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest

import etude
from etude.baselines.registry import fit
from etude.errors import UserError
from etude.inference.abstention import FILE as ABSTENTION
from etude.inference.abstention import Abstention
from etude.serve.app import Service
from etude.serve.limits import Limits
from etude.serve.served_model import ServedModel
from etude.serve.server import Server
from etude.tasks import pair
from tests.baselines.test_labels import reviews


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fit("tfidf", "classify", None, reviews(), columns={"text": "review"}).save(
        tmp_path_factory.mktemp("baseline") / "best"
    )


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    path = tmp_path / "test.jsonl"
    rows = [
        {"review": "재밌었다", "label": "good"},
        {"review": "dull", "label": "bad"},
        {"review": "x", "label": "odd"},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_texts_records_and_tables_get_the_same_answers(folder: Path) -> None:
    model = etude.load(folder)
    texts = ["재밌었다", "dull"]
    answers = model.predict(texts)
    assert [answer["label"] for answer in answers] == ["good", "bad"]
    assert model.predict([{"review": text} for text in texts]) == answers
    pandas = pytest.importorskip("pandas")
    assert model.predict(pandas.DataFrame({"review": texts, "other": [1, 2]})) == answers
    with pytest.raises(UserError, match="list of inputs"):
        model.predict("one text")
    with pytest.raises(UserError, match="no hidden states"):
        etude.fill(folder, "The [MASK] sat.")
    for method in ("fill", "encode", "generate"):
        with pytest.raises(UserError, match=f"is a baseline and has no hidden states, so it has no {method}: it can"):
            getattr(model, method)
        assert not hasattr(model, method)
    with pytest.raises(UserError, match="did not learn from a graph"):
        _ = model.vectors


def test_evaluation_and_its_report(folder: Path, labelled: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"test\.jsonl:3: the label 'odd'"):
        etude.evaluate(folder, labelled)
    scores = etude.evaluate(
        folder, labelled, skip_bad=True, report=tmp_path / "page.html", predictions=tmp_path / "answers.jsonl"
    )
    assert scores["accuracy"].value == 1.0 and scores["accuracy"].count == 2
    assert "Confusion" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert len((tmp_path / "answers.jsonl").read_text(encoding="utf-8").splitlines()) == 2


def test_predictions_of_a_file_and_of_other_columns(folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "texts.csv"
    table.write_text("title\n재밌었다\ndull\n", encoding="utf-8")
    answers = list(etude.predict(folder, table, columns={"text": "title"}))
    assert [answer["label"] for answer in answers] == ["good", "bad"]
    lines = tmp_path / "lines.txt"
    lines.write_text('재밌었다\n{"review": "dull"}\n', encoding="utf-8")
    assert [answer["label"] for answer in etude.predict(folder, lines)] == ["good", "bad"]


def test_unsure_answers_are_withheld_of_lines_and_of_tables_alike(folder: Path, tmp_path: Path) -> None:
    """A table is read whole, and its answers had no threshold: the file's ending decided what was withheld."""
    lines, table = tmp_path / "lines.txt", tmp_path / "texts.csv"
    lines.write_text("재밌었다\ndull\n", encoding="utf-8")
    table.write_text("review,label\n재밌었다,good\ndull,bad\n", encoding="utf-8")
    Abstention(threshold=1.0, accuracy=0.9).write(folder)
    try:
        answers = list(etude.predict(folder, lines))
        assert [(answer["label"], answer["guess"]) for answer in answers] == [(None, "good"), (None, "bad")]
        assert list(etude.predict(folder, table)) == answers
        scores = etude.evaluate(folder, table, predictions=tmp_path / "answers.jsonl")
    finally:
        (folder / ABSTENTION).unlink()
    assert scores["accuracy"].value == 1.0, "scores are those of all guesses"
    written = [json.loads(line)["label"] for line in (tmp_path / "answers.jsonl").read_text("utf-8").splitlines()]
    assert written == ["good", "bad"]


def test_an_input_that_is_no_text_is_named(folder: Path) -> None:
    """The missing values of a column, as pandas lists them, ended in a traceback."""
    with pytest.raises(UserError, match=r"input 2 is nan: give a text"):
        etude.load(folder).predict(["dull", float("nan")])


def test_a_byte_order_mark_is_no_part_of_the_first_line(folder: Path, tmp_path: Path) -> None:
    model = etude.load(folder)
    for name, first in (("a.jsonl", '{"review": "dull"}'), ("a.txt", "dull")):
        (tmp_path / name).write_text(f"{first}\n재밌었다\n", encoding="utf-8-sig")
        assert list(etude.predict(folder, tmp_path / name)) == model.predict(["dull", "재밌었다"])
    with pytest.raises(UserError, match=r"pipe:1: not JSON"):
        list(model.stream(["\ufeff{broken\n"], "pipe"))


def test_a_line_of_too_few_parts_is_told_by_its_place(tmp_path: Path) -> None:
    rows = [{"text_a": f"a {n}", "text_b": f"b {n}", "label": "same" if n % 2 else "other"} for n in range(8)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    saved = fit("tfidf", "pair", None, pair.read(tmp_path / "train.jsonl")).save(tmp_path / "best")
    (tmp_path / "lines.txt").write_text("a\tb\nonly one\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"lines\.txt:2: a line of the task pair holds .* <tab> .*; this one has 1"):
        list(etude.predict(saved, tmp_path / "lines.txt"))


def test_export_by_its_verb(folder: Path, tmp_path: Path) -> None:
    result = etude.export(folder, out=tmp_path / "out")
    assert {path.name for path in result.files} >= {"model.json", "weights.npz", "predict.py"}


def test_it_is_served(folder: Path) -> None:
    with Server(Service.create([ServedModel.open(folder)], Limits()), port=0) as server:
        [about] = json.load(urllib.request.urlopen(f"{server.address}/about", timeout=120))["runs"]
        assert about["endpoints"] == ["predict"] and about["columns"] == ["review"]
        request = urllib.request.Request(
            f"{server.address}/predict",
            json.dumps({"input": "재밌었다"}).encode(),
            {"Content-Type": "application/json"},
        )
        assert json.load(urllib.request.urlopen(request, timeout=120))["results"][0]["label"] == "good"
