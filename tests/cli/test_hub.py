"""`etude import` and `etude export` as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from etude.cli.main import app
from etude.errors import UserError
from tests.hub import published_models as reference
from tests.hub.published_models import CASES

transformers = pytest.importorskip("transformers", reason="the folder is written by the package transformers")
transformers.logging.set_verbosity_error()


def run(*words: str) -> str:
    done = CliRunner().invoke(app, list(words))
    if isinstance(done.exception, UserError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def test_import_then_export(tmp_path: Path) -> None:
    case = CASES["bert"]
    folder = reference.save(reference.reference_model(case), tmp_path / "published", case)
    said = run("import", str(folder), "-o", str(tmp_path / "run"))
    assert "BERT (BertForPreTraining)" in said
    assert "3 layers of width 32" in said
    assert "60 tokens" in said
    assert "imported" in (tmp_path / "run" / "README.md").read_text().lower()

    said = run("export", str(tmp_path / "run"), "-o", str(tmp_path / "out"))
    assert "AutoModelForPreTraining.from_pretrained" in said
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md"):
        assert name in said
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["model_type"] == "bert"
    opened = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert opened("w7").input_ids == [2, 7, 3]
    with pytest.raises(UserError, match="exists already"):
        run("import", str(folder), "-o", str(tmp_path / "run"))
    with pytest.raises(UserError, match=r"is not a run: it holds no recipe\.yaml"):
        run("export", str(folder), "-o", str(tmp_path / "other"))


def test_what_was_left_out_is_told(tmp_path: Path) -> None:
    case = reference.Case("BertConfig", "BertModel", {**reference.ENCODER, "vocab_size": 64})
    folder = reference.save(reference.reference_model(case), tmp_path / "published", case)
    said = run("import", str(folder), "-o", str(tmp_path / "run"))
    assert "! left out 4 rows of the vocabulary" in said
    assert "! has no weights for objective.head.bias" in said
