"""GPT-1's fine-tuning: new markers, the auxiliary loss by default, OpenAI's weights, the export to transformers."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import etude
from etude.errors import UserError
from etude.inference.opening import open_pretrained
from etude.inference.task_model import TaskModel
from etude.recipes.schema import Recipe
from etude.runs.run import Run
from etude.runs.task_plan import Plan, resolve_settings
from etude.tasks.data.examples import Examples
from etude.text.tokenizer.special_tokens import TASK_MARKERS
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.transfer import finetune as finetuning
from etude.transfer.finetune import finetune
from tests.tasks.labelled_records import records
from tests.transfer_fixtures import base

__all__ = ["base"]  # a fixture
Bases = Callable[[str], Path]
LETTERS = list("abcdefghijklmnopqrstuvwxyz?.,")
VOCAB = ["<unk>", *LETTERS, *(f"{letter}</w>" for letter in LETTERS), "th", "the</w>", "fi", "lm</w>", "film</w>"]
MERGES = ["t h", "th e</w>", "f i", "l m</w>", "fi lm</w>"]


@pytest.fixture(scope="module")
def openai(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of `openai-gpt` as transformers writes it, with random weights and the files of its tokenizer."""
    hf = pytest.importorskip("transformers")
    torch.manual_seed(0)
    shape = {"vocab_size": len(VOCAB), "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 96}
    model = hf.OpenAIGPTLMHeadModel(hf.OpenAIGPTConfig(**shape))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    folder = tmp_path_factory.mktemp("published") / "openai-gpt"
    model.save_pretrained(folder)
    (folder / "vocab.json").write_text(json.dumps({token: id for id, token in enumerate(VOCAB)}), encoding="utf-8")
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *MERGES, ""]), encoding="utf-8")
    return folder


def tune(start: Path, task: str, folder: Path, **changes: Any) -> Run:
    file = folder / "train.jsonl"
    file.write_text("".join(json.dumps(item) + "\n" for item in records(task, 24, 0)), encoding="utf-8")
    settings = {"train.steps": 4, "train.lr": 5e-3, "train.batch_examples": 8, **changes}
    return finetune(start, task, file, folder / "run", overrides=settings, quiet=True)


def test_openai_weights_learn_a_task_with_new_tokens(openai: Path, tmp_path: Path) -> None:
    start = open_pretrained(openai)
    assert start.tokenizer.special.end is None and start.recipe.finetune.language_model == 0.5
    run = tune(openai, "classify", tmp_path)
    special = run.tokenizer.special
    ids = [special.task_start, special.task_delimiter, special.extract]
    assert ids == list(range(len(VOCAB), len(VOCAB) + 3)) and run.recipe.model.vocab == len(VOCAB) + 3
    assert [run.tokenizer.token(id) for id in ids if id is not None] == list(TASK_MARKERS.values())
    plan = Plan.read(run.folder)
    assert plan.transfer.markers == "new" and plan.settings.language_model == 0.5
    assert all("language_model" in line for line in run.metrics("train"))
    tuned = TaskModel.open(run.folder, "cpu")
    # start text extract; the words of its name in a text are letters
    framed = tuned.task.frame(tuned.tokenizer.encode("the film _classify_").ids, None)
    assert framed[0] == ids[0] and framed[-1] == ids[2] and (framed == ids[2]).sum() == 1
    table = tuned.model.embedding.tokens.weight
    assert not torch.equal(table[:-3], start.model.embedding.tokens.weight)
    fresh = open_pretrained(openai)
    rows = finetuning.add_markers(fresh, "new", 0).model.embedding.tokens.weight
    assert torch.equal(rows[:-3], start.model.embedding.tokens.weight) and not torch.equal(rows[-1], table[-1])
    assert 0.005 < rows[-3:].std() < 0.05


def test_forms_of_the_paper(openai: Path, tmp_path: Path) -> None:
    """Similarity: both orders, their vectors added; choice: each answer behind the question; one marker between."""
    start, delimiter, extract = range(len(VOCAB), len(VOCAB) + 3)
    for task, sequences in (("pair", 1), ("similarity", 2), ("choice", 3)):
        (tmp_path / task).mkdir()
        tuned = TaskModel.open(tune(openai, task, tmp_path / task).folder, "cpu")
        given = [tuned.plan.module.parse(item, {}, "x") for item in records(task, 2, 1)]
        rows = tuned.task.rows(_examples(given))
        row = rows[0]
        parts = np.split(row.tokens, row.bounds[1:-1])
        assert len(parts) == (len(given[0].choices) if task == "choice" else sequences)
        for part in parts:
            assert part[0] == start and part[-1] == extract and (part == delimiter).sum() == 1
        if task == "similarity":
            first, second = (part.tolist()[1:-1] for part in parts)
            place = first.index(delimiter)
            assert second == [*first[place + 1 :], delimiter, *first[:place]]
            batch = tuned.task.batch([row], None)
            with torch.no_grad():
                last = tuned.model(batch).last
                wanted = tuned.task.pooled.head(last[len(parts[0]) - 1] + last[-1])
                torch.testing.assert_close(tuned.task.pooled(tuned.model, batch)[0][0], wanted)


def _examples(items: list[Any]) -> Any:
    return Examples(items, source="x", places=[f"x:{number}" for number in range(len(items))])


