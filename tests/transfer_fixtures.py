"""Small models with random weights, as runs, and files of examples with a rule that can be learnt in seconds.

The package and torch are imported where they are used: pytest reads this file also in the process that only hands
tests to its workers, before it starts them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from etude.inference.model import LoadedModel

WORDS = ["이", "영화", "정말", "좋다", "나쁘다", "film", "good", "bad", "very", "not", "really", "plot", "actor", "end"]
SHAPES = {
    "bert": [
        "bert-toy",
        "model.layers=2",
        "model.width=32",
        "model.heads=2",
        "model.context=64",
        "model.feedforward=64",
    ],
    "gpt": [
        "gpt1-toy",
        "model.layers=2",
        "model.width=32",
        "model.heads=2",
        "model.context=64",
        "model.feedforward=64",
    ],
    "static": ["skipgram-toy", "model.width=24"],
    "recurrent": ["bilm-toy", "model.width=12", "model.cells=24"],
}


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function from a family to the folder of a finished run."""
    from etude.hub.run_weights import save_final
    from etude.recipes.learner import build_learner
    from etude.recipes.schema import Recipe
    from etude.runs.run import Run
    from etude.text.tokenizer.tokenizer import Tokenizer

    made: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind not in made:
            name, *overrides = SHAPES[kind]
            tokenizer = Tokenizer.train(
                "word:60", [" ".join(WORDS), "who where what is in the town ? . , 1 2 3 4 5"] * 3
            )
            recipe = Recipe.load(name, overrides).resolve(vocab=tokenizer.vocab)
            folder = tmp_path_factory.mktemp("bases") / kind
            folder.mkdir()
            (folder / "recipe.yaml").write_text(recipe.dump(), encoding="utf-8")
            tokenizer.save(folder)
            run = Run(folder)
            save_final(run, *build_learner(recipe, tokenizer), model_card="random weights, for tests")
            made[kind] = folder
        return made[kind]

    return make


def write_reviews(path: Path, count: int, seed: int) -> Path:
    """Good or bad by one word among others."""
    draw = np.random.default_rng(seed)
    plain = [word for word in WORDS if word not in ("good", "bad")]
    with path.open("w", encoding="utf-8") as file:
        for _ in range(count):
            label = ("bad", "good")[draw.integers(2)]
            words = [*draw.choice(plain, draw.integers(1, 6)), label]
            text = " ".join(str(word) for word in draw.permutation(words))
            file.write(json.dumps({"text": text, "label": label}, ensure_ascii=False) + "\n")
    return path


@pytest.fixture(scope="session")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(train, dev)"""
    folder = tmp_path_factory.mktemp("reviews")
    return write_reviews(folder / "train.jsonl", 120, 0), write_reviews(folder / "dev.jsonl", 40, 1)


@pytest.fixture(scope="session")
def small_gpt() -> Callable[..., LoadedModel]:
    """A function from a kind of tokenizer and texts to a causal model with random weights."""
    import torch

    from etude.inference.model import LoadedModel
    from etude.recipes.learner import build_learner
    from etude.recipes.schema import Recipe
    from etude.text.tokenizer.tokenizer import Tokenizer

    def make(spelling: str, texts: list[str], scale: float = 1.0) -> LoadedModel:
        tokenizer = Tokenizer.train(spelling, texts * 3)
        shape = ["model.layers=2", "model.width=32", "model.heads=2", "model.context=64", "model.feedforward=64"]
        recipe = Recipe.load("gpt2-toy", shape).resolve(vocab=tokenizer.vocab)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model, objective = build_learner(recipe, tokenizer)
        for weight in model.parameters():
            weight.data.mul_(scale)
        return LoadedModel(model, objective, tokenizer)

    return make
