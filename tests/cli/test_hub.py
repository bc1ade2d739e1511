"""`etude import` and `etude export` as a user types them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from etude.cli.main import app
from etude.errors import UserError
from etude.transfer.finetune import finetune
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


def test_a_tagger_over_word_vectors_is_exported_whole(base: Callable[[str], Path], tmp_path: Path) -> None:
    tagged = tmp_path / "tags.jsonl"
    lines = [{"tokens": ["good", "film"], "ner": ["O", "B-X"]}, {"tokens": ["bad", "plot", "."], "ner": ["O"] * 3}]
    tagged.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    tuned = finetune(base("static"), "tag", tagged, tmp_path / "tuned", overrides={"train.steps": 2}, quiet=True)
    with pytest.raises(UserError, match="a file of vectors would lose it"):
        run("export", str(tuned.folder), "-o", str(tmp_path / "x.vec"))
    assert not (tmp_path / "x.vec").exists()
    assert "trust_remote_code=True" in run("export", str(tuned.folder), "-o", str(tmp_path / "out"))
    opened = transformers.AutoModel.from_pretrained(tmp_path / "out", trust_remote_code=True)
    assert len(opened.predict(["good film"])[0]["tags"]) == 2
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "etude evaluate" not in card and "AutoModel" in card


def test_a_card_names_the_tokenizer_of_the_corpus_and_no_place_that_is_not_there(
    prepared: Callable[[str], Path], tmp_path: Path
) -> None:
    out = tmp_path / "deep" / "bert"
    run("pretrain", "bert-toy", str(prepared("bpe:600")), "-o", str(out), "-q", "train.steps=1")
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "| tokenizer | bpe:600, 600 tokens |" in card and "In this folder" in card
    assert "etude pretrain recipe.yaml CORPUS -o ANOTHER" in card
    run("export", str(out), "-o", str(tmp_path / "hf"))
    exported = (tmp_path / "hf" / "README.md").read_text(encoding="utf-8")
    assert "recipe.yaml" not in exported and "AutoModelForPreTraining" in exported
