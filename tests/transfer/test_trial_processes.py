"""Trials in processes of their own: the same result in any number, one error for all, and no process that is left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import etude
from etude.cli.exits import INTERRUPTED
from etude.cli.main import app
from etude.errors import UserError, WriteError
from etude.runs.run import Run
from etude.transfer import search as trials
from etude.transfer import trial_processes
from etude.transfer.trial_processes import Child, TrialError, count_threads
from etude.transfer.trial_worker import run as run_worker

Bases = Callable[[str], Path]
Files = tuple[Path, Path]
SHORT = {"train.batch_examples": 16, "train.warmup": 0.0, "train.precision": "float32", "train.steps": 400}
ENDLESS = SHORT | {"train.steps": 100_000, "train.eval_every": 50_000}


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def read_result(out: Path) -> tuple[bytes, bytes]:
    """What must not depend on the number of processes."""
    return (out / "trials.json").read_bytes(), (out / "model.safetensors").read_bytes()


def list_workers(mark: str) -> list[int]:
    """The processes of trials in whose environment a mark stands."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            is_worker = folder.name.isdigit() and b"trial_worker" in (folder / "cmdline").read_bytes()
            if is_worker and mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A mark in the environment of all processes of a test; none of them may be left."""
    monkeypatch.setenv("ETUDE_TEST_MARK", str(tmp_path))
    yield str(tmp_path)
    assert wait_for(lambda: not list_workers(str(tmp_path)), 10), "no process of a trial is left"


def wait_for(condition: Callable[[], object], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return bool(condition())


def test_the_result_does_not_depend_on_their_number(
    base: Bases, reviews: Files, tmp_path: Path, mark: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """One rate diverges, and two have one short name: what is kept is the same, byte for byte."""
    rates = [1e30, 1e-3, 1.0000000001e-3]
    options: dict[str, Any] = {"dev": reviews[1], "vary": {"train.lr": rates}}
    options["overrides"] = {"train.steps": 4, "train.batch_examples": 16, "train.warmup": 0.0}
    one = trials.search(base("bert"), "classify", reviews[0], tmp_path / "x", **options, quiet=True)
    capfd.readouterr()
    several = trials.search(base("bert"), "classify", reviews[0], tmp_path / "y", **options, parallel=3)
    assert several == Run(tmp_path / "y") and several.finished
    assert read_result(several.folder) == read_result(one.folder)
    assert "parallel" not in (several.folder / "trials.json").read_text(encoding="utf-8")
    names = sorted(path.name for path in (one.folder / "trials").iterdir())
    assert sorted(path.name for path in (several.folder / "trials").iterdir()) == names
    printed = capfd.readouterr()
    lines = [line for line in printed.err.splitlines() if " of 3 trials: " in line]
    scores = {trial["folder"]: trial["score"] for trial in json.loads(read_result(one.folder)[0])["trials"]}
    ends = {"lr-1e+30-seed-0, diverged"} | {f"{name}, accuracy {score:.4f}" for name, score in scores.items()}
    assert [line.split()[0] for line in lines] == ["1", "2", "3"]
    assert {line.partition(": ")[2] for line in lines} == ends
    assert "step 1/" not in printed.err and printed.out == "", "the processes themselves print nothing"
    assert trials.resume(several.folder, quiet=True, parallel=2) == several


def test_warnings_come_once(
    base: Bases, reviews: Files, tmp_path: Path, caplog: pytest.LogCaptureFixture, mark: str
) -> None:
    long = tmp_path / "long.jsonl"
    rows = [json.loads(line) for line in reviews[0].read_text(encoding="utf-8").splitlines()]
    rows[0]["text"] = " ".join([rows[0]["text"]] * 60)
    long.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    trials.search(
        base("bert"), "classify", long, tmp_path / "x", dev=reviews[1], seeds=2, parallel=2, quiet=True,
        overrides={"train.steps": 2, "train.batch_examples": 8, "task.length": 16},
    )  # fmt: skip
    told = [record.getMessage() for record in caplog.records if f"{long}:" in record.getMessage()]
    assert len(told) == 1 and "were cut" in told[0]


def test_an_error_of_one_ends_all(base: Bases, reviews: Files, tmp_path: Path, mark: str) -> None:
    out = tmp_path / "x"
    words = [sys.executable, "-m", "etude", "finetune", str(base("static")), "classify", "--train", str(reviews[0])]
    words += ["--dev", str(reviews[1]), "-o", str(out), "--vary", "transfer.fresh=0,99", "--parallel", "2", "-q"]
    words += [f"{name}={value}" for name, value in ENDLESS.items()]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.count("Error:") == 1, done.stderr
    assert "transfer.fresh" in done.stderr and "Traceback" not in done.stderr
    assert not list_workers(mark)


@contextlib.contextmanager
def begun_search(base: Bases, reviews: Files, out: Path, settings: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
    """A search in a process and a group of its own, whose first trials take steps."""
    words = [sys.executable, "-m", "etude", "finetune", str(base("static")), "classify", "--train", str(reviews[0])]
    words += ["--dev", str(reviews[1]), "-o", str(out), "--seeds", "3", "--parallel", "2", "-q"]
    words += [f"{name}={value}" for name, value in settings.items()]
    search = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        folders = [out / "trials" / f"seed-{seed}" for seed in range(2)]
        logs = [folder / "metrics.jsonl" for folder in folders]
        assert wait_for(lambda: all(log.is_file() and log.stat().st_size for log in logs), 40)
        yield search
    finally:
        search.kill()
        search.wait()
        assert search.stderr is not None
        search.stderr.close()


@pytest.mark.parametrize(
    ("number", "to_group"), [(signal.SIGTERM, False), (signal.SIGTERM, True), (signal.SIGINT, True)]
)
def test_a_stopped_search_goes_on_with_another_number(
    base: Bases, reviews: Files, tmp_path: Path, mark: str, number: signal.Signals, to_group: bool
) -> None:
    """A batch system and a terminal send signals to all processes, and the parent passes them on."""
    out, whole = tmp_path / "x", tmp_path / "whole"
    with begun_search(base, reviews, out, ENDLESS if to_group else SHORT) as search:
        (os.killpg if to_group else os.kill)(search.pid, number)
        _, told = search.communicate(timeout=30)
    assert search.returncode == INTERRUPTED, told
    assert told.splitlines()[-1] == f"Stopped and saved. Go on with: etude finetune --resume {out}"
    assert "Traceback" not in told
    assert not list_workers(mark) and not Run(out).finished
    if to_group:
        for seed in range(2):
            assert list((out / "trials" / f"seed-{seed}" / "checkpoints").iterdir()), "what was under way is saved"
        return
    done = CliRunner().invoke(app, ["finetune", "--resume", str(out), "--parallel", "3", "-q"])
    assert done.exit_code == 0, done.output
    trials.search(
        base("static"), "classify", reviews[0], whole, dev=reviews[1], seeds=3, overrides=SHORT, quiet=True
    )  # fmt: skip
    assert read_result(out) == read_result(whole)


def test_no_process_outlives_a_killed_search(base: Bases, reviews: Files, tmp_path: Path, mark: str) -> None:
    with begun_search(base, reviews, tmp_path / "x", ENDLESS) as search:
        assert len(list_workers(mark)) == 2
        search.kill()
        search.wait()
        assert wait_for(lambda: not list_workers(mark), 5)


def test_a_killed_process_is_told(base: Bases, reviews: Files, tmp_path: Path, mark: str) -> None:
    with begun_search(base, reviews, tmp_path / "x", ENDLESS) as search:
        os.kill(list_workers(mark)[0], signal.SIGKILL)
        _, told = search.communicate(timeout=30)
    words = " ".join(told.split())
    assert search.returncode == 2 and "its process was killed, most often because memory ran out" in words
    assert "smaller --parallel" in words


def test_a_process_that_ends_without_a_word_shows_what_it_printed(tmp_path: Path) -> None:
    with (tmp_path / "printed").open("w+b") as printed:
        process = subprocess.Popen([sys.executable, "-c", "raise ImportError('no torch')"], stderr=printed)
        process.wait()
        error = Child("seed-0", process, printed).explain_death()
    assert isinstance(error, TrialError) and "seed-0: its process ended with code 1" in str(error)
    assert "Traceback" in str(error) and "ImportError: no torch" in str(error)


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (UserError("wrong"), "user"),
        (WriteError("the disk is full"), "system"),
        (MemoryError("8 GB"), "memory"),
        (KeyError("x"), "unforeseen"),
    ],
)
def test_how_a_trial_ended_is_told(raised: Exception, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from etude.train import signals

    def fail(*_: object) -> Run:
        raise raised

    monkeypatch.setattr(trials, "run_stored_trial", fail)
    monkeypatch.setattr(signals, "_ignores_repeats", False)
    ending = run_worker(Path("x"), "seed-0")
    assert ending["kind"] == kind
    if kind == "unforeseen":
        assert "Traceback" in ending["text"] and "KeyError: 'x'" in ending["text"]


def test_a_bad_search_leaves_nothing(base: Bases, reviews: Files, tmp_path: Path, mark: str) -> None:
    with pytest.raises(UserError, match="lrr"):
        trials.search(
            base("static"), "classify", reviews[0], tmp_path / "x", dev=reviews[1], seeds=2, parallel=2,
            overrides={"train.lrr": 1}, quiet=True,
        )  # fmt: skip
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("parallel", [0, -1])
def test_less_than_one_is_refused(base: Bases, reviews: Files, tmp_path: Path, parallel: int) -> None:
    options: dict[str, Any] = {"dev": reviews[1], "seeds": 2, "parallel": parallel}
    with pytest.raises(UserError, match="parallel="):
        trials.search(base("static"), "classify", reviews[0], tmp_path / "x", **options)
    with pytest.raises(UserError, match="parallel="):
        etude.finetune(base("static"), "classify", train=reviews[0], out=tmp_path / "x", **options)
    with pytest.raises(UserError, match="parallel="):
        trials.resume(tmp_path / "x", parallel=parallel)
    done = CliRunner().invoke(app, ["finetune", "--resume", str(tmp_path / "x"), "--parallel", str(parallel)])
    assert isinstance(done.exception, UserError) and "parallel=" in str(done.exception)
    assert not (tmp_path / "x").exists()


def test_one_run_is_refused(base: Bases, reviews: Files, tmp_path: Path) -> None:
    out = tmp_path / "x"
    with pytest.raises(UserError, match="--parallel is for several runs, and this is one"):
        etude.finetune(base("static"), "classify", train=reviews[0], out=out, lr=1e-3, parallel=2)
    with pytest.raises(UserError, match="--parallel is for several runs"):
        trials.search(base("static"), "classify", reviews[0], out, dev=reviews[1], parallel=2)
    assert not out.exists()
    etude.finetune(
        base("static"), "classify", train=reviews[0], out=out, settings={"train.steps": 1}, parallel=1, quiet=True
    )
    done = CliRunner().invoke(app, ["finetune", "--resume", str(out), "--parallel", "2"])
    assert isinstance(done.exception, UserError) and "--parallel is for several runs" in str(done.exception)


def test_torchrun_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    trial_processes.check_parallel(1)
    with pytest.raises(UserError, match="torchrun"):
        trial_processes.check_parallel(2)


def test_they_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_processes, "count_cores", lambda: 8)
    assert count_threads(3) == 1, "no more than the user has set"
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert [count_threads(parallel) for parallel in (2, 3, 20)] == [4, 2, 1]


def test_the_command_line_has_the_option() -> None:
    words = " ".join(CliRunner().invoke(app, ["finetune", "--help"]).output.split())
    assert "--parallel" in words and "MPS" in words
