"""The commands for a GPU machine that is held for minutes: what is missing is named, and seconds count."""

from __future__ import annotations

import argparse
import os
import random
import runpy
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "bare_gpu.sh"


def run(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder; programs of `folder/bin` stand for the machine's own."""
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", str(SCRIPT), *words], cwd=folder, capture_output=True, text=True, timeout=60,
        env={**os.environ, "PATH": path, **environment},
    )  # fmt: skip


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder where `begin` has been run, with a text, and a Python that only writes down what it was called with."""
    for name in ("bin", "folder", "work/tree"):
        (tmp_path / name).mkdir(parents=True)
    python = tmp_path / "bin" / "python"
    python.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/called.new; mv {tmp_path}/called.new {tmp_path}/called\n')
    python.chmod(0o755)
    for part in (1, 2):
        (tmp_path / "work" / f"text.{part}").mkdir()
        compressed = subprocess.run(["xz", "-c"], input=b"words", capture_output=True, check=True).stdout
        (tmp_path / "work" / f"text.{part}" / "text.xz").write_bytes(compressed if part == 1 else b"")
    (tmp_path / "work" / "tests.log").touch()
    (tmp_path / "work" / "begun").write_text(str(int(time.time())))
    return tmp_path


def test_a_text_travels_in_parts_that_fit_beside_the_code(machine: Path) -> None:
    """Parts were as large as they could be beside a smaller code: a call was refused, and a minute lost."""
    text = random.Random(0).randbytes(3 << 20)
    (machine / "text").write_bytes(text)
    code = run(machine, "split", "text", "parts", CALL_BYTES="1")
    assert code.returncode == 2 and "the code alone is" in code.stderr and not list((machine / "parts").iterdir())
    bytes_of_code = (int(code.stderr.split("alone is ")[1].split()[0]) + 1) << 20
    done = run(machine, "split", "text", "parts", CALL_BYTES=str(bytes_of_code + (2 << 20)))
    assert done.returncode == 0, done.stderr
    sizes = {part.name: (part / "text.xz").stat().st_size for part in sorted((machine / "parts").iterdir())}
    assert len(sizes) > 1 and sum(sizes.values()) > len(text) and max(sizes.values()) <= 2 << 20
    shutil.rmtree(machine / "work" / "text.1")
    shutil.rmtree(machine / "work" / "text.2")
    first, *others = sizes
    (machine / "folder" / first).mkdir()
    shutil.copy(machine / "parts" / first / "text.xz", machine / "folder" / first)
    done = run(machine, "study", "folder", "work", "layer-mix")
    assert done.returncode == 2 and "the text is not whole, of it there are: text.1" in done.stderr
    for name in others:
        shutil.copytree(machine / "parts" / name, machine / "folder" / name)
    done = run(machine, "study", "folder", "work", "layer-mix")
    assert done.returncode == 0, done.stderr
    assert (machine / "work" / "text.txt").read_bytes() == text


def wait_for_call(machine: Path) -> list[str]:
    for _ in range(200):
        if (machine / "called").is_file():
            return (machine / "called").read_text().split()
        time.sleep(0.05)
    raise AssertionError("Python was not called")


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        ((), "pack, split, keep, begin"), (("study",), "FOLDER WORK NAME..."), (("study", "folder"), "WORK NAME..."),
        (("study", "folder", "work"), "NAME..."), (("study", "work", "electra-ablations"), "NAME..."),
        (("speed", "folder", "work"), "NAME..."), (("begin", "folder"), "WORK"), (("pack", "data"), "TEXT FOLDER"),
        (("wait", "work", "out"), "SECONDS"), (("stop", "work"), "NAME"), (("twenty",), "FOLDER WORK"),
        (("trials", "folder", "work"), "NAME"), (("weights", "work", "out", "1"), "NUMBER..."),
    ],
)  # fmt: skip
def test_arguments_that_are_missing_are_named(machine: Path, words: tuple[str, ...], missing: str) -> None:
    before = sorted(machine.rglob("*"))
    done = run(machine, *words)
    assert done.returncode == 2 and missing in done.stderr
    assert (len(done.stderr.splitlines()) == 1 and "missing" in done.stderr) or not words
    assert sorted(machine.rglob("*")) == before, "and no folder is made of one in its place"


def test_a_work_folder_in_place_of_the_first_is_refused(machine: Path) -> None:
    done = run(machine, "study", "work", "electra-ablations", "layer-mix")
    assert done.returncode == 2 and "work is a WORK" in done.stderr
    done = run(machine, "study", "folder", "other", "layer-mix")
    assert done.returncode == 2 and "nothing has begun in other" in done.stderr
    assert not (machine / "electra-ablations").exists() and not (machine / "other").exists()


@pytest.mark.parametrize(("minutes", "seconds"), [("26.5", 1590), ("27", 1620), ("0.75", 45), ("8.125", 487)])
def test_minutes_have_seconds(machine: Path, minutes: str, seconds: int) -> None:
    done = run(machine, "wait", "work", "out", "0", MINUTES=minutes)
    assert done.returncode == 0, done.stderr
    left = int(done.stdout.split(" seconds left")[0].split()[-1])
    assert seconds - 30 < left <= seconds


def test_a_study_is_given_the_seconds_that_are_left(machine: Path) -> None:
    (machine / "work" / "begun").write_text(str(int(time.time()) - 1520))
    done = run(machine, "study", "folder", "work", "layer-mix", MINUTES="26.5")
    assert done.returncode == 0, done.stderr
    called = wait_for_call(machine)
    assert 0.5 < float(called[called.index("--minutes") + 1]) <= 70 / 60  # whole minutes were one, or two


def test_trials_are_those_of_the_file_that_is_named(machine: Path) -> None:
    (machine / "work" / "commit").write_text("abc1234")
    done = run(machine, "trials", "folder", "work", "encoder-20min", WORKERS="3", FINETUNINGS="6")
    assert done.returncode == 0, done.stderr
    called = wait_for_call(machine)
    assert called[:2] == ["benchmarks/recipe_trials.py", "benchmarks/trials/encoder-20min.yaml"]
    assert (SCRIPT.parents[1] / called[1]).is_file()
    options = dict(zip(called[5::2], called[6::2], strict=True))
    assert options["--parallel"] == "3" and options["--finetunings"] == "6" and options["--commit"] == "abc1234"
    assert 20 < float(options["--until"]) <= 27


def test_pytest_reads_the_files_that_have_tests_for_a_gpu(machine: Path) -> None:
    tests = machine / "work" / "tree" / "tests"
    tests.mkdir()
    (tests / "test_kernels.py").write_text("@pytest.mark.gpu\ndef test_it() -> None: ...\n")
    (tests / "test_words.py").write_text("def test_it() -> None: ...\n")
    done = run(machine, "tests", "folder", "work")
    assert done.returncode == 0, done.stderr
    called = wait_for_call(machine)
    assert called[called.index("-m", 2) + 1] == "gpu" and called[-1] == "tests/test_kernels.py"
    assert not any("test_words" in word for word in called)


@pytest.mark.parametrize("command", [("study", "layer-mix"), ("twenty",), ("trials", "encoder-20min")])
def test_nothing_begins_when_the_time_is_up(machine: Path, command: tuple[str, ...]) -> None:
    (machine / "work" / "begun").write_text(str(int(time.time()) - 1590))
    done = run(machine, command[0], "folder", "work", *command[1:], MINUTES="26.5")
    assert done.returncode == 3 and "26.5 minutes are up" in done.stderr
    assert not (machine / "called").exists()


def test_minutes_that_are_no_number_are_refused(machine: Path) -> None:
    done = run(machine, "wait", "work", "out", "0", MINUTES="26m")
    assert done.returncode == 2 and "not 26m" in done.stderr


@pytest.mark.parametrize(("code", "is_fine"), [(1, True), (2, False)])
def test_what_grows_while_it_is_packed_ends_no_waiting(machine: Path, code: int, is_fine: bool) -> None:
    """Tar ends with 1 where a log was written to: `wait` ended there, and did not say what time was left."""
    tar = machine / "bin" / "tar"
    tar.write_text(f'#!/bin/sh\nPATH="${{PATH#*:}}" tar "$@"\nexit {code}\n')
    tar.chmod(0o755)
    done = run(machine, "wait", "work", "out", "0")
    assert (done.returncode == 0) == is_fine and ("seconds left" in done.stdout) == is_fine
    assert (machine / "out" / "results.tgz").is_file()


class ParsedError(Exception):
    """The flags were read; nothing is measured."""


@pytest.mark.parametrize(
    "name", ["generation", "crf", "lstm", "steps", "step20", "start", "seeds", "encode", "finetune", "expert"]
)
def test_a_speed_is_one_that_its_benchmark_can_measure(
    machine: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run(machine, "speed", "folder", "work", name, FINETUNE="--texts tags spans", EXPERT="--dropout 0.1")
    assert done.returncode == 0, done.stderr
    called = wait_for_call(machine)
    parse = argparse.ArgumentParser.parse_args

    def stop(parser: argparse.ArgumentParser) -> None:
        parse(parser)
        raise ParsedError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    monkeypatch.setattr(sys, "argv", called)
    monkeypatch.syspath_prepend(SCRIPT.parent)
    with pytest.raises(ParsedError):
        runpy.run_path(str(SCRIPT.parents[1] / called[0]), run_name="__main__")


def write_encoder(machine: Path) -> bytes:
    """An encoder of `twenty` that takes two files to come home, with checkpoints that do not; returns its weights."""
    weights = random.Random(0).randbytes(17 << 20)
    encoder = machine / "work" / "twenty" / "encoder"
    (encoder / "checkpoints").mkdir(parents=True)
    (encoder / "checkpoints" / "weights.safetensors").write_bytes(weights)
    (encoder / "model.safetensors").write_bytes(weights)
    (encoder / "checksums.json").write_text("{}")
    return weights


def test_an_encoder_comes_home_in_files_and_goes_on_elsewhere(machine: Path) -> None:
    """Of a visit nothing came home but its logs: a second one pre-trained anew."""
    weights = write_encoder(machine)
    done = run(machine, "weights", "work", "first", "0", "1")
    assert done.returncode == 0 and "1 of 2 files" in done.stdout, done.stderr
    done = run(machine, "weights", "work", "second", "0", "2", "3", "4")
    assert done.returncode == 0, done.stderr
    sizes = [file.stat().st_size for part in ("first", "second") for file in (machine / part).iterdir()]
    assert len(sizes) == 2 and max(sizes) < 16 << 20 and sum(sizes) < 2 * len(weights)

    second = machine / "second"
    for name in ("tree", "tasks"):
        (second / name).mkdir(parents=True)
    (second / "begun").write_text(str(int(time.time())))
    folder = machine / "folder"
    (folder / "encoder.1").mkdir()
    (machine / "second" / "encoder.02").rename(folder / "encoder.1" / "encoder.02")
    assert run(machine, "keep", "folder", "second").returncode == 0
    done = run(machine, "twenty", "folder", "second")
    assert done.returncode == 2 and "not whole" in done.stderr and "encoder.02" in done.stderr
    shutil.rmtree(folder / "encoder.1")  # the next call brings other files
    (folder / "encoder.2").mkdir()
    (machine / "first" / "encoder.01").rename(folder / "encoder.2" / "encoder.01")
    for name in ("twenty/scores.jsonl", "twenty/encoder/recipe.yaml", "trial-runs/runs/x/recipe.yaml"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)  # all of results.tgz
        (folder / name).write_text("{}")
    done = run(machine, "twenty", "folder", "second")
    assert done.returncode == 0, done.stderr
    assert wait_for_call(machine)[0] == "benchmarks/twenty_minutes.py"
    assert (second / "twenty" / "encoder" / "model.safetensors").read_bytes() == weights
    assert not (second / "twenty" / "encoder" / "checkpoints").exists()
    assert (second / "twenty" / "scores.jsonl").is_file()
    # a run without its weights would be taken for one that was interrupted
    assert not (second / "twenty" / "encoder" / "recipe.yaml").exists() and not (second / "trial-runs").exists()


def test_weights_that_are_not_there_end_no_sequence_of_commands(machine: Path) -> None:
    done = run(machine, "weights", "work", "out", "0", "1")
    assert done.returncode == 0 and "not finished" in done.stdout and not list((machine / "out").iterdir())


def test_results_hold_scores_and_logs_and_no_tokenizers(machine: Path) -> None:
    """A tokenizer in each of fifty fine-tunings took results.tgz to the size at which it stays behind."""
    files = {
        "twenty/scores.jsonl": True, "twenty/tasks/rte-1e-4-0/task.yaml": True, "twenty/tasks/rte-1e-4-0.log": True,
        "twenty/tasks/rte-1e-4-0/tokenizer.json": False, "twenty/corpus/manifest.json": False,
        "twenty/encoder/metrics.jsonl": True, "twenty/encoder/checkpoints/step-1/state.json": False,
        "trial-runs/speeds.json": True, "trial-runs/logs/base.log": True, "trial-runs/corpus-x/manifest.json": False,
        "trial-runs/runs/base/metrics.jsonl": True, "trial-runs/runs/base/model.safetensors": False,
        "trials/encoder-20min.jsonl": True, "commit": True,
    }  # fmt: skip
    for name in files:
        (machine / "work" / name).parent.mkdir(parents=True, exist_ok=True)
        (machine / "work" / name).write_text("{}")
    assert run(machine, "wait", "work", "out", "0").returncode == 0
    with tarfile.open(machine / "out" / "results.tgz") as archive:
        kept = {name.removeprefix("./") for name in archive.getnames()}
    assert {name: name in kept for name in files} == files
