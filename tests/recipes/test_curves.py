"""Every toy recipe follows its stored curve on the built-in world, and the curve lies below what it must beat."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from etude.errors import UserError
from etude.pretraining import pretrain as pretraining
from etude.recipes import curves
from etude.recipes.curves import Curve
from etude.recipes.schema import Recipe
from etude.runs.run import Run
from etude.text.prepare.prepare import prepare

TOYS = [
    "albert-toy",
    "bert-toy",
    "bilm-toy",
    "collobert-toy",
    "decoder-modern-toy",
    "electra-toy",
    "elmo-toy",
    "encoder-modern-toy",
    "glove-toy",
    "gpt1-toy",
    "gpt2-toy",
    "gpt3-toy",
    "luong-toy",
    "rnn-search-toy",
    "seq2seq-rnn-toy",
    "taglm-toy",
    "transformer-toy",
    "two-tower-toy",
]

Corpora = Callable[[curves.Text, str], Path]
WHOLE = [name for name in curves.recorded_recipes() if curves.load(name).whole is not None]


@pytest.fixture(scope="module")
def corpus_of(tmp_path_factory: pytest.TempPathFactory) -> Corpora:
    """A function from a text and a tokenizer's specification to the folder of their corpus, each prepared once."""

    @cache
    def prepared(text: curves.Text, tokenizer: str) -> Path:
        folder = tmp_path_factory.mktemp("corpus")
        file, pairs = text.write(folder)
        prepare(str(file), folder / "corpus", tokenizer, valid=text.valid, workers=0, pairs=pairs)
        return folder / "corpus"

    return prepared


def repeated(name: str, curve: Curve, folder: Path, corpus_of: Corpora, **changes: Any) -> Run:
    """The run that a curve was taken from, once more."""
    recipe = Recipe.load(name)
    corpus = corpus_of(curve.text, recipe.tokenizer)
    return pretraining.pretrain(recipe, corpus, folder / "run", quiet=True, overrides={**curve.settings, **changes})


def test_every_recorded_curve_is_tested() -> None:
    assert curves.recorded_recipes() == TOYS


@pytest.mark.parametrize("name", TOYS)
def test_a_short_run_follows_its_curve(name: str, tmp_path: Path, corpus_of: Corpora) -> None:
    curve = curves.load(name).short
    assert not curve.find_deviations(repeated(name, curve, tmp_path, corpus_of).metrics())


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gpt2-toy", {"train.lr": 1.5e-3}),
        ("bert-toy", {"objective.mask_share": 0.0, "objective.random_share": 0.0}),  # the answers stand in the text
        ("electra-toy", {"objective.temperature": 100.0}),  # replacements drawn from nearly nothing
    ],
)
def test_a_run_that_is_far_off_does_not(name: str, changes: dict[str, Any], tmp_path: Path, corpus_of: Corpora) -> None:
    curve = curves.load(name).short
    faults = curve.find_deviations(repeated(name, curve, tmp_path, corpus_of, **changes).metrics())
    assert faults and "is expected, give or take" in faults[-1]


@pytest.mark.parametrize("name", WHOLE)
def test_the_curve_of_a_whole_run_lies_below_unigram_and_bigram(name: str) -> None:
    curve = curves.load(name).whole
    assert curve is not None
    kind = Recipe.load(name).objective_kind
    value = {"masked": "mlm", "replaced": "generator"}.get(kind, "loss")
    # A generator is small by design. Four runs of other seeds and orders of the text ended between 2.76 and 2.87, and
    # bigrams have 2.94: there is no room left for the tolerance.
    room = 0.0 if kind == "replaced" else curve.tolerance[value]
    assert curve.points[-1][value] + room < curve.baselines["bigram"] < curve.baselines["unigram"]


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_run_follows_its_curve(name: str, tmp_path: Path, corpus_of: Corpora) -> None:
    curve = curves.load(name).whole
    assert curve is not None
    assert not curve.find_deviations(repeated(name, curve, tmp_path, corpus_of).metrics())


# --- the files ----------------------------------------------------------------------------------------


def lines(*losses: float) -> list[dict[str, Any]]:
    return [{"split": "train", "step": n, "tokens": 10 * n, "loss": loss} for n, loss in enumerate(losses, 1)]


def test_misfits_are_named_in_both_directions() -> None:
    points = [{"step": 1, "tokens": 10, "loss": 5.0}, {"step": 2, "tokens": 20, "loss": 4.0}]
    curve = Curve(curves.Text(0.1), "train", {}, {"loss": 0.1}, points, {})
    assert not curve.find_deviations(lines(5.05, 3.95, 1.0))
    assert curve.find_deviations(lines(5.2, 4.0)) == ["step 1: loss 5.2000 where 5.0000 is expected, give or take 0.1"]
    assert len(curve.find_deviations(lines(4.8, 4.2))) == 2
    assert "step 2: no such line" in curve.find_deviations(lines(5.0))[0]
    assert len(curve.find_deviations(lines(5.0, math.nan))) == 1
    assert "20 tokens are expected" in curve.find_deviations([{**line, "tokens": 7} for line in lines(5.0, 4.0)])[1]


@pytest.mark.parametrize("name", TOYS)
def test_a_file_reads_back(name: str) -> None:
    reference = curves.load(name)
    assert reference.recipe == name
    assert {"command", "commit", "versions", "hardware", "date"} <= reference.made.keys()
    assert reference.dump() == (curves.PLACE / f"{name}.json").read_text(encoding="utf-8")


def test_a_recipe_without_a_curve_is_named() -> None:
    with pytest.raises(UserError, match="no reference curve of 'bert-tyo'"):
        curves.load("bert-tyo")
