"""The race: stored trials, decisions that a kill does not change, time that is kept whatever a contender does."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom

from etude.errors import UserError
from etude.pick import stages
from etude.pick.clock import OutOfTime
from etude.pick.contenders import FIT_MARGIN, Contender
from etude.pick.data import PickData
from etude.pick.encoders import Candidate, Encoder
from etude.pick.final import bound_score, calibrate, choose_winner, note_answers, score_held_out
from etude.pick.journal import Journal
from etude.pick.labels import read_labels
from etude.pick.race import CHEAP_SHARE, FINISHING, Race
from etude.pick.text import PickText
from etude.runs.task_plan import task_module
from etude.study.cells import CellStore
from etude.tasks.base import Answer
from etude.tasks.outcomes import mean_outcome


class FakeTime:
    """Time that passes only where a contender says so: the machine's own load changes nothing."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture(autouse=True)
def fake_time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    clock = FakeTime()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


class Scripted(Contender):
    """Answers right for a share of the examples, after a pause."""

    def __init__(self, name: str, share: float, pause: Callable[[], float] = lambda: 0.0, salt: int = 0) -> None:
        self.name, self.share, self.pause, self.salt = name, share, pause, salt
        self.label = {"en": name, "ko": name}
        self.calls = 0

    @property
    def key(self) -> str:
        return f"scripted {self.name} {self.share}"

    def answer(
        self, data: PickData, train: np.ndarray, valid: np.ndarray, work: Path, deadline: float | None
    ) -> list[Answer]:
        assert not set(train.tolist()) & set(valid.tolist())
        self.calls += 1
        clock = time.monotonic
        assert isinstance(clock, FakeTime)
        end = clock.seconds + self.pause()
        if deadline is not None and end > deadline:
            clock.seconds = max(clock.seconds, deadline)
            raise OutOfTime
        clock.seconds = end
        answers = []
        for number in valid.tolist():
            gold = data.gold[number]
            label = gold if (number * 7919 + self.salt) % 100 < 100 * self.share else ("b" if gold == "a" else "a")
            answers.append({"label": label, "scores": {"a": 0.9, "b": 0.1} if label == "a" else {"a": 0.1, "b": 0.9}})
        return answers

    def refit(self, data: PickData, out: Path, labels: Path, deadline: float | None) -> None:
        out.mkdir(parents=True)

    def scale_logits(self, folder: Path, value: float) -> None:
        (folder / "scaled").write_text(str(value))


