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
from etude.recipes.schema import Recipe
from etude.text.corpus.corpus import Corpus
from etude.text.prepare.prepare import prepare
from etude.train.loop import Loop
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


def test_a_budget_without_time_for_a_step_is_refused(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A run took one step all the same, and many times its minutes."""
    speed = Speed(1000.0, 0.256, 5e4, 32, 32.0, 100, 6.0, 0.1, 0.0)
    monkeypatch.setattr(budget, "measure_speed", lambda *_, **__: speed)
    with pytest.raises(
        UserError, match=r"One step of 256 tokens takes about 0\.26 s here, longer than train\.minutes=0\.004"
    ):
        steps(corpus, minutes=0.004)
    assert steps(corpus, minutes=0.02) == 4
    assert "train.minutes=0.02 is enough for 4 steps of 256 tokens, in which nothing is learnt" in caplog.text
    caplog.clear()
    assert steps(corpus, minutes=1) == 60_000 // 256 and not caplog.text


def test_a_recipe_for_a_cpu_is_named_where_there_is_one() -> None:
    recipe = Recipe.load("encoder-5min", {"train.minutes": 0.5})
    speed = Speed(1000.0, 65.5, 5e4, 128, 128.0, 100, 6.0, 0.1, 0.0)
    told = budget.find_short_budget(recipe, speed, 1, torch.device("cpu")) or ""
    assert told.startswith("One step of 65,536 tokens takes about 66 s here") and "encoder-5min-cpu" in told
    assert "-cpu" not in (budget.find_short_budget(recipe, speed, 1, torch.device("cuda")) or "-cpu")
    assert budget.find_short_budget(recipe, speed, budget.FEW_STEPS, torch.device("cpu")) is None


@pytest.mark.parametrize(("minutes", "trials"), [(0.5, [1024]), (60, [1024, 8192])])
def test_steps_that_are_long_beside_the_budget_are_not_tried(
    minutes: float, trials: list[int], corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of half a minute, 73 seconds went into measuring. The optimiser takes as long for a step of few tokens."""
    tried: list[int] = []

    def measure(recipe: Recipe, *_: object, limit: float, **__: object) -> Speed:
        tried.append(recipe.train.batch_tokens)
        assert limit == pytest.approx(6 * minutes)
        size = recipe.train.batch_tokens
        seconds = 2.0 + size / 1024
        return Speed(size / seconds, seconds, 5e4, 32, 32.0, 100, 6.0, 0.1, 0.0, update_seconds=2.0)

    monkeypatch.setattr(budget, "measure_speed", measure)
    recipe = resolve_recipe("gpt2-toy", corpus, SMALL | {"train.minutes": minutes, "train.batch_tokens": 8192})
    _, objective = build_learner(recipe, corpus.tokenizer)
    fixed = budget.fix_budget(recipe, corpus, objective, torch.device("cpu"), Ranks())
    assert tried == trials and fixed.train.steps == minutes * 60 // 10


def test_a_trial_ends_at_its_limit(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    advanced: list[int] = []
    advance = Loop.advance

    def count(self: Loop, step: Any) -> None:
        advance(self, step)
        advanced.append(step.number)

    monkeypatch.setattr(Loop, "advance", count)
    recipe = resolve_recipe("gpt2-toy", corpus, SMALL | {"train.minutes": 1})
    speed = measure_speed(recipe, corpus, torch.device("cpu"), seconds=60.0, limit=0.0)
    assert advanced == [0] and speed.tokens_per_second * speed.seconds_per_step == pytest.approx(256)
    assert 0 < speed.update_seconds < speed.seconds_per_step
    longer = speed.with_step(512)
    assert longer.seconds_per_step == pytest.approx(2 * speed.seconds_per_step - speed.update_seconds)
    assert longer.tokens_per_second == pytest.approx(512 / longer.seconds_per_step)


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
