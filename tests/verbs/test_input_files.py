"""Input of `evaluate`, `predict`, `features` and `translate`: columns, encodings, standard input, empty lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO

import numpy as np
import pytest

import etude
from etude.baselines.registry import fit
from etude.errors import UserError
from tests.baselines.test_labels import reviews as baseline_reviews

Bases = Callable[[str], Path]


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = fit("tfidf", "classify", None, baseline_reviews(), columns={"text": "review"})
    return made.save(tmp_path_factory.mktemp("baseline") / "best")


@pytest.fixture
def standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def give(text: str) -> None:
        path = tmp_path / "standard-input"
        path.write_text(text, encoding="utf-8")
        stream: IO[str] = path.open(encoding="utf-8")
        monkeypatch.setattr(sys, "stdin", stream)

    return give


def test_evaluate_names_columns_as_finetune_does(baseline: Path, tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("body,stars\n재밌었다,good\ndull,bad\n", encoding="utf-8")
    plain = etude.evaluate(baseline, path, columns={"text": "body", "label": "stars"})
    assert etude.evaluate(baseline, path, text="body", label="stars")["accuracy"].value == plain["accuracy"].value
    assert [answer["label"] for answer in etude.predict(baseline, path, text="body")] == ["good", "bad"]
    for use in (etude.evaluate, etude.predict):
        with pytest.raises(UserError, match=r"The task classify has no column of the role 'txet'.*Did you mean 'text'"):
            list(use(baseline, path, columns={"txet": "body"}))


@pytest.mark.parametrize("encoding", ["cp949", "utf-16", "utf-16-le"])
def test_labels_in_another_encoding_are_read_by_its_name(baseline: Path, tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "labels.csv"
    path.write_bytes("review,label\r\n재밌었다,good\r\n지루했다,bad\r\n".encode(encoding))
    scores = etude.evaluate(baseline, path, encoding=encoding)
    assert scores["accuracy"].count == 2
    assert len(list(etude.predict(baseline, path, encoding=encoding))) == 2
    lines = tmp_path / "lines.txt"
    lines.write_bytes("재밌었다\n지루했다\n".encode(encoding))
    assert len(list(etude.predict(baseline, lines, encoding=encoding))) == 2
    with pytest.raises(UserError, match="is not text in ascii: name another --encoding"):
        etude.evaluate(baseline, path, encoding="ascii")
    with pytest.raises(UserError, match="There is no encoding of text 'cp99'"):
        etude.evaluate(baseline, path, encoding="cp99")


def test_the_message_about_an_encoding_names_the_option(baseline: Path, tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_bytes("review,label\n재밌었다,good\n".encode("cp949"))
    for use in (etude.evaluate, etude.predict):
        with pytest.raises(UserError, match=r"CP949 \(Korean Windows\): name that, --encoding cp949, or save it as"):
            list(use(baseline, path))
    lines = tmp_path / "lines.txt"
    lines.write_bytes("재밌었다\n".encode("cp949"))
    with pytest.raises(UserError, match=r"line 1, is not UTF-8\. .*--encoding cp949"):
        list(etude.predict(baseline, lines))


def test_a_dash_reads_standard_input(
    baseline: Path, base: Bases, tmp_path: Path, standard_input: Callable[[str], None]
) -> None:
    texts = ["재밌었다", "dull"]
    standard_input(f"{texts[0]}\n" + json.dumps({"review": texts[1]}) + "\n")
    assert [answer["label"] for answer in etude.predict(baseline, "-")] == ["good", "bad"]
    standard_input("good film\nbad film\n")
    etude.features(base("bert"), "-", out=tmp_path / "a.npz")
    (tmp_path / "a.txt").write_text("good film\nbad film\n", encoding="utf-8")
    etude.features(base("bert"), tmp_path / "a.txt", out=tmp_path / "b.npz")
    np.testing.assert_array_equal(np.load(tmp_path / "a.npz")["vectors"], np.load(tmp_path / "b.npz")["vectors"])


@pytest.mark.parametrize("lines", ["dull\n\nfine\n", "dull\n \t\nfine\n", 'dull\n{"review": \nfine\n'])
def test_a_bad_line_is_refused_before_the_first_answer(baseline: Path, tmp_path: Path, lines: str) -> None:
    path = tmp_path / "lines.txt"
    path.write_text(lines, encoding="utf-8")
    with pytest.raises(UserError, match=r"lines\.txt:2: ") as refused:
        next(etude.predict(baseline, path))
    if "{" not in lines:
        assert "this line is empty. Take it out. With --skip-bad its answer is" in str(refused.value)
    answers = list(etude.predict(baseline, path, skip_bad=True))
    assert [set(answer) == {"error"} for answer in answers] == [False, True, False]
    assert "--skip-bad" not in answers[1]["error"]


def test_features_keep_the_rows_of_a_file_with_bad_lines(
    base: Bases, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, out = tmp_path / "lines.txt", tmp_path / "a.npz"
    path.write_text("good film\n\nbad film\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"lines\.txt:2: this line is empty.*With --skip-bad its row is NaN"):
        etude.features(base("bert"), path, out=out)
    assert not out.exists()
    etude.features(base("bert"), path, out=out, skip_bad=True)
    vectors = np.load(out)["vectors"]
    assert np.isnan(vectors).all((1, 2)).tolist() == [False, True, False]
    assert "1 of 3 lines have no vector" in caplog.text
    with pytest.raises(UserError, match=r"a\.npz exists already\. Replace it with --force, or name another with -o"):
        etude.features(base("bert"), path, out=out, skip_bad=True)
    etude.features(base("bert"), path, out=out, skip_bad=True, pool="none", force=True)
    assert [np.load(out)[str(number)].shape[1] > 0 for number in range(3)] == [True, False, True]
    table = tmp_path / "rows.jsonl"
    table.write_text('{"text": "good film"}\n{"text": 3}\n{"text": "bad film"}\n', encoding="utf-8")
    etude.features(base("bert"), table, out=out, skip_bad=True, force=True)
    np.testing.assert_array_equal(np.load(out)["vectors"], vectors)
    path.write_text("\n\n", encoding="utf-8")
    with pytest.raises(UserError, match="holds no lines, only bad ones"):
        etude.features(base("bert"), path, out=out, skip_bad=True, force=True)