@pytest.fixture
def data(tmp_path: Path) -> PickData:
    path = tmp_path / "labels.jsonl"
    records = [{"text": f"text number {n}", "label": "ab"[n % 2]} for n in range(200)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    labelled, problems = read_labels("classify", path)
    assert not problems
    return PickData.build(labelled, None, None, task_module("classify").Settings(), 0.2, seed=0)


def build_race(data: PickData, folder: Path, seconds: float) -> Race:
    folder.mkdir(exist_ok=True)
    journal = Journal(folder, {"the labels": data.fingerprint})
    journal.start(seconds)
    return Race(data, journal, CellStore(folder / "cells"), "cpu", 0, lambda _: None)


def test_parts_of_the_labels(data: PickData) -> None:
    assert len(data.scored_on) == 40 and len(data.chosen_on) == 160 and len(data.refit_on) == 200
    assert not set(data.scored_on.tolist()) & set(data.chosen_on.tolist())
    for fold in data.folds:
        used = set(fold.train.tolist()) | set(fold.valid.tolist())
        assert used <= set(data.chosen_on.tolist()), "nothing is chosen on what is scored"


def test_the_better_contender_wins_and_is_scored_on_unseen_examples(data: PickData, tmp_path: Path) -> None:
    race = build_race(data, tmp_path / "out", 600)
    for contender in (Scripted("bad", 0.6), Scripted("good", 0.9), Scripted("middle", 0.75)):
        race.run_folds(race.enter(contender))
    assert race.ranking() == ["good", "middle", "bad"]
    winner = choose_winner(race)
    assert winner.contender.name == "good"
    score = score_held_out(race, winner)
    assert score is not None and score.examples == 40 and score.low <= score.value <= score.high
    scaling = calibrate(race, winner, accuracy=None)
    assert scaling is not None and scaling.error_after <= scaling.error_before + 1e-9
    assert scaling.loss_after <= scaling.loss_before and scaling.answers == 160


def test_trials_are_read_again_not_done_again(data: PickData, tmp_path: Path) -> None:
    first, again = Scripted("same", 0.8), Scripted("same", 0.8)
    race = build_race(data, tmp_path / "out", 600)
    race.run_folds(race.enter(first))
    assert first.calls == len(data.folds)
    resumed = build_race(data, tmp_path / "out", 600)
    resumed.run_folds(resumed.enter(again))
    assert again.calls == 0 and resumed.entries["same"].trials.answers == race.entries["same"].trials.answers


def test_answers_may_hold_any_line_separator(data: PickData, tmp_path: Path) -> None:
    """Of web pages U+2028 and U+0085 come along: a span that held one ended the pick, and again when it went on."""

    class Quoting(Scripted):
        def answer(self, *arguments: Any) -> list[Answer]:
            return [{**answer, "text": "one\u2028two\u0085three\r\nfour"} for answer in super().answer(*arguments)]

    race = build_race(data, tmp_path / "out", 600)
    race.run_folds(race.enter(Quoting("quoting", 0.8)))
    assert race.entries["quoting"].trials.answers[0][0]["text"] == "one\u2028two\u0085three\r\nfour"


def test_a_slow_contender_stops_in_time_and_cannot_win_by_luck(data: PickData, tmp_path: Path) -> None:
    race = build_race(data, tmp_path / "out", 1.1 * FINISHING + 1.0)
    race.run_folds(race.enter(Scripted("quick", 0.7)))
    race.run_folds(race.enter(Scripted("slow", 1.0, lambda: 60.0)))
    assert race.clock.left >= FINISHING
    assert not race.entries["slow"].trials.answers and "no time for more" in race.entries["slow"].note
    assert choose_winner(race).contender.name == "quick"


def test_a_machine_that_becomes_slow_on_the_way(data: PickData, tmp_path: Path) -> None:
    """Folds take forty times as long after the third: the time of the leader's refit is still there at the end."""
    speed = {"calls": 0}

    def pause() -> float:
        speed["calls"] += 1
        return 0.01 if speed["calls"] <= 3 else 0.4

    race = build_race(data, tmp_path / "out", 1.1 * FINISHING + 2.0)
    race.run_folds(race.enter(Scripted("steady", 0.7)))
    race.run_folds(race.enter(Scripted("slowing", 0.99, pause)))
    entry = race.entries["slowing"]
    assert 3 <= len(entry.trials.answers) < len(data.folds)
    assert race.clock.left >= FINISHING + 2 * FIT_MARGIN * race.entries["steady"].trials.cost


def test_the_folds_of_a_stopped_contender_are_decided_once(data: PickData, tmp_path: Path) -> None:
    race = build_race(data, tmp_path / "out", 1.1 * FINISHING + 0.5)
    race.run_folds(race.enter(Scripted("slow", 1.0, lambda: 0.12)))
    folds = len(race.entries["slow"].trials.answers)
    assert 0 < folds < len(data.folds)
    resumed = build_race(data, tmp_path / "out", FINISHING + 100)  # more time now: the decision stays
    resumed.run_folds(resumed.enter(Scripted("slow", 1.0)))
    assert len(resumed.entries["slow"].trials.answers) == folds


def test_an_error_of_one_contender_ends_only_it(data: PickData, tmp_path: Path) -> None:
    class Broken(Scripted):
        def answer(self, *arguments: object) -> list[Answer]:  # type: ignore[override]
            raise UserError("a text is longer than the model")

    race = build_race(data, tmp_path / "out", 600)
    race.run_folds(race.enter(Broken("broken", 1.0)))
    race.run_folds(race.enter(Scripted("fine", 0.7)))
    assert race.ranking() == ["fine"] and "longer than the model" in race.entries["broken"].note


def test_nothing_could_be_tried(data: PickData, tmp_path: Path) -> None:
    race = build_race(data, tmp_path / "out", FINISHING)
    race.run_folds(race.enter(Scripted("slow", 1.0, lambda: 60.0)))
    with pytest.raises(UserError, match=r"No contender could be tried.*more --minutes"):
        choose_winner(race)


def test_a_share_of_the_time_limits_folds_by_the_first(data: PickData, tmp_path: Path) -> None:
    race = build_race(data, tmp_path / "out", 600)
    race.run_folds(race.enter(Scripted("dear", 0.9, lambda: 20.0)), share=0.1)
    assert len(race.entries["dear"].trials.answers) == 3 and "3 of 15 folds" in race.entries["dear"].note


def test_a_slow_machine_gives_cheap_contenders_one_repeat_first(data: PickData, tmp_path: Path) -> None:
    race = build_race(data, tmp_path / "out", 600)
    assert race.scoring_seconds() == 0.0
    race.run_folds(race.enter(Scripted("quick", 0.9, lambda: 0.5)), share=0.1)
    race.run_folds(race.enter(Scripted("dear", 0.9, lambda: 2.0)), share=0.1)
    assert {name: len(entry.trials.answers) for name, entry in race.entries.items()} == {"quick": 15, "dear": 5}
    assert not race.entries["dear"].note, "ties give it more"
    assert race.scoring_seconds() == pytest.approx(1.5 * 5 * 2.0), "time to score those that are still to come"
    race.entries["dear"].trials.seconds = dict.fromkeys(range(5), 20.0)
    assert race.scoring_seconds() == pytest.approx(2 * CHEAP_SHARE * race.clock.total), "no more than they may take"


def test_a_busy_machine_keeps_more_time_for_the_end(data: PickData, tmp_path: Path) -> None:
    """Export and report take half of what loading took; on an idle machine that is less than the six seconds."""
    race = build_race(data, tmp_path / "out", 120)
    idle = race.reserve()
    race.loading = 40.0
    assert race.reserve() == pytest.approx(idle - FINISHING + 20)
    race.loading = 100.0
    assert race.reserve() == pytest.approx(idle - FINISHING + 30), "a quarter of the whole at most"


def test_word_vectors_come_before_the_baseline_that_wins_least(
    data: PickData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside other work, two minutes were over after the bag of n-grams, and nothing was left for word vectors."""
    race, order = build_race(data, tmp_path / "out", 600), []
    monkeypatch.setattr(race, "run_folds", lambda entry, *_: order.append(entry.contender.name))
    monkeypatch.setattr(stages, "drop_unpaying", lambda *_: [])
    monkeypatch.setattr(
        stages, "pretrain_in_turn",
        lambda *_, **__: Encoder("vectors", {"en": "", "ko": ""}, Path("none"), "key", 0.0, {}),
    )  # fmt: skip
    monkeypatch.setattr(stages, "use_time_left", lambda *_: None)
    stages.run_race(race, PickText(None, None, tmp_path), [], [])
    assert order == ["majority", "tfidf", "tfidf+vectors", "vectors", "ngrams"]
    order.clear()
    stages.run_race(race, None, [], [])
    assert order == ["majority", "tfidf", "ngrams"]


def test_stored_trials_remember_the_seconds_of_features(data: PickData, tmp_path: Path) -> None:
    """With other minutes the trials are read again, and fine-tunings were foreseen as if features took no time."""

    class Reader(Scripted):
        def prepare(self, data: PickData, deadline: float | None) -> None:
            self.feature_seconds = 40.0

    race = build_race(data, tmp_path / "out", 600)
    race.run_folds(race.enter(Reader("same", 0.8)))
    again = Reader("same", 0.8)
    resumed = build_race(data, tmp_path / "out", 900)
    resumed.run_folds(resumed.enter(again))
    assert again.calls == 0 and again.feature_seconds == 40.0


def test_a_score_that_is_stored_is_told_after_a_kill(data: PickData, tmp_path: Path, fake_time: FakeTime) -> None:
    """Killed in the refit, a pick came to an end without the score that it had computed already."""
    race = build_race(data, tmp_path / "out", 100)
    race.run_folds(race.enter(Scripted("dear", 0.9, lambda: 10.0)), until=3)
    score = score_held_out(race, choose_winner(race))
    assert score is not None
    fake_time.seconds += race.clock.left - 5
    race.journal.save()
    resumed = build_race(data, tmp_path / "out", 100)
    again = Scripted("dear", 0.9, lambda: 10.0)
    resumed.run_folds(resumed.enter(again), until=3)
    assert resumed.clock.left <= 5
    stored = score_held_out(resumed, choose_winner(resumed))
    assert stored is not None and stored.json() == score.json() and again.calls == 0


def test_right_answers_alone_are_no_certainty(data: PickData, tmp_path: Path) -> None:
    """40 right answers of 40: the interval of a bootstrap was 100 to 100 %."""
    race = build_race(data, tmp_path / "out", 600)
    race.run_folds(race.enter(Scripted("perfect", 1.0)))
    score = score_held_out(race, choose_winner(race))
    assert score is not None and score.value == score.high == 1.0
    assert score.low == pytest.approx(0.025 ** (1 / 40))


def test_an_interval_of_shares_is_exact_and_of_other_scores_drawn() -> None:
    low, high = bound_score(mean_outcome([1.0] * 15 + [0.0] * 5), seed=0)
    assert binom.sf(14, 20, low) == pytest.approx(0.025) and binom.cdf(15, 20, high) == pytest.approx(0.025)
    low, high = bound_score(mean_outcome([0.25, 0.5, 0.75] * 20), seed=0)
    assert low == pytest.approx(0.45, abs=0.02) and high == pytest.approx(0.55, abs=0.02)


def test_an_accuracy_that_cannot_be_promised_is_said(data: PickData, tmp_path: Path) -> None:
    """The model answered always, and nobody was told."""
    race = build_race(data, tmp_path / "out", 600)
    race.run_folds(race.enter(Scripted("poor", 0.6)))
    winner = choose_winner(race)
    note_answers(race, calibrate(race, winner, accuracy=None), None)
    note_answers(race, calibrate(race, winner, accuracy=0.4), 0.4)
    assert not race.notes
    note_answers(race, calibrate(race, winner, accuracy=0.95), 0.95)
    assert "by 160 answers" in race.notes[-1]["en"] and "at least 59 sure answers" in race.notes[-1]["en"]
    assert "0.95" in race.notes[-1]["ko"]


def test_each_start_is_worth_its_own_time(data: PickData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large start that could not read enough took a small one with it."""
    race, label = build_race(data, tmp_path / "out", 600), {"en": "", "ko": ""}
    starts = [(Encoder(name, label, Path("none"), name, 0.0, {}), Candidate(name, label, name, {}, is_start=True))
              for name in ("large", "small")]  # fmt: skip
    entered: list[Candidate] = []
    monkeypatch.setattr(race, "run_baselines", lambda *_: None)
    monkeypatch.setattr(race, "run_late_baseline", lambda: None)
    monkeypatch.setattr(race, "run_probe", lambda encoder: None)
    monkeypatch.setattr(
        stages, "drop_unpaying", lambda race, each, *_: [one for one in each if each[0].name != "large"]
    )
    monkeypatch.setattr(stages, "run_vectors", lambda *_: None)
    monkeypatch.setattr(stages, "run_rounds", lambda race, stage, candidates, *_: entered.extend(candidates))
    monkeypatch.setattr(stages, "use_time_left", lambda *_: None)
    stages.run_race(race, PickText(None, None, tmp_path), starts, [])
    assert [candidate.name for candidate in entered] == ["small"]


def test_a_contender_without_answers_is_noted(data: PickData, tmp_path: Path) -> None:
    """It is in no table: only a line in the middle of the pick said that it failed, or that there was no time."""

    class Failing(Scripted):
        def answer(self, *_: Any) -> list[Answer]:
            raise UserError("no memory for it")

    race = build_race(data, tmp_path / "out", 600)
    race.run_folds(race.enter(Failing("heavy", 0.9)))
    race.run_folds(race.enter(Scripted("slow", 0.9, lambda: 1e4)))
    assert [note["en"] for note in race.notes] == [
        "heavy: failed: no memory for it", "slow: 0 of 15 folds: there was no time for more"
    ]  # fmt: skip
    assert race.notes[1]["ko"].startswith("slow: 15겹 중 0겹")


def explain(error: Exception) -> UserError:
    """As the training loop does."""
    explained = UserError("memory ran out: set train.micro_tokens=64.")
    explained.__cause__ = error
    return explained


@pytest.mark.parametrize(
    "error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory."), explain(MemoryError())], ids=repr
)
def test_memory_that_runs_out_ends_a_contender_alone(error: Exception, data: PickData, tmp_path: Path) -> None:
    """A start that was too large for the card ended the whole pick by a traceback."""
    failures: list[Exception | None] = [error, None]

    class Large(Scripted):
        def answer(self, *arguments: Any) -> list[Answer]:
            if (failure := failures.pop(0) if failures else None) is not None:
                raise failure
            return super().answer(*arguments)

    race = build_race(data, tmp_path / "out", 600)
    race.run_folds(race.enter(Large("large", 0.9)))
    race.run_folds(race.enter(Scripted("small", 0.8)))
    assert race.ranking() == ["small"] and race.notes[0]["en"].startswith("large: failed: memory ran out: ")
    again = build_race(data, tmp_path / "out", 600)
    again.run_folds(again.enter(Large("large", 0.9)))
    assert again.ranking() == ["large"], "another time there may be more"
