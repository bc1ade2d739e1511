"""Rounds on a device that several candidates share: begun early, each longer than the one before, none lost."""

from __future__ import annotations

import json
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etude.pick import rounds
from etude.pick.candidates import Candidate
from etude.pick.contenders import Majority, TunedContender
from etude.pick.data import PickData
from etude.pick.encoders import Encoder, Pretraining
from etude.pick.journal import Journal
from etude.pick.labels import read_labels
from etude.pick.race import Entry, Race
from etude.pick.rounds import SharedRounds
from etude.pick.worker_pool import Job
from etude.runs.task_plan import task_module
from etude.study.cells import CellStore


class FakePool:
    """Does at once what its processes would do, or fails."""

    def __init__(self, slots: int, store: CellStore, failing: tuple[str, ...] = (), shares_device: bool = True) -> None:
        self.slots, self.store, self.failing, self.shares_device = slots, store, failing, shares_device
        self.jobs: list[Job] = []

    def submit(self, job: Job) -> Future[str | None]:
        self.jobs.append(job)
        future: Future[str | None] = Future()
        if job.work["name"].split()[0] in self.failing:
            future.set_result("CUDA out of memory")
        else:
            with self.store.lock(job.work["key"]):
                self.store.finish(job.work["key"], {"flops": 1.0, "tokens": 1.0, "seconds": 1.0})
            future.set_result(None)
        return future


@pytest.fixture
def race(tmp_path: Path) -> Race:
    path = tmp_path / "labels.jsonl"
    path.write_text("".join(json.dumps({"text": f"text {n}", "label": "ab"[n % 2]}) + "\n" for n in range(60)))
    labelled, _ = read_labels("classify", path)
    data = PickData.build(labelled, None, None, task_module("classify").Settings(), 0.2, seed=0)
    journal = Journal(tmp_path, {})
    journal.start(600)
    (tmp_path / "cells").mkdir()
    return Race(data, journal, CellStore(tmp_path / "cells"), "cuda", 0, lambda _: None)


