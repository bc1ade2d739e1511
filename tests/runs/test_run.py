"""A run by its folder: what is none is refused with the command that makes one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from etude.errors import UserError
from etude.recipes.schema import Recipe
from etude.runs.model_card import describe_hardware
from etude.runs.run import Run, import_origin


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is not a run: it holds no recipe\.yaml.*-o .*' makes one"):
        Run.open(tmp_path)


def test_a_corpus_is_told_from_a_run(tmp_path: Path) -> None:
    """The folder is not to be the run's: the advice must not overwrite the corpus."""
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(UserError, match=r"is a corpus or a graph, not a run\. 'etude pretrain RECIPE .* -o runs/NAME'"):
        Run.open(tmp_path)


def test_a_damaged_comparison_is_one_message(tmp_path: Path) -> None:
    trial = tmp_path / "trials" / "first"
    trial.mkdir(parents=True)
    (trial / "recipe.yaml").touch()
    (tmp_path / "trials.json").write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match=r"trials\.json is damaged"):
        Run.open(trial)


def test_a_run_without_a_log_is_described(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", Recipe.load("bert-toy"), None, import_origin("elsewhere"))
    assert dict(run.describe())["tokens"] is None
    assert "bert-toy" in run._repr_html_()


def test_a_card_names_what_a_run_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "Fast")
    assert describe_hardware() == "8 x Fast"
    assert describe_hardware("cuda") == "1 x Fast"
    for threads, words in ((1, " CPU, 1 thread"), (2, " CPU, 2 threads")):
        monkeypatch.setattr("torch.get_num_threads", lambda number=threads: number)
        assert describe_hardware("cpu").endswith(words)
