"""Twenty minutes of a GPU: which commands are run and in which order, what a second visit repeats, and the table."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from benchmarks import twenty_minutes

SCORES = {"5e-5": 0.5, "1e-4": 0.75, "2e-4": 0.25, "3e-4": 0.5}


def fake_etude(calls: list[list[str]], failing: str = "") -> Callable[..., int]:
    """Write what the commands would; a fine-tuning scores by its rate, and a bit more with every seed."""

    def run(*words: object, log: Path, threads: int = 1) -> int:
        line = [str(word) for word in words]
        calls.append(line)
        if failing in line:
            return 2
        folder = Path(line[line.index("-o") + 1])
        folder.mkdir(parents=True)
        if line[0] == "prepare":
            (folder / "manifest.json").touch()
            return 0
        (folder / "model.safetensors").touch()
        if line[0] == "pretrain":
            (folder / "metrics.jsonl").write_text('{"split": "train"}\n{"split": "valid", "loss": 2.5}\n')
            return 0
        settings = dict(word.split("=", 1) for word in line if word.startswith("train."))
        value = SCORES[settings["train.lr"]] + 0.02 * int(settings["train.seed"])
        score = twenty_minutes.TASKS[folder.name.split("-")[0]][3]
        (folder / "task.yaml").write_text(yaml.safe_dump({"scores": {score: {"value": value}}}))
        return 0

    return run


def start(monkeypatch: pytest.MonkeyPatch, folder: Path, *words: str) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    arguments = [str(folder / "text.txt"), str(folder / "tasks"), str(folder / "work"), *words]
    monkeypatch.setattr(sys, "argv", ["twenty_minutes.py", *arguments])
    twenty_minutes.main()


def test_rates_are_tried_and_the_best_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr(twenty_minutes, "etude", fake_etude(calls))
    (tmp_path / "vocab.txt").write_text("[PAD]\n[unused0]\n[unused1]\n")
    words = ["--vocab", str(tmp_path / "vocab.txt"), "--only", "sst2", "ud_ewt", "--seeds", "3", "--processes", "1"]
    start(monkeypatch, tmp_path, *words, "--minutes", "3", "--settings", "objective.kind=replaced")
    assert (tmp_path / "work" / "vocab.txt").read_text() == "[PAD]\n[EOT]\n[unused1]\n"
    assert [line[0] for line in calls] == ["prepare", "pretrain", *["finetune"] * 12]
    assert calls[1][-2:] == ["train.minutes=3.0", "objective.kind=replaced"]
    runs = [Path(line[line.index("-o") + 1]).name for line in calls[2:]]
    trials = [f"{name}-{rate}-0" for name in ("sst2", "ud_ewt") for rate in twenty_minutes.CANDIDATES]
    assert runs == trials + [f"{name}-1e-4-{seed}" for name in ("sst2", "ud_ewt") for seed in (1, 2)]
    result = json.loads((tmp_path / "work" / "twenty_minutes.json").read_text())
    assert result["pretraining"] == {"split": "valid", "loss": 2.5}
    assert result["tasks"]["sst2"]["median"] == pytest.approx(77) and result["tasks"]["sst2"]["rate"] == "1e-4"
    table = capsys.readouterr().out
    assert "sst2         accuracy     77.0  goal 90.5 missed   lr 1e-4  all 75.0 77.0 79.0  BERT-medium 89.6" in table
    start(monkeypatch, tmp_path, *words, "--minutes", "3")
    assert len(calls) == 14, "what is done is not repeated"


def test_a_second_machine_goes_on_with_weights_and_scores_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing else of a visit came home: text and corpus were prepared anew, and all fine-tunings repeated."""
    calls: list[list[str]] = []
    monkeypatch.setattr(twenty_minutes, "etude", fake_etude(calls))
    encoder = tmp_path / "work" / "encoder"
    encoder.mkdir(parents=True)
    (encoder / "model.safetensors").touch()
    sums = {"files": {"model.safetensors": {"sha256": "a" * 64}}}
    (encoder / "checksums.json").write_text(json.dumps(sums))
    kept = [
        {"task": "sst2", "rate": rate, "seed": 0, "encoder": name * 16, "scores": {"accuracy": SCORES[rate]}}
        for rate, name in (("5e-5", "a"), ("1e-4", "a"), ("2e-4", "b"))  # the last of other weights
    ]
    (tmp_path / "work" / "scores.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    start(monkeypatch, tmp_path, "--only", "sst2", "--seeds", "3", "--processes", "1")
    runs = [Path(line[line.index("-o") + 1]).name for line in calls]
    assert runs == ["sst2-2e-4-0", "sst2-3e-4-decay-0", "sst2-1e-4-1", "sst2-1e-4-2"]
    result = json.loads((tmp_path / "work" / "twenty_minutes.json").read_text())
    assert result["tasks"]["sst2"]["values"] == pytest.approx([75, 77, 79])
    assert len((tmp_path / "work" / "scores.jsonl").read_text().splitlines()) == 7
    # another encoder in its place: what was fine-tuned from the first one is none of its own
    (encoder / "checksums.json").write_text(json.dumps({"files": {"model.safetensors": {"sha256": "c" * 64}}}))
    start(monkeypatch, tmp_path, "--only", "sst2", "--seeds", "3", "--processes", "1")
    assert len(calls) == 4 + 6


def test_decoders_that_have_results_are_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr(twenty_minutes, "etude", fake_etude(calls))
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "decoders.json").write_text('{"decoder-20min": {"valid": 1}, "gpt2": {"valid": 2}}')
    (tmp_path / "vocab.txt").write_text("[PAD]\n[unused0]\n")
    start(monkeypatch, tmp_path, "--decoder", "--vocab", str(tmp_path / "vocab.txt"))
    assert calls[0][0] == "prepare" and calls[0][-1] == "bytebpe:50304", "bits a byte are of the text as it is"
    assert [line[:2] for line in calls if line[0] == "pretrain"] == [["pretrain", "gpt2"]]
    results = json.loads((tmp_path / "work" / "decoders.json").read_text())
    assert results["gpt2"] == {"valid": 2} and results["gpt2-8x512"]["valid"]["loss"] == 2.5


