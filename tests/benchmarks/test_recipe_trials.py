"""Trials of benchmarks/recipe_trials.py: every choice is one its recipe can have, and the table compares in pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.recipe_trials import Plan, format_table, mean_score, read_plan

from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.text.tokenizer.tokenizer import Tokenizer

TRIALS = Path(__file__).parents[2] / "benchmarks" / "trials"


@pytest.mark.parametrize("file", sorted(TRIALS.glob("*.yaml")), ids=lambda file: file.stem)
def test_every_trial_is_another_recipe(file: Path) -> None:
    plan = read_plan(file)
    assert plan.trials[0].name == "base" and not plan.trials[0].set, "what the others are compared with comes first"
    tokenizer = Tokenizer.train("wordpiece:100,lower", ["some words of a text"] * 3)
    seen: list[Any] = []
    for trial in plan.trials:
        recipe = Recipe.load(plan.recipe, trial.words)
        key = (recipe.dump(), trial.tokenizer)
        assert key not in seen, f"{trial.name} is no other choice"
        seen.append(key)
        if "objective.length" not in trial.set:  # another kind of objective begins with its own settings
            assert recipe.objective.length == Recipe.load(plan.recipe).objective.length, trial.name
        with torch.device("meta"):
            build_learner(recipe.resolve(vocab=tokenizer.vocab), tokenizer)


def test_tasks_are_read_with_their_settings(tmp_path: Path) -> None:
    text = "recipe: x\nminutes: 2\nseeds: 2\ntasks:\n  a: {kind: tag, score: f1, options: [-c, tags=ner], set: [x=1]}\n"
    (tmp_path / "x.yaml").write_text(text + "trials:\n  base:\n  other: {set: {train.lr: 1.0e-3}, tokenizer: word:9}\n")
    plan = read_plan(tmp_path / "x.yaml")
    assert isinstance(plan, Plan) and plan.tasks["a"].options == ("-c", "tags=ner") and plan.tasks["a"].examples is None
    assert plan.trials[1].words == ["train.lr=0.001"] and plan.trials[1].tokenizer == "word:9"


def test_the_table_has_the_best_first_and_compares_seed_by_seed() -> None:
    def line(name: str, first: list[float], second: list[float]) -> dict[str, Any]:
        return {"trial": name, "scores": {"a": first, "b": second}, "steps": 10, "set": {}, "tokenizer": None}

    results = [line("base", [50, 52], [70, 70]), line("better", [53, 55], [72, 74]), line("worse", [50, 52], [70, 66])]
    assert mean_score(results[0]["scores"]) == 60.5
    rows = format_table(results).splitlines()
    assert [row.split(" | ")[0] for row in rows] == ["trial", "better", "base", "worse"]
    assert "+3.0 ± 0.4" in rows[1] and "-1.0 ± 1.0" in rows[3]


def test_without_tasks_the_held_out_loss_decides() -> None:
    def line(name: str, loss: float) -> dict[str, Any]:
        return {"trial": name, "scores": {}, "valid": {"loss": loss, "tokens": 4096}, "steps": 1, "set": {"a.b": 2}}

    rows = format_table([line("base", 5.0), line("better", 4.75)]).splitlines()
    assert rows[1] == "better | 4.750 | 4,096 | 1 | a.b=2" and rows[2].startswith("base | 5.000")
