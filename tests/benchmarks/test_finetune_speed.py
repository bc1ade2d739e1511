"""Comparing fine-tuning: both models of a task come first; a rival that fails or does not pay is left out."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

from benchmarks import finetune_speed


def test_both_models_of_a_task_come_before_the_next_task(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[tuple[str, str]] = []
    monkeypatch.setattr(finetune_speed, "compare", lambda name, kind, rounds: done.append((name, kind)))
    monkeypatch.setattr(sys, "argv", ["finetune_speed.py", "--device", "cpu", "--texts", "pairs", "tags"])
    finetune_speed.main()
    assert done == [("8x512", "pairs"), ("bert-base", "pairs"), ("8x512", "tags"), ("bert-base", "tags")]


@pytest.mark.parametrize(("compiled", "times"), [(0.03, 1), (0.01, 3)])
def test_a_compiled_trainer_is_measured_where_it_helps(
    compiled: float, times: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[str] = []

    def measure(name: str, seconds: float) -> object:
        def run(*_: object) -> float:
            calls.append(name)
            if name == "plain loop":
                raise RuntimeError("out of memory")
            return seconds

        return run

    loop = SimpleNamespace(loader=SimpleNamespace(steps=lambda *_: None), recorder=None)
    monkeypatch.setattr(finetune_speed, "LIMITS", finetune_speed.Limits(torch.device("cuda")))
    monkeypatch.setattr(finetune_speed, "check_same", lambda *_: None)
    monkeypatch.setattr(finetune_speed, "build_loop", lambda *_, **__: loop)
    monkeypatch.setattr(finetune_speed, "take_steps", lambda *_: 0.005)
    for name, seconds in (("plain loop", 0.0), ("Trainer", 0.02), ("compiled Trainer", compiled)):
        monkeypatch.setattr(finetune_speed, f"time_{name.lower().replace(' ', '_')}", measure(name, seconds))
    finetune_speed.compare("tiny", "pairs", 3)
    text = capsys.readouterr().out
    assert calls.count("Trainer") == 3 and calls.count("compiled Trainer") == times and calls.count("plain loop") == 1
    assert "plain loop is not measured: RuntimeError('out of memory')" in text
    assert "recorded is 4.00 times the Trainer" in text and "times the plain loop" not in text
    assert f"recorded is {compiled / 0.005:.2f} times the compiled Trainer" in text
