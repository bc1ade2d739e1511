"""A fine-tuned classifier answers as its export does in transformers, on single texts and on pairs that are cut."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from benchmarks.exported_scores import compare_export

import etude
from etude.hub.run_weights import save_final
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.runs.run import Run
from etude.text.tokenizer.tokenizer import Tokenizer

SHAPE = {"model.layers": 2, "model.width": 32, "model.heads": 2, "model.feedforward": 48, "model.init_deviation": 0.3}


def test_both_answer_the_same(tmp_path: Path) -> None:
    texts = [f"{word} is {other}" for word in ("snow", "coal", "milk", "ink") for other in ("white", "black")]
    tokenizer = Tokenizer.train("wordpiece:120,lower", texts * 3)
    (tmp_path / "run").mkdir()
    tokenizer.save(tmp_path / "run")
    recipe = Recipe.load("encoder-20min", SHAPE).resolve(vocab=tokenizer.vocab)
    (tmp_path / "run" / "recipe.yaml").write_text(recipe.dump())
    torch.manual_seed(0)
    run = Run.open(tmp_path / "run")
    save_final(run, *build_learner(run.recipe, run.tokenizer), model_card="# random weights\n")
    pairs = [
        {"id": str(number), "text_a": text * (1 + 40 * (number == 3)), "text_b": texts[-number], "label": number % 2}
        for number, text in enumerate(texts)
    ]
    file = tmp_path / "pairs.jsonl.xz"
    with lzma.open(file, "wt", encoding="utf-8") as lines:
        lines.write("".join(json.dumps(pair) + "\n" for pair in pairs))
    settings = {"train.steps": 6, "train.lr": 1e-2, "task.length": 128}
    etude.finetune(run.folder, "mrpc", train=file, dev=file, out=tmp_path / "tuned", settings=settings, quiet=True)
    found = compare_export(tmp_path / "tuned", file)
    assert found["examples"] == 8 and found["answers that differ"] == 0 and found["class"].startswith("ModernBert")
    assert found["etude"] == found["transformers"] and found["probabilities apart"] < 1e-5
