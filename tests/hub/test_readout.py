"""Heads that no class of transformers has: exported with code of their own, they answer there as here."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from etude.hub.exporter import export_run
from etude.hub.run_weights import save_final
from etude.inference.task_model import TaskModel
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.runs.run import Run
from etude.text.tokenizer.tokenizer import Tokenizer
from tests.tasks.labelled_records import records
from tests.transfer.test_transformers import compare, families, tuned_run
from tests.transfer_fixtures import WORDS

hf = pytest.importorskip("transformers")
__all__ = ["families"]  # a fixture

CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("bert", "classify", {"task.pooling": "mean"}),
    ("bert", "classify", {"transfer.probe": True}),
    ("bert", "similarity", {"transfer.frozen": True, "task.pooling": "max"}),
    ("bert", "pair", {"transfer.frozen": True, "transfer.layers": [0, 2], "transfer.combine": "mix"}),
    ("bert", "pair", {"transfer.probe": True, "task.reading": "apart"}),
    ("electra", "similarity", {"task.reading": "apart"}),
    ("albert", "tag", {"transfer.probe": True}),
    ("electra", "classify", {"task.pooling": "mean", "task.head": "mlp"}),
    ("distilbert", "classify", {"transfer.layers": [1, 2]}),
]


@pytest.mark.parametrize(("family", "task", "changes"), CASES)
def test_readouts_say_the_same_there(
    families: Callable[[str], Path], tmp_path: Path, family: str, task: str, changes: dict[str, Any]
) -> None:
    run = tuned_run(families(family), task, tmp_path, **changes)
    published = export_run(run, tmp_path / "out")
    assert published.config["model_type"] == "etude_readout"
    auto = hf.AutoModelForTokenClassification if task == "tag" else hf.AutoModelForSequenceClassification
    model = auto.from_pretrained(tmp_path / "out", trust_remote_code=True).eval()
    tokenizer = hf.AutoTokenizer.from_pretrained(tmp_path / "out", trust_remote_code=True)
    with torch.no_grad():
        compare(task, TaskModel.open(run.folder, "cpu"), model, tokenizer, records(task, 6, 1))


def test_without_its_code_nothing_opens(families: Callable[[str], Path], tmp_path: Path) -> None:
    """transformers would put a new random head on a model_type that it knows."""
    run = tuned_run(families("bert"), "classify", tmp_path, **{"task.pooling": "mean"})
    export_run(run, tmp_path / "out")
    with pytest.raises(ValueError, match="trust_remote_code"):
        hf.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out", trust_remote_code=False)


def test_the_lines_that_open_it_ask_nothing(
    families: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers asks on the terminal before it runs the code of a folder, for a tokenizer too."""
    published = export_run(
        tuned_run(families("bert"), "classify", tmp_path, **{"task.pooling": "mean"}), tmp_path / "out"
    )
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a question on the terminal"))
    opened: dict[str, Any] = {}
    exec("\n".join(line.strip() for line in published.usage[1:]), opened)
    assert opened["tokenizer"]("a").input_ids
    assert "AutoTokenizer.from_pretrained(FOLDER, trust_remote_code=True)" in published.files["modeling_readout.py"]


@pytest.fixture(scope="module")
def gpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = Tokenizer.train("word:60", [" ".join(WORDS), "who where what is in the town ? . ,"] * 3)
    shape = ["model.layers=2", "model.width=32", "model.heads=2", "model.context=64", "model.feedforward=128"]
    recipe = Recipe.load("gpt2-toy", shape).resolve(vocab=tokenizer.vocab)
    folder = tmp_path_factory.mktemp("causal") / "gpt"
    folder.mkdir()
    (folder / "recipe.yaml").write_text(recipe.dump(), encoding="utf-8")
    tokenizer.save(folder)
    save_final(Run(folder), *build_learner(recipe, tokenizer), model_card="random weights, for tests")
    return folder


@pytest.mark.parametrize("changes", [{}, {"transfer.probe": True}])
def test_causal_models(gpt: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    """start text end, and the last token's state: the tokenizer frames texts so."""
    for task in ("classify", "pair"):
        (tmp_path / task).mkdir()
        reading = {"task.reading": "joint"} if task == "pair" else {}
        run = tuned_run(gpt, task, tmp_path / task, **changes, **reading)
        export_run(run, tmp_path / task / "out")
        auto = hf.AutoModelForSequenceClassification
        model = auto.from_pretrained(tmp_path / task / "out", trust_remote_code=True).eval()
        tokenizer = hf.AutoTokenizer.from_pretrained(tmp_path / task / "out", trust_remote_code=True)
        given = records(task, 6, 1)
        answers = TaskModel.open(run.folder, "cpu").predict(given)
        for record, answer in zip(given, answers, strict=True):
            texts = [record["text"]] if task == "classify" else [record["text_a"], record["text_b"]]
            with torch.no_grad():
                probs = model(**tokenizer(*texts, return_tensors="pt")).logits.softmax(-1)[0]
            np.testing.assert_allclose(probs, list(answer["scores"].values()), atol=1e-5)


def test_texts_are_padded_where_the_tokenizer_has_no_padding(gpt: Path, tmp_path: Path) -> None:
    """GPT-2's own has none; what pads is masked, so any token will do."""
    base = tmp_path / "base"
    shutil.copytree(gpt, base, ignore=shutil.ignore_patterns("checksums*"))
    content = (base / "tokenizer.json").read_text(encoding="utf-8")
    (base / "tokenizer.json").write_text(content.replace("[PAD]", "[free]"), encoding="utf-8")
    run = tuned_run(base, "classify", tmp_path)
    export_run(run, tmp_path / "out")
    model = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out", trust_remote_code=True).eval()
    tokenizer = hf.AutoTokenizer.from_pretrained(tmp_path / "out", trust_remote_code=True)
    given = [{"text": "who is in the town ?"}, {"text": "where"}]
    with torch.no_grad():
        there = model(**tokenizer([item["text"] for item in given], padding=True, return_tensors="pt")).logits
    answers = TaskModel.open(run.folder, "cpu").predict(given)
    np.testing.assert_allclose(there.softmax(-1), [list(answer["scores"].values()) for answer in answers], atol=1e-5)
