"""A run that would end late becomes shorter, and its learning rate still comes to its end."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from etude.pretraining.pretrain import pretrain
from etude.text.prepare.prepare import prepare
from etude.train import loop
from etude.train.pace import Pace
from etude.world import World


def simulate(seconds_per_step: list[float], deadline: float, planned: int, every: int = 10) -> tuple[int, float]:
    """The step and the time at which a run ends whose n-th window takes so many seconds a step."""
    pace, now, step, total = Pace(deadline, planned), 0.0, 0, planned
    while step < total:
        now += seconds_per_step[min(step // every, len(seconds_per_step) - 1)]
        step += 1
        if step % every == 0:
            total = pace.limit_steps(step, now)
    return step, now


def test_a_run_in_time_keeps_its_length() -> None:
    assert simulate([0.1], 1000.0, 500)[0] == 500


def test_a_run_that_would_be_late_ends_in_time() -> None:
    step, now = simulate([0.1], 100.0, 100_000)
    assert 90 < now < 100 and step < 1000


def test_a_slow_first_window_does_not_count() -> None:
    step, _ = simulate([3.0, 0.1], 100.0, 10_000)
    assert step > 500, "compilation is no pace"


@pytest.mark.parametrize("factor", [2, 4])
def test_a_machine_that_becomes_slow_on_the_way(factor: int) -> None:
    _, now = simulate([0.1] * 30 + [0.1 * factor], 100.0, 100_000)
    assert 85 < now < 100


def test_one_slow_window_is_made_up_for() -> None:
    """An evaluation in the middle makes the run shorter for a while, not for good."""
    assert simulate([0.1] * 20 + [1.0] + [0.1], 200.0, 1500)[0] == 1500


class FakeTime:
    """Time that passes by a tenth of a second whenever someone looks: a busy machine changes nothing."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        self.seconds += 0.1
        return self.seconds

    perf_counter = staticmethod(time.perf_counter)


def test_a_shortened_run_ends_at_a_rate_of_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "town.txt"
    text.write_text("\n\n".join(World().text(0.05)) + "\n", encoding="utf-8")
    corpus = prepare([str(text)], tmp_path / "corpus", "bpe:300,lower")
    monkeypatch.setattr(loop, "time", FakeTime())
    overrides = {"train.steps": 1_000_000, "model.context": 32, "train.batch_tokens": 64, "train.eval_every": 0}
    run = pretrain("gpt1-toy", corpus, tmp_path / "run", quiet=True, overrides=overrides, deadline=10.0, shorten=True)
    assert run.finished, "it came to its end before the deadline"
    lines = run.metrics("train")
    assert 30 < lines[-1]["step"] < 100
    rates = [line["rate"] for line in lines]
    assert rates[-1] < 0.2 * max(rates)
