"""Time that is set aside grows where the machine became slower since the folds ran."""

from __future__ import annotations

from collections.abc import Callable, Sized
from pathlib import Path

import pytest

from etude.pick import pace
from etude.pick.clock import OutOfTime
from etude.pick.contenders import TRIAL_EXAMPLES, ProbeContender
from etude.pick.data import PickData
from etude.pick.encoders import Encoder
from etude.pick.final import choose_winner, score_held_out
from etude.pick.pace import FRESH, MOST, Pace
from etude.pick.race import FIT_MARGIN
from tests.pick.test_race import FakeTime, Scripted, build_race, data, fake_time

__all__ = ["data", "fake_time"]  # fixtures


def test_a_measurement_holds_for_some_seconds(monkeypatch: pytest.MonkeyPatch, fake_time: FakeTime) -> None:
    measured = iter([0.01, 0.05, 0.4])
    monkeypatch.setattr(pace, "measure", lambda: next(measured))
    machine = Pace()
    assert machine.now() == machine.now() == 0.01
    fake_time.seconds += FRESH + 1
    assert machine.slowdown(0.01) == pytest.approx(5.0) and machine.slowdown(None) == 1.0
    assert machine.slowdown(0.1) == 1.0, "a faster machine sets no time free"
    fake_time.seconds += FRESH + 1
    assert machine.slowdown(0.01) == MOST


def test_the_reserve_grows_with_the_load(
    data: PickData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_time: FakeTime
) -> None:
    race = build_race(data, tmp_path / "out", 300)
    race.run_folds(race.enter(Scripted("steady", 0.8, lambda: 2.0)))
    quiet, cost = race.reserve(), race.refit_seconds(race.entries["steady"])
    monkeypatch.setattr(pace, "measure", lambda: 0.04)
    fake_time.seconds += FRESH + 1
    assert race.refit_seconds(race.entries["steady"]) == pytest.approx(4 * cost)
    assert race.reserve() >= quiet + 3 * 2 * FIT_MARGIN * cost


def test_a_slow_machine_takes_the_best_that_can_still_be_refitted(
    data: PickData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_time: FakeTime
) -> None:
    race = build_race(data, tmp_path / "out", 200)
    race.run_folds(race.enter(Scripted("cheap", 0.7, lambda: 0.2)))
    race.run_folds(race.enter(Scripted("dear", 0.9, lambda: 8.0)))
    assert race.leader() is race.entries["dear"]
    fake_time.seconds += race.clock.left - 60  # quiet, its refit and score would fit
    monkeypatch.setattr(pace, "measure", lambda: 0.06)
    winner = choose_winner(race)
    assert winner.contender.name == "cheap" and "dear was better" in race.notes[-1]
    assert score_held_out(race, winner) is not None
    assert score_held_out(race, race.entries["dear"]) is None, "a score that would come too late is not begun"


class SlowBatches:
    """A probe whose batches of rows take ten seconds each."""

    def __init__(self, clock: FakeTime) -> None:
        self.clock, self.sizes = clock, []

    def features(self, examples: Sized, deadline: float | None, on_batch: Callable[[int, int], None]) -> None:
        self.sizes.append(len(examples))
        for done in range(10, len(examples) + 1, 10):
            self.clock.seconds += 10
            on_batch(done, len(examples))


def test_features_stop_before_the_batch_that_would_be_late(data: PickData, fake_time: FakeTime) -> None:
    contender = ProbeContender(Encoder("small", {"en": "small", "ko": "small"}, Path("none"), "key", 0.0, {}), "cpu")
    contender._probe = SlowBatches(fake_time)  # type: ignore[assignment]
    start = fake_time.seconds
    with pytest.raises(OutOfTime):
        contender._read(data, range(100), start + 35)
    assert fake_time.seconds - start == 30, "a fourth batch would have ended five seconds late"
    contender._read(data, range(30), fake_time.seconds + 30)


def test_features_that_cannot_be_read_in_time_are_not_begun(data: PickData, fake_time: FakeTime) -> None:
    contender = ProbeContender(Encoder("small", {"en": "small", "ko": "small"}, Path("none"), "key", 0.0, {}), "cpu")
    batches = SlowBatches(fake_time)
    contender._probe = batches  # type: ignore[assignment]
    with pytest.raises(OutOfTime):
        contender._check_time(data, fake_time.seconds + 60)
    assert batches.sizes == [TRIAL_EXAMPLES]
    contender._check_time(data, fake_time.seconds + 600)
