"""A suite: every task of a folder, one score, gone on with when called again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from etude.errors import UserError
from etude.transfer.suite import format_table, run_suite


def test_glue(base: Callable[[str], Path], tmp_path: Path) -> None:
    data = tmp_path / "GLUE"
    words = ("good", "bad")
    (data / "CoLA").mkdir(parents=True)
    rows = "".join(f"x\t{number % 2}\t\tfilm {words[number % 2]}\n" for number in range(16))
    for name in ("train", "dev"):
        (data / "CoLA" / f"{name}.tsv").write_text(rows, encoding="utf-8")
    (data / "MNLI").mkdir()
    head = "index\tsentence1\tsentence2\tgold_label\n"
    rows = head + "".join(
        f"{n}\tfilm {words[n % 2]}\tplot\t{'neutral' if n % 2 else 'entailment'}\n" for n in range(16)
    )
    for name in ("train", "dev_matched", "dev_mismatched"):
        (data / "MNLI" / f"{name}.tsv").write_text(rows, encoding="utf-8")
    changes = {"train.epochs": 12, "train.lr": 0.05, "train.batch_examples": 8}
    result = run_suite(base("static"), "glue", data, tmp_path / "out", changes, quiet=True)
    assert result is not None and set(result["tasks"]) == {"CoLA", "MNLI"}
    assert result["tasks"]["CoLA"]["parts"] == [{"mcc": pytest.approx(result["tasks"]["CoLA"]["score"])}]
    assert len(result["tasks"]["MNLI"]["parts"]) == 2, "matched and mismatched"
    assert result["score"] == pytest.approx(sum(item["score"] for item in result["tasks"].values()) / 2)
    assert result["score"] > 0.9 and "2 of 8 tasks" in format_table(result)
    stamp = (tmp_path / "out" / "CoLA" / "model.safetensors").stat().st_mtime_ns
    again = run_suite(base("static"), "glue", data, tmp_path / "out", changes, quiet=True)
    assert again == result and (tmp_path / "out" / "CoLA" / "model.safetensors").stat().st_mtime_ns == stamp
    assert json.loads((tmp_path / "out" / "suite.json").read_text())["score"] == result["score"]
    for other in ((base("bert"), changes), (base("static"), changes | {"train.lr": 0.01})):
        with pytest.raises(UserError, match=r"holds a suite of another request: (run|settings) was .*-o"):
            run_suite(other[0], "glue", data, tmp_path / "out", other[1], quiet=True)
    (data / "MNLI" / "train.tsv").write_text(rows + rows.splitlines()[1] + "\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"MNLI/train\.tsv has changed since .* was trained on it"):
        run_suite(base("static"), "glue", data, tmp_path / "out", changes, quiet=True)
    (data / "MNLI" / "train.tsv").unlink()
    with pytest.raises(UserError, match="MNLI lacks a train file"):
        run_suite(base("static"), "glue", data, tmp_path / "other")
    with pytest.raises(UserError, match="no task of glue"):
        run_suite(base("static"), "glue", tmp_path, tmp_path / "other")


def test_two_metrics_and_two_files_are_averaged_before_the_tasks(base: Callable[[str], Path], tmp_path: Path) -> None:
    """Some dev labels are wrong, so that F1 is another number than accuracy, and one half of MNLI than the other."""
    data, head = tmp_path / "GLUE", "sentence1\tsentence2\tlabel\n"
    files = {"MRPC": {"train": 0, "dev": 3}, "MNLI": {"train": 0, "dev_matched": 0, "dev_mismatched": 3}}
    for task, wrong in files.items():
        (data / task).mkdir(parents=True)
        for name, count in wrong.items():
            labels = [int(n % 2 or n < 2 * count) for n in range(16)]  # 1 where it should be 0, `count` times
            rows = "".join(f"film {('good', 'bad')[n % 2]}\tplot\t{label}\n" for n, label in enumerate(labels))
            (data / task / f"{name}.tsv").write_text(head + rows, encoding="utf-8")
    changes = {"train.epochs": 12, "train.lr": 0.05, "train.batch_examples": 8}
    result = run_suite(base("static"), "glue", data, tmp_path / "out", changes, quiet=True)
    assert result is not None
    f1 = 2 * 8 / (8 + 11)
    assert result["tasks"]["MRPC"]["parts"] == [{"f1": pytest.approx(f1), "accuracy": pytest.approx(13 / 16)}]
    assert result["tasks"]["MRPC"]["score"] == pytest.approx((f1 + 13 / 16) / 2)
    assert result["tasks"]["MNLI"]["parts"] == [{"accuracy": 1.0}, {"accuracy": pytest.approx(13 / 16)}]
    assert result["tasks"]["MNLI"]["score"] == pytest.approx((1 + 13 / 16) / 2)
    assert result["score"] == pytest.approx(((f1 + 13 / 16) / 2 + (1 + 13 / 16) / 2) / 2)


def test_a_suite_that_did_not_begin_leaves_nothing(base: Callable[[str], Path], tmp_path: Path) -> None:
    """A setting that is misspelt and then corrected is no other request: no run of the first is there."""
    (tmp_path / "GLUE" / "CoLA").mkdir(parents=True)
    rows = "".join(f"x\t{number % 2}\t\tfilm {('good', 'bad')[number % 2]}\n" for number in range(8))
    for name in ("train", "dev"):
        (tmp_path / "GLUE" / "CoLA" / f"{name}.tsv").write_text(rows, encoding="utf-8")
    with pytest.raises(UserError, match="stepz"):
        run_suite(base("static"), "glue", tmp_path / "GLUE", tmp_path / "out", {"train.stepz": 2}, quiet=True)
    assert not (tmp_path / "out").exists()
    assert run_suite(base("static"), "glue", tmp_path / "GLUE", tmp_path / "out", {"train.steps": 2}, quiet=True)
