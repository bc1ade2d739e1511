"""Time that is set aside grows where the machine became slower since the folds ran."""

from __future__ import annotations

from collections.abc import Callable, Sized
from pathlib import Path

import numpy as np
import pytest

from etude.pick import pace
from etude.pick.clock import OutOfTime
from etude.pick.contenders import FIT_MARGIN, TRIAL_EXAMPLES, ProbeContender
from etude.pick.data import PickData
from etude.pick.encoders import Encoder
from etude.pick.final import LEAST_SCORED, choose_winner, draw_part, score_held_out
from etude.pick.pace import FRESH, MOST, Pace
from tests.pick.test_race import FakeTime, Scripted, build_race, data, fake_time

__all__ = ["data", "fake_time"]  # fixtures


def test_a_measurement_holds_for_some_seconds(monkeypatch: pytest.MonkeyPatch, fake_time: FakeTime) -> None:
    measured = iter([0.01, 0.02, 0.4])
    monkeypatch.setattr(pace, "measure", lambda: next(measured))
    machine = Pace()
    assert machine.now() == machine.now() == 0.01
    fake_time.seconds += FRESH + 1
    assert machine.slowdown(0.01) == pytest.approx(2.0) and machine.slowdown(None) == 1.0
    assert machine.slowdown(0.1) == 1.0, "a faster machine sets no time free"
    fake_time.seconds += FRESH + 1
    assert machine.slowdown(0.01) == MOST


def test_the_reserve_grows_with_the_load(
    data: PickData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_time: FakeTime
) -> None:
    race = build_race(data, tmp_path / "out", 300)
    race.run_folds(race.enter(Scripted("steady", 0.8, lambda: 2.0)))
    quiet, cost = race.reserve(), race.refit_seconds(race.entries["steady"])
    monkeypatch.setattr(pace, "measure", lambda: 0.025)
    fake_time.seconds += FRESH + 1
    assert race.refit_seconds(race.entries["steady"]) == pytest.approx(2.5 * cost)
    scored = race.entries["steady"].scored_cost
    assert race.reserve() >= quiet + 1.5 * FIT_MARGIN * (cost + scored)


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
    assert winner.contender.name == "cheap" and "dear was better" in race.notes[-1]["en"]
    assert score_held_out(race, winner) is not None
    assert score_held_out(race, race.entries["dear"]) is None, "a score that would come too late is not begun"


def test_the_best_is_not_given_up_for_a_margin_of_its_score(
    data: PickData, tmp_path: Path, fake_time: FakeTime
) -> None:
    """The margin of both fits was asked of the time left; with more than a minute unused the second best was taken."""
    race = build_race(data, tmp_path / "out", 400)
    race.run_folds(race.enter(Scripted("cheap", 0.7, lambda: 0.2)))
    race.run_folds(race.enter(Scripted("dear", 0.9, lambda: 20.0)))
    dear = race.entries["dear"]
    fits = dear.scored_cost + dear.trials.cost
    fake_time.seconds += race.clock.left - 1.2 * fits
    assert FIT_MARGIN * fits > 1.1 * race.clock.left
    assert choose_winner(race) is dear and score_held_out(race, dear) is not None


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
    assert batches.sizes == [2, TRIAL_EXAMPLES]
    contender._check_time(data, fake_time.seconds + 600)


def test_a_large_test_file_is_answered_as_far_as_there_is_time(data: PickData, tmp_path: Path) -> None:
    numbers = np.arange(500, 1500)
    part = draw_part(numbers, 0.3, seed=0)
    assert len(part) == 300 and set(part) <= set(numbers.tolist()) and (np.diff(part) > 0).all()
    assert (draw_part(numbers, 0.3, seed=0) == part).all() and len(draw_part(numbers, 0.0, seed=0)) == LEAST_SCORED
    assert (draw_part(numbers, 1.0, seed=0) == numbers).all()

    class SlowAnswers(Scripted):
        def estimate_scoring(self, data: PickData) -> float:
            return 400.0

    race = build_race(data, tmp_path / "out", 200)
    race.run_folds(race.enter(SlowAnswers("slow answers", 0.9, lambda: 1.0)))
    assert race.entries["slow answers"].trials.answers.keys() == set(range(data.planned)), "no fold is given up for it"
    assert race.reserve() <= race.finishing_seconds() + 0.15 * 200 + 2 * FIT_MARGIN * 2
    score = score_held_out(race, choose_winner(race))
    assert score is not None and score.examples == len(data.scored_on) < LEAST_SCORED
