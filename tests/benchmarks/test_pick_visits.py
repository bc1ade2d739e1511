"""Visits of benchmarks/pick_tasks.py: any part covers all tasks, and what a limit allows is counted as it will run."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.picking import visits
from benchmarks.picking.picks import LATE, MODES, SCORING_MINUTES
from benchmarks.picking.visits import (
    VISITS,
    count_parallel,
    count_visits,
    describe_visits,
    detach,
    list_picks,
    wait_for,
)

TASKS = ["sst2", "ynat", "imdb"]


def test_any_part_covers_all_tasks_and_finished_ones_are_left_out() -> None:
    picks = list_picks(set(), ("gpu", "gpu-start"), TASKS, [100, 400], [0, 1])
    assert len(picks) == len(set(picks)) == 24
    assert [task for task, *_ in picks[:3]] == TASKS and {draw for *_, draw, _ in picks[:12]} == {0}
    assert {mode for *_, mode in picks[:12]} == {"gpu", "gpu-start"}
    rest = list_picks({("sst2", 100, 0, "pick-gpu")}, ("gpu", "gpu-start"), TASKS, [100, 400], [0, 1])
    assert rest == picks[1:]


def test_visits_are_counted_by_what_each_pick_may_take() -> None:
    picks = [("sst2", 100, draw, "gpu") for draw in range(48)]
    assert MODES["gpu"].minutes == 10 and LATE * 10 + SCORING_MINUTES == 11.5
    assert count_visits(picks, 6, 25) == 4, "two after the other, six at once"
    assert count_visits(picks, 6, 12) == 8 and count_visits(picks, 6, 11) is None
    assert count_visits(picks, 8, 25) == 3 and count_visits([], 8, 25) == 0
    assert describe_visits(picks, 6, 25) == "48 picks are missing: 4 visits of 25 minutes, 6 picks at once."
    assert "11 minutes are too few: one takes up to 11.5." in describe_visits(picks, 6, 11)
    short = count_visits(picks, 1, 25, minutes=0.5)
    assert short == 3, "23 of 1.05 minutes in each"


def test_fewer_at_once_where_cores_are_few() -> None:
    assert count_parallel(VISITS["cpu"], 16) == 8 and count_parallel(VISITS["gpu"], 16) == 6
    assert count_parallel(VISITS["gpu"], 8) == 4 and count_parallel(VISITS["cpu"], 1) == 1


def test_a_detached_visit_is_waited_for_no_longer_than_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visits, "POLL_SECONDS", 0.05)
    gate = tmp_path / "gate"
    code = f"import os, time\nprint('begun', flush=True)\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)"
    detach(["-c", code], tmp_path / "logs" / "visit.log")
    assert not wait_for(tmp_path / "logs" / "visit.log", 0.2)
    gate.touch()
    assert wait_for(tmp_path / "logs" / "visit.log", 30.0)
    assert (tmp_path / "logs" / "visit.log").read_text() == "begun\n"
