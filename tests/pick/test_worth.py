"""A pre-training that would read too little is not tried, the table says why, and the decision outlives a kill."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from etude.pick import report, worth
from etude.pick.candidates import CPU_CANDIDATES, Candidate
from etude.pick.contenders import ProbeContender
from etude.pick.data import PickData
from etude.pick.encoders import Encoder
from etude.pick.race import Race
from etude.pick.text import PickText
from etude.pick.worth import bound_speed, drop_unpaying
from tests.pick.test_race import build_race
from tests.pick.test_race import data as data  # a fixture

START = Candidate("mini continued", {"en": "mini continued", "ko": "mini 추가 학습"}, "folder", {}, is_start=True)


@pytest.fixture
def race(data: PickData, tmp_path: Path) -> Race:
    return build_race(data, tmp_path / "out", 600)


def set_speed(monkeypatch: pytest.MonkeyPatch, speed: float) -> list[str]:
    measured: list[str] = []

    def measure(race: Race, candidate: Candidate, text: PickText, share: float) -> float:
        measured.append(candidate.name)
        return speed

    monkeypatch.setattr(worth, "_measure", measure)
    return measured


def try_candidates(race: Race, candidates: tuple[Candidate, ...], seconds: float) -> list[Candidate]:
    return drop_unpaying(race, candidates, PickText(None, None, Path()), 1.0, seconds)


def test_too_slow_a_machine_tries_none_and_says_why(race: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = set_speed(monkeypatch, 2_000)
    monkeypatch.setattr(worth, "count_cores", lambda: 2)
    assert try_candidates(race, CPU_CANDIDATES, 500) == []
    assert measured == ["encoder"], "one trial for candidates of one size"
    assert len(race.untried) == len(CPU_CANDIDATES)
    assert race.untried[0]["reason"]["en"].startswith("not tried: would read 1.0 M tokens in 500 s")
    (line,) = report.describe_untried({"untried": race.untried})
    assert line.startswith("modern encoder, ELECTRA, BERT, GPT: not tried")


def test_without_time_nothing_is_measured(race: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = set_speed(monkeypatch, 10**9)
    monkeypatch.setattr(worth, "count_cores", lambda: 2)
    assert try_candidates(race, CPU_CANDIDATES, 200) == [] and not measured
    assert race.untried[0]["reason"]["en"] == "not tried: needs about 10 M tokens, too many for the 200 s left for it"
    assert try_candidates(race, (START,), 5) == [] and not measured


def test_the_trial_reads_a_small_share(race: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    shares = []
    monkeypatch.setattr(worth, "_measure", lambda race, candidate, text, share: shares.append(share) or 1.0)

    class Large(PickText):
        size = 60_000_000  # type: ignore[assignment]

    drop_unpaying(race, CPU_CANDIDATES, Large(None, None, Path()), 0.7, 1000)
    assert shares == [pytest.approx(0.0067)]


def test_a_fast_one_tries_all(race: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    set_speed(monkeypatch, 40_000)
    assert try_candidates(race, CPU_CANDIDATES, 500) == list(CPU_CANDIDATES) and not race.untried


def test_a_start_needs_less(race: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    set_speed(monkeypatch, 15_000)
    assert try_candidates(race, (START,), 100) == [START]


def test_slow_features_spare_the_trial_of_a_start(race: Race, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On a busy machine a trial of MiniLM took six minutes, only to say that it is too slow."""
    measured = set_speed(monkeypatch, 10**9)
    encoder = Encoder("mini", {"en": "mini", "ko": "mini"}, tmp_path, "key", 0.0, {})
    probed = [race.build_entry(ProbeContender(encoder, "cpu"), encoder)]
    assert bound_speed(race, []) == math.inf == bound_speed(race, probed), "nothing was measured"
    race.journal.values["decisions"]["features key"] = 10.0
    size = sum(len(json.dumps(record)) for record in race.data.labelled.records)
    fastest = bound_speed(race, probed)
    assert fastest == pytest.approx(8 * size / 2 / 3 / 10)
    assert drop_unpaying(race, (START,), PickText(None, None, Path()), 1.0, 100, fastest) == [] and not measured
    assert race.untried[0]["reason"]["en"].startswith("not tried: would read 0.1 M tokens in 100 s")


def test_a_gpu_is_not_asked(race: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = set_speed(monkeypatch, 1)
    race.device = "cuda"
    assert try_candidates(race, CPU_CANDIDATES, 100) == list(CPU_CANDIDATES) and not measured


def test_a_resumed_pick_decides_the_same(data: PickData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_speed(monkeypatch, 10_000)
    assert try_candidates(build_race(data, tmp_path / "out", 600), CPU_CANDIDATES, 100) == []
    measured = set_speed(monkeypatch, 10**9)
    resumed = build_race(data, tmp_path / "out", 600)
    assert try_candidates(resumed, CPU_CANDIDATES, 100) == [] and not measured and resumed.untried