def test_repeats_of_a_task_do_not_wait_for_the_rates_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[list[str]] = []
    quick, repeated = fake_etude(calls), threading.Event()

    def run(*words: object, log: Path, threads: int = 1) -> int:
        if "sst2" in words and not repeated.wait(20):
            return 2
        code = quick(*words, log=log, threads=threads)
        if "train.seed=1" in words:
            repeated.set()
        return code

    monkeypatch.setattr(twenty_minutes, "etude", run)
    start(monkeypatch, tmp_path, "--only", "sst2", "rte", "--seeds", "2", "--processes", "5")
    result = json.loads((tmp_path / "work" / "twenty_minutes.json").read_text())
    assert [row["rate"] for row in result["tasks"].values()] == ["1e-4", "1e-4"]


def test_the_best_run_is_scored_again_by_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(twenty_minutes, "etude", fake_etude([]))
    (tmp_path / "python").write_text('#!/bin/sh\necho "[\\"$2\\", \\"$3\\"]"\n')
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    start(monkeypatch, tmp_path, "--only", "mrpc", "sst2", "--seeds", "1", "--processes", "1")
    exported = json.loads((tmp_path / "work" / "twenty_minutes.json").read_text())["exported"]
    run, examples = (
        tmp_path / "work" / "tasks" / "encoder" / "mrpc-1e-4-0",
        tmp_path / "tasks" / "mrpc" / "valid.jsonl.xz",
    )
    assert exported == {"mrpc": [str(run), str(examples)]}


def test_a_command_that_fails_is_shown_and_ends_what_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pre-training that was refused ended with a table of tasks that were not done, and without an error."""
    log = tmp_path / "logs" / "show.log"
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    script = "#!/bin/sh\necho 'Error: no such verb' >&2\nexit 2\n"
    (tmp_path / "python").write_text(script)
    (tmp_path / "python").chmod(0o755)
    assert twenty_minutes.etude("shw", log=log) == 2
    assert f"etude shw failed with 2, see {log}: Error: no such verb" in capsys.readouterr().err
    calls: list[list[str]] = []
    monkeypatch.setattr(twenty_minutes, "etude", fake_etude(calls, failing="pretrain"))
    with pytest.raises(SystemExit) as ended:
        start(monkeypatch, tmp_path, "--only", "sst2")
    assert ended.value.code == 1 and [line[0] for line in calls] == ["prepare", "pretrain"]