@pytest.mark.parametrize("task", ["classify", "pair"])
def test_the_class_of_transformers_says_the_same(openai: Path, tmp_path: Path, task: str) -> None:
    hf = pytest.importorskip("transformers")
    run = tune(openai, task, tmp_path, **{"train.lr": 2e-2})
    result = etude.export(run.folder, out=tmp_path / "out")
    assert result.published is not None and result.published.architecture == "OpenAIGPTForSequenceClassification"
    model, report = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    tokenizer = hf.AutoTokenizer.from_pretrained(tmp_path / "out")
    tuned, given = TaskModel.open(run.folder, "cpu"), records(task, 6, 1)
    assert tuned.task.pooled.head.bias.abs().min() > 2e-4  # the class has none: it went into the last norm
    texts = [[item["text"]] if task == "classify" else [item["text_a"], item["text_b"]] for item in given]
    inputs = tokenizer(*map(list, zip(*texts, strict=True)), padding=True, return_tensors="pt")
    with torch.no_grad():
        theirs = model.eval()(**inputs).logits
        rows = tuned.task.unlabelled_rows(_examples([tuned.plan.module.parse(item, {}, "x") for item in given]))
        ours = torch.cat([tuned.task.pooled(tuned.model, tuned.task.batch([rows[n]], None))[0] for n in range(6)])
    torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=1e-5)


def test_what_has_no_class_there_is_exported_with_one_of_its_own(openai: Path, tmp_path: Path) -> None:
    run = tune(openai, "similarity", tmp_path)
    result = etude.export(run.folder, out=tmp_path / "out")
    assert result.published is None and "No class of transformers" in result.usage[0]
    given = records("similarity", 3, 1)
    assert etude.load(tmp_path / "out").predict(given) == TaskModel.open(run.folder, "cpu").predict(given)


def test_the_recipe_decides(base: Bases, tmp_path: Path) -> None:
    """GPT-1's own default, off for others, for a frozen model, where a teacher teaches, and where it is asked."""
    start = open_pretrained(base("gpt"))
    recipe, plain = Recipe.load("gpt1").resolve(), Recipe.load("gpt2-toy").resolve(vocab=60)
    assert recipe.finetune.markers == "new" and start.recipe.finetune.markers == "own"  # a toy has no time for it
    assert Recipe.parse(recipe.dump()).finetune == recipe.finetune and "finetune" not in plain.dump()

    def weight(recipe: Recipe, kind: str = "classify", **given: Any) -> float:
        return resolve_settings(kind, given, start.model, recipe)[0].language_model

    assert weight(recipe) == weight(recipe, "choice") == 0.5 and weight(plain) == 0.0
    assert weight(recipe, **{"task.language_model": 0}) == weight(recipe, **{"transfer.frozen": True}) == 0.0
    assert weight(recipe, **{"distill.teacher": "x"}) == 0.0
    assert not hasattr(resolve_settings("tag", {}, start.model, recipe)[0], "language_model")
    paper = tmp_path / "paper"
    shutil.copytree(base("gpt"), paper)
    paper_recipe = start.recipe.with_settings({"finetune.markers": "new"})
    (paper / "recipe.yaml").write_text(paper_recipe.dump(), encoding="utf-8")
    (paper / "checksums.json").unlink()
    (tmp_path / "whole").mkdir()
    assert Plan.read(tune(paper, "classify", tmp_path / "whole").folder).transfer.markers == "new"
    run = tune(paper, "classify", tmp_path, **{"transfer.frozen": True})
    assert run.tokenizer.special.extract is None and Plan.read(run.folder).transfer.markers == "own"


def test_a_second_task_keeps_the_tokens_of_the_first(base: Bases, tmp_path: Path) -> None:
    first = tune(base("gpt"), "classify", tmp_path, **{"transfer.markers": "new"})
    (tmp_path / "second").mkdir()
    second = tune(first.folder, "pair", tmp_path / "second", **{"train.lr": 1e-20})
    assert second.tokenizer.content == first.tokenizer.content
    tables = [load_file(run.folder / "model.safetensors")["model.embedding.tokens.weight"] for run in (first, second)]
    assert torch.equal(tables[0][-3:], tables[1][-3:])


def test_resumed_before_its_first_step_it_draws_the_same_rows(base: Bases, tmp_path: Path) -> None:
    (tmp_path / "stopped").mkdir()
    file = tmp_path / "train.jsonl"
    file.write_text("".join(json.dumps(item) + "\n" for item in records("classify", 24, 0)), encoding="utf-8")
    settings = {"train.steps": 3, "train.batch_examples": 8, "transfer.markers": "new"}
    whole = finetune(base("gpt"), "classify", file, tmp_path / "whole", overrides=settings, quiet=True)
    stopped = finetune(
        base("gpt"), "classify", file, tmp_path / "run", overrides=settings, quiet=True, deadline=time.monotonic()
    )
    for folder in stopped.checkpoints.glob("*"):  # as if it had been killed before the first
        for item in folder.iterdir():
            item.unlink()
        folder.rmdir()
    assert not stopped.finished and not stopped.steps
    finetuning.resume(stopped.folder, quiet=True)
    first, second = (load_file(run.folder / "model.safetensors") for run in (whole, stopped))
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_what_it_refuses(base: Bases, openai: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"reads both sides"):
        tune(base("bert"), "classify", tmp_path, **{"transfer.markers": "new"})
    with pytest.raises(UserError, match=r"transfer\.frozen lets none learn: drop one"):
        tune(base("gpt"), "classify", tmp_path, **{"transfer.markers": "new", "transfer.frozen": True})
    with pytest.raises(UserError, match=r"without transfer\.frozen"):
        tune(openai, "classify", tmp_path, **{"transfer.probe": True})
    tokenizer = Tokenizer.train("word:40", ["one _start_ two _delimiter_ _classify_"] * 5)
    assert tokenizer.special.extract is None  # words of a text are no markers
