"""In which order a study is planned: what is wrong is said before anything is prepared or measured."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from etude.errors import UserError
from etude.study import budget, planner
from etude.study.text_source import TextSource
from tests.study.tiny_study import tiny


@pytest.mark.parametrize("dry", [True, False])
def test_a_missing_file_of_a_task_is_told_first(dry: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "measure_speed", Mock(side_effect=AssertionError("a trial was run")))
    monkeypatch.setattr(TextSource, "open_corpus", Mock(side_effect=AssertionError("a corpus was prepared")))
    study = tiny(**{"tasks.topic.world": None, "tasks.topic.train": str(tmp_path / "absent.jsonl")})
    with pytest.raises(UserError, match=r"There is no file .*absent\.jsonl"):
        planner.make_plan(study, tmp_path / "study", dry=dry)
    assert not (tmp_path / "study").exists()
