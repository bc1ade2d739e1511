"""Tiny models with random weights and real tokenizers, as `etude.load` gives them; and folders of them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch

from etude.hub.run_weights import save_final
from etude.inference.model import LoadedModel
from etude.models import transformer
from etude.objectives import causal, masked
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.runs.run import Run
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.train import checkpoint

TEXTS = [
    "the cat sat on the mat. the dog ran to the door, and the cat ran too!",
    "고양이가 방석 위에 앉았다. 개가 문으로 달렸고, 고양이도 달렸다!",
]


@cache
def tokenizer(spec: str = "bytebpe:300") -> Tokenizer:
    return Tokenizer.train(spec, TEXTS * 20)


def decoder(
    spec: str = "bytebpe:300", bias: bool = False, documents: Any = "join", start: bool = False, **changes: Any
) -> LoadedModel:
    """A causal model whose random weights are large enough to have opinions."""
    words = tokenizer(spec)
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"layers": 2, "width": 32, "heads": 4, "vocab": words.vocab, "context": 32}
    model = transformer.build(transformer.Settings(**sizes | {"direction": "causal", "init_deviation": 0.3} | changes))
    objective = causal.build(causal.Settings(bias=bias, documents=documents, start=start), model, words.special)
    return LoadedModel(model, objective, words)


def encoder(spec: str = "wordpiece:200", markers: bool = True, **changes: Any) -> LoadedModel:
    words = tokenizer(spec)
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"layers": 2, "width": 32, "heads": 4, "vocab": words.vocab, "context": 32}
    model = transformer.build(transformer.Settings(**sizes | {"segments": 2, "init_deviation": 0.3} | changes))
    return LoadedModel(model, masked.build(masked.Settings(markers=markers), model, words.special), words)


SMALL = {"model.layers": 2, "model.width": 32, "model.heads": 2, "train.batch_tokens": 4096}


def recipe_of(name: str, words: Tokenizer, **changes: Any) -> Recipe:
    return Recipe.load(name, {**SMALL, **changes}).resolve(vocab=words.vocab)


def started_run(folder: Path, name: str, spec: str, **changes: Any) -> Run:
    """The folder of a run before its first step."""
    words = tokenizer(spec)
    folder.mkdir(parents=True)
    words.save(folder)
    (folder / "recipe.yaml").write_text(recipe_of(name, words, **changes).dump(), encoding="utf-8")
    return Run.open(folder)


def finished_run(folder: Path, name: str, spec: str, **changes: Any) -> Run:
    """A run that has ended with its initial weights."""
    run = started_run(folder, name, spec, **changes)
    save_final(run, *build_learner(run.recipe, run.tokenizer), model_card="# a card\n")
    return run


def saved_run(folder: Path, name: str, spec: str) -> Run:
    """A run with a checkpoint and nothing else."""
    run = started_run(folder, name, spec)
    model, objective = build_learner(run.recipe, run.tokenizer)
    weights = torch.nn.ModuleDict({"model": model, "objective": objective}).state_dict()
    checkpoint.save(folder / "checkpoints", 7, {"weights": weights}, {})
    return run