@pytest.fixture
def scores(race: Race, monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """How good each candidate's encoder is, by name; features are not computed."""
    values = {"one": 0.6, "two": 0.9, "three": 0.7, "four": 0.8}

    def plan(candidate: Candidate, text: object, share: float, minutes: float, *_: object, **__: object) -> Pretraining:
        name = f"{candidate.name} {minutes}"
        return Pretraining(f"key {name}", name, candidate.label, "recipe", "corpus", {}, minutes)

    def probe(encoder: Encoder) -> Entry:
        contender = Majority()
        contender.name = encoder.name
        return race.enter(contender, encoder)

    monkeypatch.setattr(rounds, "plan_pretraining", plan)
    monkeypatch.setattr(race, "run_probe", probe)
    monkeypatch.setattr(race, "ranking", lambda: sorted(race.entries, key=lambda name: -values[name.split()[0]]))
    monkeypatch.setattr(race, "standing", lambda name: type("S", (), {"score": values[name.split()[0]]})())
    return values


class NoText:
    size = 0


def run_shared(race: Race, pool: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run all rounds; returns the names of the encoders that were fine-tuned."""
    tuned: list[str] = []
    names = "one", "two", "three", "four"
    monkeypatch.setattr(rounds, "run_tuned", lambda _, entry: tuned.append(entry.contender.name))
    candidates = [Candidate(name, {"en": name, "ko": name}, "bert-toy", {}) for name in names]
    shared = SharedRounds(race, pool, candidates, NoText(), 0.6)  # type: ignore[arg-type]
    shared.start()
    shared.finish()
    return tuned


@pytest.mark.usefixtures("scores")
def test_all_at_once_then_the_better_half_for_longer(race: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = FakePool(4, race.store)
    tuned = run_shared(race, pool, monkeypatch)
    assert [job.work["name"].split()[0] for job in pool.jobs] == ["one", "two", "three", "four", "two", "four"]
    assert [name.split()[0] for name in tuned] == ["two", "four"]
    shares = [job.work["minutes"] / (4 if number < 4 else 2) for number, job in enumerate(pool.jobs)]
    assert shares[4] == pytest.approx(2 * shares[0], rel=0.05), "the share of the card doubles"
    walls = [job.seconds or 0 for job in (pool.jobs[0], pool.jobs[4])]
    assert sum(walls) <= 0.6 * 600, "both rounds end within their share of the time"
    assert all(job.deadline <= time.monotonic() + 600 for job in pool.jobs)


@pytest.mark.usefixtures("scores")
def test_machines_of_their_own_take_no_longer_together(race: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    race.device = "cpu"
    pool = FakePool(2, race.store, shares_device=False)
    tuned = run_shared(race, pool, monkeypatch)
    assert [job.work["name"].split()[0] for job in pool.jobs] == ["one", "two", "three", "four", "two", "four", "two"]
    assert [name.split()[0] for name in tuned] == ["two"]
    minutes = [job.work["minutes"] for job in pool.jobs]
    assert minutes[4] == pytest.approx(2 * minutes[0], rel=0.05)
    # four on two machines, then two, then one, within their share of ten minutes
    assert 2 * minutes[0] + minutes[4] + minutes[6] <= 0.6 * 10


@pytest.mark.usefixtures("scores")
def test_one_that_fails_is_named_and_the_others_go_on(race: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    tuned = run_shared(race, FakePool(4, race.store, failing=("two",)), monkeypatch)
    assert [name.split()[0] for name in tuned] == ["four", "three"]
    assert any("two: CUDA out of memory" in note["en"] for note in race.notes)


@pytest.mark.usefixtures("scores")
def test_no_time_is_said(race: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    race.clock.total = 40.0
    assert run_shared(race, FakePool(4, race.store), monkeypatch) == []
    assert any("no pre-training: it needs about" in note["en"] for note in race.notes)


@pytest.mark.usefixtures("scores")
def test_those_that_there_is_no_time_for_are_named(race: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recipes that a user had named were left out without a word."""
    race.clock.total = 150.0
    pool = FakePool(4, race.store)
    run_shared(race, pool, monkeypatch)
    tried = {job.work["name"].split()[0] for job in pool.jobs}
    assert {"one"} <= tried < {"one", "two", "three", "four"}
    assert {skipped["label"]["en"] for skipped in race.untried} == {"one", "two", "three", "four"} - tried
    assert f"time to pre-train {len(tried)} of 4" in race.untried[0]["reason"]["en"]


def test_a_short_pick_names_the_recipes_it_leaves_out(race: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    race.device, begun = "cpu", []
    race.clock.total = 120.0
    monkeypatch.setattr(rounds, "pretrain_in_turn", lambda _, each, *__: begun.append(each.name))
    candidates = [Candidate(name, {"en": name, "ko": name}, "bert-toy", {}) for name in ("one", "two", "three")]
    rounds.run_rounds(race, "pre-training from scratch", candidates, NoText(), 0.6)  # type: ignore[arg-type]
    assert begun == ["one"] and [skipped["label"]["en"] for skipped in race.untried] == ["two", "three"]


def test_folds_are_fitted_at_once(race: Race, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first trial of a group begins the group's fine-tunings; those that are stored are not done again."""

    class Tuned(TunedContender):
        def __init__(self) -> None:
            self.name, self.label = "tuned", {"en": "tuned", "ko": "tuned"}
            self.device, self.length = "cpu", 1.0

        @property
        def key(self) -> str:
            return "tuned"

        def plan(self, data: PickData, train: np.ndarray, key: str, work: Path) -> Any:
            return type("Planned", (), {"json": lambda _: {"name": "tuned", "key": key}})()

        def answer(self, data: PickData, train: np.ndarray, valid: np.ndarray, *_: object) -> list[dict[str, Any]]:
            return [{"label": "a", "scores": {"a": 0.6, "b": 0.4}} for _ in valid]

    class Pool(FakePool):
        def submit(self, job: Job) -> Future[str | None]:
            self.jobs.append(job)
            future: Future[str | None] = Future()
            future.set_result(None)
            return future

    race.pool = Pool(4, race.store)  # type: ignore[assignment]
    race.run_folds(race.enter(Tuned()))
    keys = [job.work["key"] for job in race.pool.jobs]  # type: ignore[union-attr]
    assert len(keys) == len(set(keys)) == len(race.data.folds)
    assert len(race.entries["tuned"].trials.answers) == len(race.data.folds)
