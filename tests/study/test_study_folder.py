"""A study works in a folder of its own, and over nobody else's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from etude.errors import UserError
from etude.study.demo import run_demo
from etude.study.runner import run, run_several
from etude.study.settings import Study
from etude.study.study_folder import refuse_other_files
from tests.study.tiny_study import tiny


@pytest.mark.parametrize("name", ["pick.json", "recipe.yaml", "results.json", "report.html"])
def test_the_folder_of_something_else_is_refused(name: str, study: Study, tmp_path: Path) -> None:
    """A study with -o picked wrote over the report and the results of a pick."""
    folder = tmp_path / study.name
    folder.mkdir()
    (folder / name).write_text("mine")
    for begin in (
        lambda: run(study, folder),
        lambda: run(study, folder, work=False),
        lambda: run_several([tiny(name="other"), study], tmp_path),
        lambda: run_demo(folder),
    ):
        with pytest.raises(UserError, match=f"{study.name} holds {name}, which no study has put there"):
            begin()
    assert [path.name for path in tmp_path.rglob("*")] == [study.name, name], "nothing is written"
    assert (folder / name).read_text() == "mine"


def test_a_study_that_began_goes_on_whatever_lies_there(tmp_path: Path) -> None:
    for name in ("study.yaml", "notes.md"):
        (tmp_path / name).write_text("mine")
    refuse_other_files(tmp_path)
    (tmp_path / "machine.json").write_text("{}")
    (tmp_path / "results.json").write_text("{}")
    refuse_other_files(tmp_path)
