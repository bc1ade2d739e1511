"""Results as data: commands that repeat a cell as it was."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from pathlib import Path

from etude.study import planner
from etude.study.results import _count_older_cells, _find_last_day, _relative_path, list_commands
from tests.study.tiny_study import tiny


def test_commands_hold_every_digit_and_survive_a_shell(tmp_path: Path) -> None:
    task = {"kind": "classify", "world": "topic", "labels": 16, "columns": {"text": "text"}}
    settings = {"train.lr": 0.000123456789, "train.betas": [0.9, 0.95], "train.epochs": 1}
    study = tiny(tasks={"topics of news": task}, transfer=settings, claims=[])
    plan = planner.make_plan(study, tmp_path, device="cpu", dry=True)
    key = plan.trials["bert", "topics of news@16", 0, (0, 0)]
    words = shlex.split(list_commands(plan, key)[0])
    train = words[words.index("--train") + 1]
    assert (tmp_path / train).is_file(), "one word, though the task's name has three"
    assert "train.lr=0.000123456789" in words and "train.betas=[0.9, 0.95]" in words
    assert _relative_path(plan, "https://example.org/corpus") == "https://example.org/corpus"


def test_a_pretraining_is_repeated_with_the_weights_that_it_began_with(tmp_path: Path) -> None:
    plan = planner.make_plan(tiny(), tmp_path, device="cpu", dry=True)
    key = plan.bases["bert", 0]
    plan.cells[key].arguments["start"] = str(tmp_path / "runs" / "first")
    words = shlex.split(list_commands(plan, key)[0])
    assert words[:2] == ["etude", "pretrain"] and words[words.index("--start") + 1] == "runs/first"


def test_cells_from_before_the_claims_were_recorded_are_counted() -> None:
    done = {
        "a": {"date": "2026-11-18T15:00:00+00:00"},
        "b": {"date": "2026-11-18T19:03:16+00:00"},
        "c": {},  # of an early version
    }
    assert _count_older_cells(done, {"date": "2026-11-18T19:03:16+00:00"}) == 1
    assert _count_older_cells(done, {"date": "2026-11-17T00:00:00+00:00"}) == 0
    assert _count_older_cells(done, {}) == 0


def test_results_are_of_the_day_of_their_last_cell() -> None:
    """A report that is made again later says the same."""
    done = {"a": {"date": "2026-11-17T23:59:00+00:00"}, "b": {"date": "2026-11-16T19:03:16+00:00"}, "c": {}}
    assert _find_last_day(done) == "2026-11-17"
    assert _find_last_day({}) == datetime.now(UTC).date().isoformat()
