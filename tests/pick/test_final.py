"""The end of a pick: whatever ELECTRA wins with is exported, though transformers has another head for it, or none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from etude.inference.task_model import TaskModel
from etude.pick.contenders import Contender, ProbeContender, TunedContender
from etude.pick.data import PickData
from etude.pick.encoders import Encoder
from etude.pick.final import export_model
from etude.pick.labels import read_labels
from etude.runs.task_plan import task_module
from etude.transfer import few_labels
from tests.tasks.labelled_records import records
from tests.transfer.test_transformers import families

hf = pytest.importorskip("transformers")
__all__ = ["families"]  # a fixture


@pytest.fixture(autouse=True)
def few_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_labels, "UPDATES", 2)


def refit_electra(contender: type[ProbeContender | TunedContender], start: Path, task: str, folder: Path) -> Path:
    """The final model of a pick that ELECTRA won, with the settings that a pick gives it."""
    rows = records(task, 40, 0)
    for number, row in enumerate(rows):  # equal inputs are one example
        row |= {name: f"{row[name]} {number}" for name in ("text", "question") if name in row}
    path = folder / "labels.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    labelled, problems = read_labels(task, path)
    assert not problems
    data = PickData.build(labelled, None, None, task_module(task).Settings(), 0.2, seed=0)
    winner: Contender = contender(Encoder("electra", {"en": "ELECTRA", "ko": "ELECTRA"}, start, "key", 0.0, {}), "cpu")
    winner.refit(data, folder / "best", folder / "labels", None)
    winner.scale_logits(folder / "best", 1.5)
    return folder / "best"


@pytest.mark.parametrize("contender", [ProbeContender, TunedContender])
def test_an_electra_classifier(
    families: Callable[[str], Path], tmp_path: Path, contender: type[ProbeContender | TunedContender]
) -> None:
    """Its class in transformers has one layer more: a pick that ELECTRA won ended without an export."""
    best = refit_electra(contender, families("electra"), "classify", tmp_path)
    texts = [record["text"] for record in records("classify", 6, 1)]
    expected = TaskModel.open(best, "cpu").predict(texts)
    assert export_model(best, best / "export") is None
    model = hf.AutoModelForSequenceClassification.from_pretrained(best / "export", trust_remote_code=True).eval()
    tokenizer = hf.AutoTokenizer.from_pretrained(best / "export")
    with torch.no_grad():
        probs = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits.softmax(-1)
    names = [model.config.id2label[number] for number in range(probs.shape[1])]
    np.testing.assert_allclose(probs, [[answer["scores"][name] for name in names] for answer in expected], atol=1e-5)


def test_electra_that_chooses_among_answers(families: Callable[[str], Path], tmp_path: Path) -> None:
    """No class there reads the mean of the tokens for a choice: it comes with a class of its own."""
    best = refit_electra(TunedContender, families("electra"), "choice", tmp_path)
    questions = records("choice", 4, 1)
    assert export_model(best, best / "export") is None
    model = hf.AutoModel.from_pretrained(best / "export", trust_remote_code=True)
    assert json.dumps(model.predict(questions)) == json.dumps(TaskModel.open(best, "cpu").predict(questions))
