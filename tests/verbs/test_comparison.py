"""What a pick refuses before it begins; a study alone."""

from __future__ import annotations

from pathlib import Path

import pytest

import etude
from etude.errors import UserError

STUDIES = Path(__file__).resolve().parents[2] / "studies"


@pytest.mark.parametrize("minutes", [float("nan"), float("inf")])
def test_minutes_that_are_no_number_leave_nothing_behind(minutes: float, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="say how many minutes it may take"):
        etude.pick(task="classify", train=tmp_path / "train.csv", out=tmp_path / "pick", minutes=minutes)
    assert not (tmp_path / "pick").exists()


@pytest.mark.parametrize("word", ["train.lr=3e-5", "task.network.mix=true"])
def test_a_setting_that_a_pick_does_not_take_is_no_missing_file(word: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"'{word}' is no setting of a pick: it takes task.NAME=VALUE"):
        etude.pick(word, task="classify", train=tmp_path / "train.csv", out=tmp_path / "pick")


def test_a_list_of_studies_may_hold_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cells are in turn as they are, and a script that names what is left to do need not ask how many those are."""
    from etude.study import runner

    begun: list[str] = []
    monkeypatch.setattr(runner, "run", lambda study, *_, **__: begun.append(study.name))
    etude.study(STUDIES / "mask-rate.yaml", in_turn=True)
    assert begun == ["mask-rate"]
