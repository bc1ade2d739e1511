"""The end of a pick: whatever wins can be exported, an ELECTRA classifier too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from etude.inference.task_model import TaskModel
from etude.pick.final import export_model
from tests.tasks.labelled_records import records
from tests.transfer.test_transformers import families, tuned_run

hf = pytest.importorskip("transformers")
__all__ = ["families"]  # a fixture


def test_an_electra_classifier_is_exported(families: Callable[[str], Path], tmp_path: Path) -> None:
    """Its class in transformers has another head: a pick that ELECTRA won used to end without an export."""
    run = tuned_run(families("electra"), "classify", tmp_path, **{"task.pooling": "mean"})
    given = [record["text"] for record in records("classify", 6, 1)]
    expected = TaskModel.open(run.folder, "cpu").predict(given)
    assert export_model(run.folder, tmp_path / "out") is None
    model = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out", trust_remote_code=True).eval()
    tokenizer = hf.AutoTokenizer.from_pretrained(tmp_path / "out")
    logits = model(**tokenizer(given, padding=True, return_tensors="pt")).logits
    probs = [[answer["scores"][model.config.id2label[n]] for n in range(logits.shape[1])] for answer in expected]
    np.testing.assert_allclose(logits.softmax(-1).detach(), probs, atol=1e-5)
