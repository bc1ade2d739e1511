"""The plan of a pick on a GPU with simulated speeds: encoders from scratch are pre-trained, scored and end in time.

Time is simulated: processes take what their jobs may take, baselines and features what the table says. Six picks that
share a card have two cores each, and a sixth of its speed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from etude.pick import candidates, rounds, stages, worth
from etude.pick.candidates import GPU_CANDIDATES, Candidate
from etude.pick.contenders import Majority
from etude.pick.data import PickData
from etude.pick.encoders import Encoder, Pretraining
from etude.pick.journal import Journal
from etude.pick.labels import read_labels
from etude.pick.race import Entry, Race
from etude.pick.worker_pool import CORES_PER_SLOT, MAX_SLOTS, Job
from etude.runs.task_plan import task_module
from etude.study.cells import CellStore
from tests.pick.test_race import FakeTime
from tests.pick.test_race import fake_time as fake_time  # a fixture

STARTING = 15.0  # seconds until a process has opened its model and taken its first steps
# minutes, cores, tokens a second that this pick gets of the card, seconds of the baselines, candidates, last tokens
TABLE = [
    (10.0, 2, 150_000, 150.0, 2, 10e6),  # one of six on an H200
    (10.0, 2, 80_000, 200.0, 2, 10e6),  # a slower card
    (10.0, 16, 1_000_000, 60.0, 4, 50e6),  # alone
    (5.0, 2, 150_000, 90.0, 2, 6e6),
    (5.0, 16, 1_000_000, 60.0, 2, 50e6),
    (2.0, 16, 1_000_000, 30.0, 1, 20e6),
    (0.75, 16, 1_000_000, 15.0, 0, 0.0),  # nothing can be pre-trained, and the pick says so
]


class SimulatedJob:
    """A future whose result is awaited in simulated time."""

    def __init__(self, clock: FakeTime, end: float) -> None:
        self.clock, self.end = clock, end

    def result(self) -> None:
        self.clock.seconds = max(self.clock.seconds, self.end)


class SimulatedPool:
    """Processes that take all the seconds of a job, each beginning when a slot is free."""

    shares_device = True

    def __init__(self, slots: int, clock: FakeTime, store: CellStore, speed: float) -> None:
        self.slots, self.clock, self.store, self.speed = slots, clock, store, speed
        self.free = [clock.seconds] * slots
        self.spans: dict[str, tuple[float, float]] = {}  # of each pre-training, by name

    def submit(self, job: Job) -> SimulatedJob:
        slot = min(range(self.slots), key=lambda number: self.free[number])
        begin = max(self.clock.seconds, self.free[slot])
        end = min(job.deadline, begin + (job.seconds or 0.0))
        self.free[slot] = max(begin, end)
        self.spans[job.work["name"]] = begin, end
        if end > begin + STARTING:
            with self.store.lock(job.work["key"]):
                self.store.finish(job.work["key"], {"flops": 1.0, "tokens": 1.0, "seconds": end - begin})
        return SimulatedJob(self.clock, self.free[slot])

    def count_tokens(self, name: str) -> float:
        """What a pre-training read: those that run at once share the card."""
        begin, end = self.spans[name]
        middle = (begin + end) / 2
        together = sum(first <= middle < last for first, last in self.spans.values())
        return max(0.0, end - begin - STARTING) * self.speed / together

    def close(self) -> None:
        pass


@pytest.fixture
def labels(tmp_path: Path) -> Iterator[PickData]:
    path = tmp_path / "labels.jsonl"
    path.write_text("".join(json.dumps({"text": f"text {n}", "label": "ab"[n % 2]}) + "\n" for n in range(100)))
    labelled, _ = read_labels("classify", path)
    yield PickData.build(labelled, None, None, task_module("classify").Settings(), 0.2, seed=0)


@pytest.mark.parametrize(("minutes", "cores", "speed", "cheap", "entering", "tokens"), TABLE)
def test_encoders_are_scored_in_time(
    minutes: float, cores: int, speed: float, cheap: float, entering: int, tokens: float, labels: PickData,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_time: FakeTime,
) -> None:  # fmt: skip
    journal = Journal(tmp_path, {})
    journal.start(60 * minutes, elapsed=8.0)
    (tmp_path / "cells").mkdir()
    race = Race(labels, journal, CellStore(tmp_path / "cells"), "cuda", 0, lambda _: None)
    begin = fake_time.seconds - 8.0
    slots = min(MAX_SLOTS, max(1, cores // CORES_PER_SLOT))
    pool = SimulatedPool(slots, fake_time, race.store, speed)
    tuned: list[str] = []

    def spend(seconds: float) -> None:
        fake_time.seconds += seconds

    def plan(candidate: Candidate, text: object, share: float, minutes: float, *_: object, **__: object) -> Pretraining:
        name = f"{candidate.name} {minutes}"
        return Pretraining(f"key {name}", name, candidate.label, "recipe", "corpus", {}, minutes)

    def probe(encoder: Encoder) -> Entry:
        spend(5.0)
        contender = Majority()
        contender.name = encoder.name
        return race.enter(contender, encoder)

    def tune(_: Race, entry: Entry) -> None:
        if race.clock.left - race.reserve() > 30.0:
            spend(30.0)
            tuned.append(entry.contender.name)

    order = {each.name: number for number, each in enumerate(GPU_CANDIDATES)}
    monkeypatch.setattr(stages, "open_pool", lambda race: pool)
    monkeypatch.setattr(rounds, "plan_pretraining", plan)
    monkeypatch.setattr(race, "run_probe", probe)
    monkeypatch.setattr(rounds, "run_tuned", tune)
    monkeypatch.setattr(race, "run_baselines", lambda vectors=None: spend(min(cheap, 0.5 * 60 * minutes)))
    monkeypatch.setattr(race, "run_late_baseline", lambda: None)
    monkeypatch.setattr(stages, "run_vectors", lambda *_: spend(0.05 * 60 * minutes))
    monkeypatch.setattr(stages, "use_time_left", lambda *_: None)
    monkeypatch.setattr(race, "ranking", lambda: sorted(race.entries, key=lambda name: order[name.split()[0]]))
    monkeypatch.setattr(race, "standing", lambda name: type("S", (), {"score": 0.5})())

    class Text:
        size = 10_000_000

    text: Any = Text()
    stages.run_race(race, text, [], GPU_CANDIDATES)
    assert len({name.split()[0] for name in pool.spans}) == entering
    if not entering:
        assert any("no pre-training" in note["en"] for note in race.notes)
        return
    assert len(race.rounds) >= 1 and race.entries, "encoders are scored"
    last = pool.count_tokens(list(pool.spans)[-1])
    assert last >= tokens, f"{last / 1e6:.0f} M tokens"
    assert tuned, "the last encoder is fine-tuned, too"
    assert race.clock.left >= race.reserve() >= 0 and time.monotonic() - begin <= 60 * minutes


def test_a_pick_of_two_cores_pre_trains_beside_its_baselines(tmp_path: Path) -> None:
    """One process for the card, although there are not cores enough for two."""
    journal = Journal(tmp_path, {})
    journal.start(600)
    race = Race.__new__(Race)
    race.pool, race.journal = None, journal
    pool = stages.open_pool(race)
    assert pool.slots == 1 and not pool.processes
    pool.close()


def test_the_first_round_is_long_enough_for_the_last_to_pay() -> None:
    assert 4 * candidates.FIRST_ROUND_SECONDS["cuda"] * 150_000 >= worth.SCRATCH_TOKENS
