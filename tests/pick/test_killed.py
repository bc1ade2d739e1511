"""A pick that is killed, again and again, comes to the same choice; one on a machine that slows down ends in time."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from etude.world import World

KILLS = 20
SPIN = "while True: pass"


def build_command(folder: Path, out: str, minutes: float) -> list[str]:
    return [
        sys.executable, "-m", "etude", "pick", str(folder / "town.txt"), "--task", "classify", "--train",
        str(folder / "labels.jsonl"), "-o", str(folder / out), "--minutes", str(minutes), "--device", "cpu",
    ]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    town = World()
    (tmp_path / "town.txt").write_text("\n\n".join(town.text(0.3)) + "\n", encoding="utf-8")
    records = town.task("topic", "train", 120)
    (tmp_path / "labels.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return tmp_path


def read_results(folder: Path, out: str) -> dict[str, Any]:
    results: dict[str, Any] = json.loads((folder / out / "results.json").read_text(encoding="utf-8"))
    return results


def read_answers(folder: Path, out: str) -> dict[str, str]:
    """The answers of every fold of contenders that read plain text, by the key of the trial."""
    answers = {}
    for path in (folder / out / "cells").glob("*/answers.jsonl"):
        if json.loads((path.parent / "result.json").read_text())["contender"] in ("majority", "tfidf", "ngrams"):
            answers[path.parent.name] = path.read_text(encoding="utf-8")
    return answers


@pytest.mark.slow
def test_twenty_kills_change_nothing(folder: Path) -> None:
    """Minutes enough for one repeat of the baselines also where other work slows the machine."""
    start = time.monotonic()
    subprocess.run(build_command(folder, "whole", 4), check=True, capture_output=True)
    latest = max(12.0, (time.monotonic() - start) / 4)
    command, draw, kills = build_command(folder, "killed", 4), random.Random(0), 0
    for _ in range(KILLS):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(timeout=draw.uniform(1, latest))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            kills += process.wait() == -signal.SIGKILL
    subprocess.run(command, check=True, capture_output=True)
    whole, killed = read_results(folder, "whole"), read_results(folder, "killed")
    assert kills >= KILLS // 2
    tables = [{row["name"]: (row["folds"], row["score"]) for row in results["rows"]} for results in (whole, killed)]
    assert killed["winner"] == whole["winner"], tables
    for name in ("tfidf", "ngrams"):
        (folds, score), (folds_again, score_again) = tables[0][name], tables[1][name]
        assert min(folds, folds_again) >= 5 and (folds != folds_again or score == score_again), tables
    answers = [read_answers(folder, out) for out in ("whole", "killed")]
    shared = answers[0].keys() & answers[1].keys()
    assert len(shared) >= 15 and all(answers[0][key] == answers[1][key] for key in shared)


@pytest.mark.slow
def test_a_loaded_machine_does_not_make_it_late(folder: Path) -> None:
    """From a third of the time on, as many busy processes as there are cores, and more."""
    minutes = 2.0
    start = time.monotonic()
    process = subprocess.Popen(build_command(folder, "loaded", minutes), stdout=subprocess.DEVNULL)
    time.sleep(20 * minutes)
    busy = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(4)]
    try:
        assert process.wait(timeout=240) == 0
    finally:
        for each in busy:
            each.kill()
            each.wait()
    assert time.monotonic() - start <= 1.1 * 60 * minutes
