"""Decisions survive a kill, changed inputs begin anew and are named, and the time spent goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from etude.errors import UserError
from etude.pick.clock import Clock, OutOfTime, check_deadline
from etude.pick.journal import FILE, Journal
from tests.pick.test_race import FakeTime
from tests.pick.test_race import fake_time as fake_time  # a fixture

INPUTS = {"the labels": "a", "the text": "b"}


def test_decisions_are_made_once(tmp_path: Path) -> None:
    first = Journal(tmp_path, INPUTS)
    first.start(60)
    assert first.decide("winner", lambda: "tfidf") == "tfidf"
    again = Journal(tmp_path, INPUTS)
    assert again.is_resumed and not again.changed
    assert again.decide("winner", lambda: "other") == "tfidf"


def test_changed_inputs_are_named_and_begin_anew(tmp_path: Path) -> None:
    first = Journal(tmp_path, INPUTS)
    first.start(60)
    first.decide("winner", lambda: "tfidf")
    again = Journal(tmp_path, {**INPUTS, "the labels": "changed"})
    assert again.changed == ["the labels"] and not again.is_resumed
    assert again.decide("winner", lambda: "other") == "other"


def test_time_spent_before_a_kill_counts(tmp_path: Path, fake_time: FakeTime) -> None:
    first = Journal(tmp_path, INPUTS)
    clock = first.start(60)
    fake_time.seconds += 5
    first.save()
    assert Journal(tmp_path, INPUTS).start(60).spent == clock.spent == 5


def test_the_last_fit_can_be_done_again_in_its_time(tmp_path: Path, fake_time: FakeTime) -> None:
    """Where `best` was moved away after the end, the refit had no time left and was cut short."""
    first = Journal(tmp_path, INPUTS)
    first.start(60)
    fake_time.seconds += 5
    first.decide("winner", lambda: "tuned")
    assert first.values["spent"] == 5
    fake_time.seconds += 20  # the refit
    first.finish()
    again = Journal(tmp_path, INPUTS)
    assert again.is_resumed and again.values["finished"]
    assert again.start(60).spent == 5


def test_a_damaged_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        Journal(tmp_path, INPUTS)
    (tmp_path / FILE).write_text(json.dumps({"version": 99}))
    with pytest.raises(UserError, match="another version"):
        Journal(tmp_path, INPUTS)


def test_deadlines(fake_time: FakeTime) -> None:
    clock = Clock(100, spent=40)
    assert clock.left == 60
    assert clock.deadline(reserve=10) == fake_time.seconds + 50
    assert clock.deadline(reserve=10, seconds=5) == fake_time.seconds + 5
    check_deadline(None)
    check_deadline(fake_time.seconds + 5)
    with pytest.raises(OutOfTime):
        check_deadline(fake_time.seconds - 1)
