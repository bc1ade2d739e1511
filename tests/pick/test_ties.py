"""Ties get more folds while there is time, the same number for all, and a kill changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from etude.errors import UserError
from etude.pick import race as race_module
from etude.pick.data import PickData
from etude.pick.labels import read_labels
from etude.pick.race import Race
from etude.pick.splits import FOLDS, REPEATS
from etude.pick.ties import describe_ending, settle_ties
from etude.runs.task_plan import task_module
from etude.tasks.base import Answer
from tests.pick.test_race import Scripted, build_race
from tests.pick.test_race import fake_time as fake_time  # a fixture


@pytest.fixture
def data(tmp_path: Path) -> PickData:
    """400 labels: five folds are planned, and two more repeats are there for ties."""
    path = tmp_path / "labels.jsonl"
    records = [{"text": f"text number {n}", "label": "ab"[n % 2]} for n in range(500)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    labelled, _ = read_labels("classify", path)
    return PickData.build(labelled, None, None, task_module("classify").Settings(), 0.2, seed=0)


def run(data: PickData, folder: Path, seconds: float, *contenders: Scripted) -> Race:
    race = build_race(data, folder, seconds)
    for contender in contenders:
        race.run_folds(race.enter(contender))
    settle_ties(race)
    return race


def count(race: Race) -> dict[str, int]:
    return {name: len(entry.trials.answers) for name, entry in race.entries.items()}


def test_repeats_go_to_ties_and_to_nobody_else(data: PickData, tmp_path: Path) -> None:
    assert data.planned == FOLDS and len(data.folds) == FOLDS * REPEATS
    race = run(data, tmp_path / "out", 600, Scripted("a", 0.80), Scripted("b", 0.79, salt=50), Scripted("bad", 0.5))
    assert count(race) == {"a": 15, "b": 15, "bad": 5}
    assert race.ranking()[-1] == "bad" and not any(entry.note for entry in race.entries.values())


def test_a_clear_leader_needs_no_more(data: PickData, tmp_path: Path) -> None:
    race = run(data, tmp_path / "out", 600, Scripted("good", 0.9), Scripted("bad", 0.6))
    assert count(race) == {"good": 5, "bad": 5}


def test_only_where_all_of_them_have_the_time(data: PickData, tmp_path: Path) -> None:
    dear, cheap = Scripted("dear", 0.80, lambda: 10.0), Scripted("cheap", 0.79, lambda: 0.1, salt=50)
    race = run(data, tmp_path / "out", 150, dear, cheap)  # 50 s for five more folds, and 30 s for the end
    assert count(race) == {"dear": 5, "cheap": 5}
    race = run(data, tmp_path / "more", 210, Scripted("dear", 0.80, lambda: 10.0), Scripted("cheap", 0.79, salt=50))
    assert count(race) == {"dear": 10, "cheap": 10}
    assert race.clock.left >= race.reserve()


def test_the_end_is_explained_by_numbers(data: PickData, tmp_path: Path) -> None:
    """A pick that ended after half of its minutes only said that more folds take too long."""
    race = run(data, tmp_path / "out", 80, Scripted("a", 0.8, lambda: 3.0), Scripted("b", 0.8, lambda: 3.0, 1))
    assert set(count(race).values()) == {FOLDS}
    texts = describe_ending(race)
    assert " and 1 other are within their error. More folds take about 39s, and " in texts["en"]
    assert "겹을 더하려면 약 39초가 필요한데" in texts["ko"]


def test_a_leader_by_few_folds_is_not_called_clear(data: PickData, tmp_path: Path) -> None:
    race = build_race(data, tmp_path / "out", 600)
    race.run_folds(race.enter(Scripted("a", 0.9)), until=2)
    assert "a is the only contender here, scored by 2 of 5 folds." in describe_ending(race)["en"], "time was left"
    assert "후보는 a 하나이며, 5겹 중 2겹으로" in describe_ending(race)["ko"]
    race.run_folds(race.enter(Scripted("b", 0.2)))
    assert "a leads, compared on 2 of 5 folds; there was no time" in describe_ending(race)["en"]
    assert "a 선두(5겹 중 2겹으로 비교)" in describe_ending(race)["ko"]
    race.run_more_folds(race.entries["a"], FOLDS, "more")
    assert "a leads clearly" in describe_ending(race)["en"]
    race.refused.append(race.entries["a"])  # its encoder was not fine-tuned, for lack of time
    assert "a leads, compared on 5 of 5 folds; there was no time" in describe_ending(race)["en"]


def test_folds_that_there_was_no_time_for_come_first(data: PickData, tmp_path: Path) -> None:
    race = build_race(data, tmp_path / "out", 600)
    race.run_folds(race.enter(Scripted("a", 0.8)))
    race.run_folds(race.enter(Scripted("b", 0.79, lambda: 10.0, salt=50)), share=0.05)
    assert count(race) == {"a": 5, "b": 3} and "3 of 5 folds" in race.entries["b"].note
    settle_ties(race)
    assert count(race)["b"] >= 5 and not race.entries["b"].note


def test_a_note_on_folds_says_how_many_there_are_in_the_end(data: PickData, tmp_path: Path) -> None:
    race = build_race(data, tmp_path / "out", 600)
    race.run_folds(race.enter(Scripted("a", 0.8)))
    race.run_folds(race.enter(Scripted("b", 0.79, lambda: 10.0, salt=50)), share=0.05)
    race.run_more_folds(race.entries["b"], 4, "more")
    assert len(race.entries["b"].trials.answers) == 4 and "4 of 5 folds" in race.entries["b"].note


def test_a_kill_changes_nothing(data: PickData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    undisturbed = run(data, tmp_path / "one", 600, Scripted("a", 0.80), Scripted("b", 0.79, salt=50))

    class Killed(BaseException):
        pass

    trial, calls = race_module.Race.run_trial, []

    def dying(self: Race, *arguments: object) -> object:
        calls.append(1)
        if len(calls) == 17:
            raise Killed
        return trial(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(race_module.Race, "run_trial", dying)
    with pytest.raises(Killed):
        run(data, tmp_path / "two", 600, Scripted("a", 0.80), Scripted("b", 0.79, salt=50))
    monkeypatch.setattr(race_module.Race, "run_trial", trial)
    resumed = run(data, tmp_path / "two", 600, Scripted("a", 0.80), Scripted("b", 0.79, salt=50))
    assert count(resumed) == count(undisturbed) and resumed.ranking() == undisturbed.ranking()


def test_an_error_in_a_further_fold_ends_only_that_contender(data: PickData, tmp_path: Path) -> None:
    class Breaking(Scripted):
        def answer(self, *arguments: Any) -> list[Answer]:
            if self.calls >= 7:
                raise UserError("a text is longer than the model")
            return super().answer(*arguments)

    race = run(data, tmp_path / "out", 600, Scripted("a", 0.80), Breaking("b", 0.79, salt=50))
    assert count(race) == {"a": 10, "b": 0} and "longer than the model" in race.entries["b"].note
    assert race.ranking() == ["a"]
