"""Two towers through the door of every other model: read at their boundaries, unmasked, or frozen and mixed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from etude.errors import UserError
from etude.hub.run_weights import load_learner, save_final
from etude.inference.model import load
from etude.inference.task_model import TaskModel
from etude.models import static
from etude.models.base import DROPOUT_RATES
from etude.models.layer_features import LayerFeatures
from etude.models.transfer_settings import TransferSettings
from etude.models.two_tower import TwoTower
from etude.nn.packed import pack
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.runs.run import Run
from etude.tasks import classify, pair
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.transfer.finetune import finetune
from tests.transfer_fixtures import WORDS

SMALL = ["model.layers=1", "model.width=32", "model.heads=2", "model.context=32", "model.dropout=0.1"]
LETTERS = ['model.characters={"filters": [[1, 8], [2, 8]], "embedding": 8}', "objective.softmax=adaptive"]
LETTERS += ["objective.cutoffs=[20]", "objective.division=2"]


def tokenizer() -> Tokenizer:
    return Tokenizer.train("word:60", [" ".join(WORDS), "who where what is in the town ? . , 1 2 3 4 5"] * 3)


def run_of(folder: Path, *changes: str) -> Path:
    """A finished run with random weights."""
    words = tokenizer()
    recipe = Recipe.load("two-tower-toy", [*SMALL, *changes]).resolve(vocab=words.vocab)
    folder.mkdir()
    (folder / "recipe.yaml").write_text(recipe.dump(), encoding="utf-8")
    words.save(folder)
    save_final(Run(folder), *build_learner(recipe, words), model_card="random weights, for tests")
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_of(tmp_path_factory.mktemp("towers") / "tokens")


@pytest.fixture(scope="module")
def lettered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_of(tmp_path_factory.mktemp("towers") / "letters", *LETTERS)


def model_of(folder: Path) -> TwoTower:
    model, _, _ = load_learner(Run.open(folder))
    assert isinstance(model, TwoTower)
    return model


# --- how texts are read -----------------------------------------------------------------------------


def test_texts_stand_between_boundaries_and_pairs_have_a_separator(base: Path, lettered: Path) -> None:
    words = tokenizer()
    special = words.special
    frame = model_of(base).frame(special)
    one, two = np.array([10, 11]), np.array([12])
    assert frame.join([one]).tokens.tolist() == [special.end, 10, 11, special.end]
    assert frame.join([one, two]).tokens.tolist() == [special.end, 10, 11, special.separator, 12, special.end]
    assert frame.pooling == "ends"
    letters = model_of(lettered).frame(special)
    assert letters.between == [special.start]  # the separator would be spelled like a boundary


def test_the_vector_is_that_of_both_boundaries_and_of_the_separator(base: Path) -> None:
    model, words = model_of(base).eval(), tokenizer()
    texts = [("good film", "very bad"), ("plot", "the town is not in the film")]
    for task, count in ((classify, 2), (pair, 3)):
        settings = task.Settings()
        built = task.build(settings, model, words, {"labels": ["a", "b"]}).eval()
        assert built.pooled.head.in_features == 32 * count
        assert not built.pooled.head.weight.any() and not built.pooled.head.bias.any()
        sequences = [
            built.framing.join([words.encode(text).ids for text in both[: count - 1]]).tokens for both in texts
        ]
        rows = built.pooled.rows([[both[: count - 1]] for both in texts], ["x:1", "x:2"], "x")
        batch = built.pooled.batch([rows[0], rows[1]])
        last = model(pack([one.tolist() for one in sequences])).last
        found = built.pooled.vectors(model, model(batch).last, batch)
        start = 0
        for sequence, vector in zip(sequences, found, strict=True):
            own = last[start : start + len(sequence)]
            states = [own[0], own[-1]]
            if count == 3:
                states.append(own[sequence.tolist().index(words.special.separator)])
            torch.testing.assert_close(vector, torch.cat(states))
            start += len(sequence)


def test_the_vector_is_scaled_before_the_head(base: Path) -> None:
    model, words = model_of(base).eval(), tokenizer()
    scores = []
    for scale in (None, 16.0, 4.0):
        torch.manual_seed(0)
        built = classify.build(classify.Settings(scale=scale, deviation=0.1), model, words, {"labels": ["a", "b"]})
        built.eval()
        rows = built.pooled.rows([[("good film",)]], ["x:1"], "x")
        scores.append(built.pooled(model, built.pooled.batch([rows[0]]))[0])
    torch.testing.assert_close(scores[0], scores[1])
    torch.testing.assert_close(scores[0], 4 * scores[2])


# --- what is changed for a transfer -----------------------------------------------------------------


def test_masks_come_off_and_dropout_ends_unless_told(base: Path) -> None:
    model = model_of(base)
    assert model.mask == "full" and model.forwards.feedforward[0].dropout == 0.1
    model.prepare_transfer(TransferSettings())
    assert model.mask == "none"
    rates = {getattr(part, name) for part in model.modules() for name in DROPOUT_RATES if hasattr(part, name)}
    assert rates == {0.0}
    model.prepare_transfer(TransferSettings(frozen=True, dropout=0.3))
    assert model.mask == "full" and model.forwards.attention[0].attention_dropout == 0.3
    model.prepare_transfer(TransferSettings(frozen=True, mask="current"))
    assert model.mask == "current"


def test_masks_of_other_models_are_refused(base: Path, tmp_path: Path) -> None:
    plain = static.build(static.Settings(width=2, vocab=2))
    plain.prepare_transfer(TransferSettings())
    with pytest.raises(UserError, match=r"transfer\.mask"):
        plain.prepare_transfer(TransferSettings(mask="none"))
    with pytest.raises(UserError, match=r"transfer\.dropout"):
        plain.prepare_transfer(TransferSettings(dropout=0.1))
    linear = model_of(run_of(tmp_path / "linear", "model.combiner=linear"))
    with pytest.raises(UserError, match="no attention to mask"):
        linear.prepare_transfer(TransferSettings(mask="none"))
    linear.prepare_transfer(TransferSettings())


def test_of_the_letters_only_the_projection_learns(lettered: Path) -> None:
    model = model_of(lettered)
    model.prepare_transfer(TransferSettings())
    learning = {name for name, one in model.embedding.named_parameters() if one.requires_grad}
    assert learning == {"words.network.project.weight", "words.network.project.bias"}
    assert all(one.requires_grad for one in model.forwards.parameters())
    model = model_of(lettered)
    model.prepare_transfer(TransferSettings(letters=True))
    assert all(one.requires_grad for one in model.parameters())


def test_chosen_layers_are_twice_as_wide(base: Path) -> None:
    model = model_of(base)
    packed = pack([[5, 7, 8, 5], [5, 9, 5]])
    states = model.eval()(packed, layers=True)
    everything = LayerFeatures(model, "all", "concat")
    assert everything.chosen == [0, 1, 2] and everything.width == 3 * 64 == everything(packed).last.shape[1]
    mixed = LayerFeatures(model, "all", "mix")
    expected = torch.stack(states.layers).mean(0)
    torch.testing.assert_close(mixed(packed).last, expected)
    assert mixed.width == 64
    top = LayerFeatures(model, "last")
    assert top.width == 32
    torch.testing.assert_close(top(packed).last, states.last)


# --- whole transfers --------------------------------------------------------------------------------


def classified(start: Path, reviews: tuple[Path, Path], out: Path, epochs: int) -> TaskModel:
    settings = {"train.epochs": epochs, "train.lr": 3e-3}
    run = finetune(start, "classify", reviews[0], out, dev=reviews[1], overrides=settings, quiet=True)
    return TaskModel.open(run.folder, device="cpu")


def test_a_classifier_learns_and_reads_back(base: Path, reviews: tuple[Path, Path], tmp_path: Path) -> None:
    tuned = classified(base, reviews, tmp_path / "run", epochs=4)
    assert isinstance(tuned.model, TwoTower) and tuned.model.mask == "none"
    assert tuned.evaluate(reviews[1], intervals=False)["accuracy"].value > 0.9
    assert load(tuned.folder, device="cpu").model.mask == "none"


@pytest.mark.parametrize("epochs", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_a_classifier_by_letters(epochs: int, lettered: Path, reviews: tuple[Path, Path], tmp_path: Path) -> None:
    tuned = classified(lettered, reviews, tmp_path / "run", epochs)
    assert isinstance(tuned.model, TwoTower)
    before, after = model_of(lettered).embedding.state_dict(), tuned.model.embedding.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"words.network.project.weight", "words.network.project.bias"}
    accuracy = tuned.evaluate(reviews[1], intervals=False)["accuracy"].value
    assert accuracy > (0.9 if epochs > 1 else 0.3)


def write_tags(path: Path, count: int, seed: int) -> Path:
    """A name is what follows `the`."""
    draw = np.random.default_rng(seed)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(count):
            words, tags = [], []
            for _ in range(draw.integers(1, 4)):
                filler = str(draw.choice(["film", "is", "in", "very"]))
                words += [filler, "the", str(draw.choice(["town", "plot", "actor"]))]
                tags += ["O", "O", "B-X"]
            file.write(json.dumps({"tokens": words, "ner": tags}) + "\n")
    return path


@pytest.mark.parametrize("epochs", [1, pytest.param(6, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "way",
    [
        {"train.lr": 1e-5, "train.head_lr": 2e-2},
        {"transfer.frozen": True, "transfer.layers": "all", "transfer.combine": "mix", "train.lr": 2e-2},
    ],
    ids=["two rates", "frozen mix"],
)
def test_entities_by_projection_bilstm_and_crf(way: dict[str, Any], epochs: int, base: Path, tmp_path: Path) -> None:
    count = 80 if epochs > 1 else 16
    train, dev = write_tags(tmp_path / "train.jsonl", count, 0), write_tags(tmp_path / "dev.jsonl", 20, 1)
    settings: dict[str, Any] = {"task.head": "projection_bilstm_crf", "task.cells": 8, "task.projection": 16}
    settings |= {"task.dropout": 0.0, "train.epochs": epochs, "train.batch_examples": 8} | way
    run = finetune(base, "tag", train, tmp_path / "run", dev=dev, overrides=settings, quiet=True)
    tuned = TaskModel.open(run.folder, device="cpu")
    score = tuned.evaluate(dev, intervals=False)["entity_f1"].value
    assert score > 0.7 if epochs > 1 else score >= 0
    own = tuned.model.base
    before, after = model_of(base).state_dict(), own.state_dict()
    change = max(float((before[name] - after[name]).abs().max()) for name in before)
    assert change == 0 if "transfer.frozen" in way else 0 < change < 1e-3
    assert own.mask == ("full" if "transfer.frozen" in way else "none")
