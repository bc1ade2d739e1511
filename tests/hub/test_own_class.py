"""What no class of transformers can hold opens there with a class of its own, and answers as here."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import etude
from etude.hub.run_weights import save_final
from etude.inference.task_model import TaskModel
from etude.pick.final import export_model
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.runs.run import Run
from etude.text.tokenizer.tokenizer import Tokenizer
from tests.tasks.labelled_records import records
from tests.transfer.test_transformers import families, tuned_run
from tests.transfer_fixtures import WORDS

hf = pytest.importorskip("transformers")
__all__ = ["families"]  # a fixture

TOWERS = ["model.layers=1", "model.width=32", "model.heads=2", "model.context=64"]
OTHERS = {
    "two-tower-toy": ("wordpiece:200", TOWERS),
    "fasttext-toy": ("word:60", ["model.width=16", "model.buckets=100"]),
}


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Runs of families that transformers has not, with random weights."""
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            spec, shape = OTHERS[name]
            tokenizer = Tokenizer.train(spec, [" ".join(WORDS), "who where what is in the town ? . ,"] * 3)
            recipe = Recipe.load(name, shape).resolve(vocab=tokenizer.vocab)
            folder = tmp_path_factory.mktemp("others") / name
            folder.mkdir()
            (folder / "recipe.yaml").write_text(recipe.dump(), encoding="utf-8")
            tokenizer.save(folder)
            save_final(Run(folder), *build_learner(recipe, tokenizer), model_card="random weights, for tests")
            made[name] = folder
        return made[name]

    return make


def check_export(run: Run, task: str, out: Path) -> None:
    given = records(task, 4, 1)
    expected = TaskModel.open(run.folder, "cpu").predict(given)
    assert export_model(run.folder, out) is None
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    assert config["model_type"] == "etude_run"
    model = hf.AutoModel.from_pretrained(out, trust_remote_code=True)
    assert json.dumps(model.predict(given)) == json.dumps(expected)
    assert "trust_remote_code=True" in (out / "README.md").read_text(encoding="utf-8")
    written = "".join(path.read_text(encoding="utf-8") for path in out.glob("*.yaml"))
    assert str(run.folder.parent) not in written, "where it was trained stays here"


@pytest.mark.parametrize("task", ["classify", "tag"])
@pytest.mark.parametrize("name", list(OTHERS))
def test_families_of_our_own(others: Callable[[str], Path], tmp_path: Path, name: str, task: str) -> None:
    check_export(tuned_run(others(name), task, tmp_path), task, tmp_path / "out")


@pytest.mark.parametrize(
    ("task", "changes"),
    [
        ("tag", {"task.head": "crf"}),
        ("choice", {"task.pooling": "mean"}),
        ("rank", {"transfer.probe": True}),
        ("span", {"transfer.frozen": True, "task.length": 32}),
    ],
)
def test_heads_of_our_own(families: Callable[[str], Path], tmp_path: Path, task: str, changes: dict[str, Any]) -> None:
    check_export(tuned_run(families("bert"), task, tmp_path, **changes), task, tmp_path / "out")


def test_a_network_of_the_taggers_own_goes_with_it(families: Callable[[str], Path], tmp_path: Path) -> None:
    run = tuned_run(families("bert"), "tag", tmp_path, **{"task.network.words": 8})
    given = records("tag", 4, 1)
    expected = TaskModel.open(run.folder, "cpu").predict(given)
    assert etude.export(run.folder, out=tmp_path / "out").usage
    model = hf.AutoModel.from_pretrained(tmp_path / "out", trust_remote_code=True)
    assert json.dumps(model.predict(given)) == json.dumps(expected)
