"""`etude pretrain` as a user types it: what --resume excludes, and what is missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer
from typer.testing import CliRunner

from etude.cli.exits import INTERRUPTED
from etude.cli.main import app
from etude.cli.pretraining import print_end
from etude.cli.transfer import print_task_run
from etude.errors import UserError
from etude.runs.run import Run
from etude.train.loop import Loop
from etude.transfer.finetune import finetune
from etude.verbs.task_run import TaskRun


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("pretrain --resume runs/a bert-small", "--resume takes nothing but the run"),
        ("pretrain --resume runs/a -o runs/b", "--resume takes nothing but the run"),
        ("pretrain --resume runs/a --start runs/b", "--resume takes nothing but the run"),
        ("pretrain --resume runs/a --entities runs/b", "--resume takes nothing but the run"),
        ("pretrain bert-toy data/a -o runs/b --corpus data/b", "--corpus goes with --resume"),
        ("check bert-toy data/a --nodes 0", "nodes=0 is too small"),
        ("check bert-toy data/a --gpus 0", "gpus=0 is too small"),
        ("check bert-toy data/a --gpu a100", "--gpu applies to a plan for a cluster"),
        ("check bert-toy data/a --nodes 2 --entities runs/b", "--entities is not read by a plan"),
        ("finetune --resume runs/a --seeds 3", "--resume takes nothing but the run"),
        ("finetune --resume runs/a --lr 1e-3", "--resume takes nothing but the run"),
        ("finetune --resume runs/a -c text=review", "--resume takes nothing but the run"),
        ("finetune --resume runs/a --train x.csv", "--resume takes nothing but the run"),
        ("pretrain bert-small data/x", "Name the folder of the new run: -o runs/NAME."),
        ("finetune runs/a classify", "Name the labelled examples and the folder of the new run"),
        ("finetune runs/a", "Give a run and a task, for example 'runs/bert classify'; got: runs/a."),
        ("distill distilbert -o x --teacher y", "Give a recipe and a corpus"),
        ("check", "got: nothing. 'etude recipes' lists the recipes"),
        ("bench a b c", "Give a recipe and a corpus at most"),
        ("pretrain bert-small data/x layers=3 -o x", "'layers=3' is no setting"),
    ],
)
def test_a_mistake_is_one_message(words: str, message: str) -> None:
    done = CliRunner().invoke(app, words.split())
    assert isinstance(done.exception, UserError) and message in str(done.exception)


@pytest.mark.parametrize(("rank", "lines"), [(None, 1), ("0", 1), ("1", 0)])
def test_one_process_says_that_a_run_is_done(
    rank: str | None, lines: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    monkeypatch.setattr(Run, "finished", True)
    print_end(Run(tmp_path), quiet=False)
    assert capsys.readouterr().err.count("Done:") == lines
    monkeypatch.setattr(Run, "finished", False)
    with pytest.raises(typer.Exit) as ended:
        print_end(Run(tmp_path), quiet=False)
    assert capsys.readouterr().err.count("Stopped and saved.") == lines and ended.value.exit_code == INTERRUPTED


@pytest.mark.parametrize(("rank", "lines"), [("0", 1), ("1", 0)])
def test_one_process_tells_the_scores_of_a_fine_tuning(
    rank: str, lines: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", rank)
    score = {"value": 0.5, "low": 0.4, "high": 0.6, "count": 10}
    run = SimpleNamespace(finished=True, folder=tmp_path, scores={"accuracy": score})
    print_task_run(cast(TaskRun, run), tmp_path)
    told = capsys.readouterr()
    assert told.out.count("accuracy 0.5000") == lines and told.err.count("Done:") == lines


def test_pretrain_resume_goes_on_with_a_fine_tuning(
    base: Callable[[str], Path], reviews: tuple[Path, Path], tmp_path: Path, monkeypatch: Any
) -> None:
    advance = Loop.advance

    def stopped(self: Loop, step: Any) -> None:
        advance(self, step)
        self.interrupted = self.state.step == 2

    out = tmp_path / "tuned"
    with monkeypatch.context() as patched:
        patched.setattr(Loop, "advance", stopped)
        finetune(base("static"), "classify", reviews[0], out, dev=reviews[1], overrides={"train.steps": 4}, quiet=True)
    assert not Run(out).finished
    with_corpus = CliRunner().invoke(app, ["pretrain", "--resume", str(out), "--corpus", "x"])
    assert isinstance(with_corpus.exception, UserError) and "has no corpus" in str(with_corpus.exception)
    done = CliRunner().invoke(app, ["pretrain", "--resume", str(out), "-q"], catch_exceptions=False)
    assert done.exit_code == 0 and "accuracy" in done.stdout and Run(out).finished
