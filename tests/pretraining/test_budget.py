"""What is settled before a run starts: a budget becomes a number of steps, measured only where it has to be."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
import torch

from etude.errors import UserError
from etude.objectives.causal import Causal
from etude.pretraining import budget
from etude.pretraining.setup import resolve_recipe
from etude.pretraining.trial import Speed, measure_speed
from etude.recipes.learner import build_learner
from etude.text.corpus.corpus import Corpus
from etude.text.prepare.prepare import prepare
from etude.train.parallel import Ranks
from etude.world import World
from tests.objectives.small_corpus import tokenizer

SMALL: dict[str, Any] = {
    "model.layers": 1,
    "model.width": 16,
    "model.heads": 2,
    "model.context": 32,
    "objective.row_tokens": 32,
    "train.batch_tokens": 256,
    "train.precision": "float32",
    "train.device": "cpu",
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("budgets")
    (folder / "text.txt").write_text("".join(World(seed=1).text(0.05)), encoding="utf-8")
    return prepare(folder / "text.txt", folder / "corpus", tokenizer="wordpiece:400", workers=1)


def steps(corpus: Corpus, **limits: float) -> int | None:
    changes = SMALL | {f"train.{name}": value for name, value in limits.items()}
    recipe = resolve_recipe("gpt2-toy", corpus, changes)
    _, objective = build_learner(recipe, corpus.tokenizer)
    return budget.fix_budget(recipe, corpus, objective, torch.device("cpu"), Ranks()).train.steps


def test_what_is_counted_needs_no_trial(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial compiles on a GPU: a minute before the run, for nothing."""

    def counting(*_: object, **__: object) -> None:
        raise AssertionError("a trial was run")

    monkeypatch.setattr(budget, "measure_speed", counting)
    assert steps(corpus, tokens=25_600) == 100
    assert steps(corpus, steps=7) == 7
    rows = corpus.total // 32
    assert abs((steps(corpus, epochs=2) or 0) - 2 * rows / 8) <= 2  # 8 rows a step; a row is a little text and a marker


def test_what_is_not_counted_is_tried(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    speed = Speed(1000.0, 0.256, 5e4, 32, 32.0, 100, 6.0, 0.1, 0.0)
    monkeypatch.setattr(budget, "measure_speed", lambda *_, **__: speed)
    assert steps(corpus, flops=5e4 * 2560) == 10
    assert steps(corpus, minutes=1) == 60_000 // 256


@pytest.mark.parametrize(
    "limits", [{"train.tokens": 100_000}, {"train.flops": 5e4 * 100_000}, {"train.minutes": 100 / 60}]
)
def test_rows_that_are_not_full_get_as_many_steps_more(
    limits: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pairs are never cut, so one long pair leaves room in every row: it is not a part of the budget."""
    pairs = [[[10 + number % 80] * 8, [20 + number % 70] * 8] for number in range(2_000)] + [[[9] * 60, [9] * 60]]
    corpus = Corpus.from_documents(pairs, tokenizer(100))
    changes = {"train.device": "cpu", "train.precision": "float32", "model.context": 64, "objective.row_tokens": 512}
    recipe = resolve_recipe("transformer-toy", corpus, changes | limits)
    _, objective = build_learner(recipe, corpus.tokenizer)
    rows = objective.rows(corpus, recipe.train.seed)
    mean = sum(len(rows[number].tokens) for number in range(len(rows))) / len(rows)
    assert mean < 0.8 * 512
    speed = Speed(1000.0, 0.256, 5e4, 512, mean, len(rows), 6.0, 0.1, 0.0)
    monkeypatch.setattr(budget, "measure_speed", lambda *_, **__: speed)
    fixed = budget.fix_budget(recipe, corpus, objective, torch.device("cpu"), Ranks()).train
    assert (fixed.steps or 0) * (fixed.batch_tokens // 512) * mean == pytest.approx(100_000, rel=0.02)


def test_a_trial_measures_what_rows_hold() -> None:
    pairs = [[[10 + number % 80] * 8, [20 + number % 70] * 8] for number in range(200)] + [[[9] * 60, [9] * 60]]
    corpus = Corpus.from_documents(pairs, tokenizer(100))
    changes = {"train.device": "cpu", "train.precision": "float32", "model.context": 64, "objective.row_tokens": 512}
    recipe = resolve_recipe("transformer-toy", corpus, changes | {"train.minutes": 1, "train.batch_tokens": 512})
    speed = measure_speed(recipe, corpus, torch.device("cpu"), seconds=0.0)
    assert speed.row_tokens == 512 and speed.mean_tokens < 0.8 * 512


def test_a_trial_without_enough_memory_says_which_settings_need_less(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the run itself does: a budget of minutes meets the limit first."""
    monkeypatch.setattr(Causal, "loss", Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory")))
    with pytest.raises(UserError, match=r"Memory ran out.*train\.micro_tokens=128"):
        steps(corpus, minutes=1)


def test_a_trial_is_one_of_all_ranks(corpus: Corpus) -> None:
    """Each takes its share of a step, and as many steps as the first that has had enough."""
    asked: list[bool] = []

    class OneOfTwo(Ranks):
        def sum(self, values: dict[str, float]) -> dict[str, float]:
            if "flag" in values:
                asked.append(bool(values["flag"]))
                return {"flag": 1.0}  # the other has had enough
            return {name: 2 * value for name, value in values.items()}

    recipe = resolve_recipe("gpt2-toy", corpus, SMALL | {"train.minutes": 1})
    speed = measure_speed(recipe, corpus, torch.device("cpu"), seconds=60.0, ranks=OneOfTwo())
    assert asked == [False]
    assert speed.tokens_per_second * speed.seconds_per_step == pytest.approx(2 * 256)  # of both ranks
