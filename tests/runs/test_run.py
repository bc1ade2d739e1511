"""A run by its folder: what is none is refused with the command that makes one."""

from __future__ import annotations

from pathlib import Path

import pytest

from etude.errors import UserError
from etude.runs.run import Run


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is not a run: it holds no recipe\.yaml.*-o .*' makes one"):
        Run.open(tmp_path)


def test_a_corpus_is_told_from_a_run(tmp_path: Path) -> None:
    """The folder is not to be the run's: the advice must not overwrite the corpus."""
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(UserError, match=r"is a corpus or a graph, not a run\. 'etude pretrain RECIPE .* -o runs/NAME'"):
        Run.open(tmp_path)
