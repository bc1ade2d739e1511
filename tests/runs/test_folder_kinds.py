"""A folder that is not a model: the message names what it is, and the model inside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from etude.errors import UserError
from etude.hub.weights import read_config
from etude.runs.folder_kinds import MOST_NAMED
from etude.runs.run import Run

OPENERS = (Run.open, read_config)


def touch(*files: Path) -> None:
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}", encoding="utf-8")


@pytest.mark.parametrize("open_folder", OPENERS)
def test_a_corpus_is_named(open_folder: Callable[[Path], object], tmp_path: Path) -> None:
    touch(tmp_path / "books/manifest.json")
    with pytest.raises(UserError, match=r"books is a corpus or a graph, .*'etude pretrain RECIPE .*books -o runs/"):
        open_folder(tmp_path / "books")


@pytest.mark.parametrize("open_folder", OPENERS)
@pytest.mark.parametrize("marker", ["baseline.json", "recipe.yaml"])
def test_the_folder_of_a_pick_leads_to_its_best(
    open_folder: Callable[[Path], object], marker: str, tmp_path: Path
) -> None:
    touch(tmp_path / "picked/pick.json", tmp_path / "picked/best" / marker)
    with pytest.raises(UserError, match=r"picked holds models and is none itself: name one of them, .*picked/best\.$"):
        open_folder(tmp_path / "picked")


@pytest.mark.parametrize("open_folder", OPENERS)
def test_a_folder_of_runs_leads_to_them(open_folder: Callable[[Path], object], tmp_path: Path) -> None:
    touch(tmp_path / "runs/gpt/recipe.yaml", tmp_path / "runs/bert/config.json", tmp_path / "runs/notes.txt")
    with pytest.raises(UserError, match=r"runs holds models and is none itself: .* \S+/runs/bert, \S+/runs/gpt\.$"):
        open_folder(tmp_path / "runs")


def test_few_of_many_runs_are_named(tmp_path: Path) -> None:
    touch(*(tmp_path / f"runs/{number:02}/recipe.yaml" for number in range(MOST_NAMED + 3)))
    with pytest.raises(UserError, match=rf"/runs/{MOST_NAMED - 1:02} and 3 more\.$"):
        Run.open(tmp_path / "runs")


def test_a_model_that_lost_its_config_is_no_folder_of_models(tmp_path: Path) -> None:
    """ELECTRA's generator, or a pooling of sentence-transformers, is not what was meant."""
    touch(tmp_path / "electra/model.safetensors", tmp_path / "electra/generator/config.json")
    with pytest.raises(UserError, match=r"electra is not a folder of a model: it holds no config\.json"):
        read_config(tmp_path / "electra")
