"""A fine-tuned run with a damaged file, whose checksums are gone too: one message that names the file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from etude.errors import UserError
from etude.inference.task_model import TaskModel
from tests.serve.toy_runs import ToyRuns


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = ToyRuns(tmp_path_factory.mktemp("tuned"))("tuned")
    (folder / "checksums.json").unlink()
    return folder


@pytest.fixture
def damaged(tuned: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tuned, tmp_path / "run"))


def test_damaged_weights_are_told(damaged: Path) -> None:
    weights = damaged / "model.safetensors"
    content = weights.read_bytes()
    for broken in (content[:50], content[:-4], content[:8] + b"[" + content[9:], b""):
        weights.write_bytes(broken)
        with pytest.raises(UserError, match=r"model\.safetensors is not a whole safetensors file"):
            TaskModel.open(damaged, "cpu")


def test_a_fact_that_is_missing_is_told(damaged: Path) -> None:
    plan = yaml.safe_load((damaged / "task.yaml").read_text(encoding="utf-8"))
    del plan["facts"]["labels"]
    (damaged / "task.yaml").write_text(yaml.dump(plan), encoding="utf-8")
    with pytest.raises(UserError, match=r"task\.yaml is damaged: among its facts there is no 'labels'"):
        TaskModel.open(damaged, "cpu")


def test_the_tokenizer_of_another_run_is_told(damaged: Path) -> None:
    """It met an IndexError at the first text that holds one of its later tokens."""
    path = damaged / "tokenizer.json"
    parts = json.loads(path.read_text(encoding="utf-8"))
    parts["model"]["vocab"]["dog"] = 100
    path.write_text(json.dumps(parts), encoding="utf-8")
    with pytest.raises(UserError, match=r"run: the tokenizer has [\d,]+ ids, and the model has rows for \d+\."):
        TaskModel.open(damaged, "cpu")
