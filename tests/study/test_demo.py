"""The budget of the demo: what fits the minutes, and a word where hardly anything does."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from etude.errors import UserError
from etude.study import demo, planner
from etude.study.executors import count_threads
from etude.study.settings import Study


@pytest.fixture
def study() -> Study:
    return Study.load(demo.STUDY_FILE)


def plan(tokens_per_second: float, transfer_seconds: float) -> Any:
    draft = SimpleNamespace(cost=SimpleNamespace(flops_per_token=1e6, updates_itself=False))
    return SimpleNamespace(
        cells={"a": SimpleNamespace(kind="transfer", seconds=transfer_seconds)},
        rows=[SimpleNamespace(kind="contender", draft=draft)],
        tokens_per_second=lambda draft: tokens_per_second,
    )


@pytest.mark.parametrize(("transfer_seconds", "is_too_slow"), [(10.0, False), (1000.0, True)])
def test_a_machine_without_time_is_told(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transfer_seconds: float, is_too_slow: bool
) -> None:
    """After one step of pre-training 'ELECTRA: +4.6 points' was announced on a busy machine."""
    monkeypatch.setattr(demo.planner, "make_plan", lambda *_, **__: plan(1e4, transfer_seconds))
    lines: list[str] = []
    flops = demo.calibrate_flops(study, tmp_path, 4.5, 2, lines.append)
    assert (flops == demo.LEAST_FLOPS) == is_too_slow
    assert any("too slow or too busy" in line for line in lines) == is_too_slow
    lines.clear()
    assert demo.calibrate_flops(study, tmp_path, 4.5, 2, lines.append) == flops, "a demo that goes on keeps it"
    assert not lines
    assert demo.calibrate_flops(study, tmp_path, 20, 2, lines.append) == flops
    assert "budget for 4.5 minutes. To plan for 20, choose another folder" in lines[0], "not in silence"
    (tmp_path / demo.BUDGET_FILE).write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match="Remove it: the machine is then measured again"):
        demo.calibrate_flops(study, tmp_path, 4.5, 2, lines.append)


def test_speeds_are_those_of_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all threads of a busy machine, a step was measured at a tenth of the speed that a worker has."""
    seen: list[int] = []

    def measure(*_: object, **__: object) -> SimpleNamespace:
        seen.append(torch.get_num_threads())
        return SimpleNamespace(tokens_per_second=100.0)

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("etude.study.executors.count_cores", lambda: 6)
    monkeypatch.setattr("etude.study.budget.measure_speed", measure)
    before = torch.get_num_threads()
    study = Study.load(demo.STUDY_FILE)
    planner.make_plan(study, tmp_path / "two", device="cpu", workers=2, dry=True)
    assert set(seen) == {3} and torch.get_num_threads() == before
    seen.clear()
    planner.make_plan(study, tmp_path / "here", device="cpu", dry=True)
    assert set(seen) == {before}, "the cells run in this process"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert count_threads(2) == 5, "what was asked for"
