"""Files of a fine-tuning: examples that train and dev share, a label each, another encoding."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import etude
from etude.errors import UserError
from etude.runs.task_plan import Plan
from tests.verbs.test_input_files import Bases

QUICK = {"train.steps": 2, "train.batch_examples": 8}
Files = tuple[Path, Path]


def test_dev_that_is_train_is_told(
    base: Bases, reviews: Files, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number, seeds in enumerate((1, 2)):
        caplog.clear()
        etude.finetune(
            base("static"), "classify", train=reviews[0], dev=reviews[0], out=tmp_path / str(number), seeds=seeds,
            settings=QUICK, quiet=True,
        )  # fmt: skip
        told = [message for message in caplog.messages if "say little about new ones" in message]
        count = len(reviews[0].read_text(encoding="utf-8").splitlines())
        assert len(told) == 1 and f"{count} of {count} examples of dev are in train too" in told[0]


@pytest.mark.parametrize("probe", [False, True])
def test_a_label_of_its_own_for_each_example_is_told(
    base: Bases, reviews: Files, tmp_path: Path, caplog: pytest.LogCaptureFixture, probe: bool
) -> None:
    rows = [json.loads(line) for line in reviews[0].read_text(encoding="utf-8").splitlines()]
    path = tmp_path / "numbered.jsonl"
    lines = [json.dumps({**row, "label": f"r{number}"}) + "\n" for number, row in enumerate(rows)]
    path.write_text("".join(lines), encoding="utf-8")
    settings = {"transfer.probe": True} if probe else QUICK
    etude.finetune(base("static"), "classify", train=path, out=tmp_path / "run", settings=settings, quiet=True)
    assert f"{len(rows)} of {len(rows)} examples have a label that no other has" in caplog.text
    assert "Is the column of the labels the right one?" in caplog.text


@pytest.mark.parametrize("probe", [False, True])
def test_labels_in_another_encoding(base: Bases, tmp_path: Path, probe: bool) -> None:
    train, dev = tmp_path / "train.csv", tmp_path / "dev.csv"
    rows = [f"아주 좋다 {number},긍정\r\n아주 나쁘다 {number},부정\r\n" for number in range(8)]
    train.write_bytes("".join(["text,label\r\n", *rows]).encode("cp949"))
    dev.write_bytes("text,label\r\n정말 좋다,긍정\r\n정말 나쁘다,부정\r\n".encode("cp949"))
    settings = {"transfer.probe": True} if probe else QUICK

    def tune(encoding: str | None, seeds: int = 1, name: str = "run") -> etude.TaskRun:
        return etude.finetune(
            base("static"), "classify", train=train, dev=dev, out=tmp_path / name, encoding=encoding, seeds=seeds,
            settings=settings, quiet=True,
        )  # fmt: skip

    with pytest.raises(UserError, match=r"train\.csv:2: not UTF-8.*CP949 \(Korean Windows\): name that, --encoding"):
        tune(None)
    run = tune("cp949")
    plan = Plan.read(run.folder)
    assert plan.facts["labels"] == ["긍정", "부정"] and plan.examples.encoding == "cp949"
    if not probe:
        assert len(tune("CP949", 2, "seeds").trials) == 2


def test_a_stopped_fine_tuning_reads_its_encoding_again(
    base: Bases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from etude.train.loop import Loop

    advance: Callable[..., None] = Loop.advance

    def stop(self: Loop, step: object) -> None:
        advance(self, step)
        self.interrupted = True

    train = tmp_path / "train.csv"
    train.write_bytes("text,label\r\n아주 좋다,긍정\r\n아주 나쁘다,부정\r\n".encode("utf-16"))
    monkeypatch.setattr(Loop, "advance", stop)
    run = etude.finetune(
        base("static"), "classify", train=train, out=tmp_path / "run", encoding="utf-16", quiet=True,
        settings={"train.steps": 3, "train.batch_examples": 2},
    )  # fmt: skip
    assert not run.finished
    monkeypatch.setattr(Loop, "advance", advance)
    assert etude.resume(run.folder, quiet=True).finished
