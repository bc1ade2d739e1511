"""Trials of benchmarks/recipe_trials.py: every choice is one its recipe can have, and the table compares in pairs."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.recipe_trials import Clock, Plan, TaskRun, Trial, format_table, mean_score, read_plan

from benchmarks import recipe_trials
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


class FakeWorkshop:
    """Writes down what is trained; `odd` cannot be measured."""

    def __init__(self, plan: Plan, arguments: argparse.Namespace) -> None:
        self.done: list[tuple[str, ...]] = arguments.done

    def measure_speeds(self, trials: Iterable[Trial]) -> dict[str, dict[str, float]]:
        return {trial.name: {"steps": 10} for trial in trials if trial.name != "odd"}

    def pretrain(self, trial: Trial, steps: float) -> Path:
        return Path(trial.name)

    def finetune(self, run: Path, name: str, seed: int) -> float:
        self.done.append((run.name, name, str(seed)))
        if run.name == "failing":
            raise KeyError("scores")
        return 50.0

    def describe_trial(self, trial: Trial, speed: Mapping[str, float], run: Path) -> dict[str, Any]:
        return {"trial": trial.name, "minutes": 2, "set": {}, "tokenizer": None, **speed}


TASKS = {name: TaskRun(name, "accuracy") for name in ("cola", "rte")}


def run_fakes(folder: Path, monkeypatch: pytest.MonkeyPatch, names: list[str], until: float) -> list[tuple[str, ...]]:
    monkeypatch.setattr(recipe_trials, "Workshop", FakeWorkshop)
    arguments = argparse.Namespace(done=[], only=None, commit="abc", parallel=1, finetunings=1, until=until)
    plan = Plan("encoder-20min", 2, 2, TASKS, tuple(map(Trial, names)))
    recipe_trials.run_trials(plan, arguments, folder / "results.jsonl")
    return arguments.done


def test_what_fails_in_a_trial_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One shape that could not be measured ended all trials of a visit."""
    done = run_fakes(tmp_path, monkeypatch, ["odd", "failing", "base"], until=26)
    assert [one["trial"] for one in recipe_trials.read_results(tmp_path / "results.jsonl")] == ["base"]
    text = capsys.readouterr().out
    assert "odd: not begun, its speed is not known" in text and "failing: failed: 'scores'" in text
    assert done[-4:] == [("base", name, seed) for seed in "01" for name in TASKS], "all tasks before the next seed"


def test_a_trial_whose_fine_tunings_would_be_late_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two minutes of pre-training ended in time, and their scores were lost."""
    plan = Plan("encoder-20min", 2, 3, TASKS, ())
    clock = Clock(plan, parallel=2)
    assert clock.expect() == pytest.approx(1.3 * 240 + 120)
    clock.pretraining, clock.finetuning = 250, 90
    assert clock.expect() == 340
    assert Clock(Plan("encoder-20min", 2, 3, {}, ()), parallel=1).expect() == pytest.approx(156)
    run_fakes(tmp_path, monkeypatch, ["base"], until=3.2)  # 2.6 for pre-training alone
    assert "base: not begun, it would not end in time" in capsys.readouterr().out


def test_a_shape_that_cannot_be_measured_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "python").write_text("#!/bin/sh\necho 'no such shape' >&2\nexit 2\n")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(recipe_trials.sys, "executable", str(tmp_path / "python"))
    arguments = argparse.Namespace(
        text=tmp_path, tasks=tmp_path, work=tmp_path, parallel=1, cpu=False, tokenizer="word:9"
    )
    (tmp_path / "corpus-word-9").mkdir()
    (tmp_path / "corpus-word-9" / "manifest.json").touch()
    workshop = recipe_trials.Workshop(Plan("encoder-20min", 2, 3, {}, (Trial("base"),)), arguments)
    assert workshop.measure_speeds([Trial("base")]) == {}
    assert "base: not measured: no such shape" in capsys.readouterr().out


def test_another_choice_under_a_known_name_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial of more minutes had the steps of fewer, and one of another rate the scores of the first."""
    path = tmp_path / "results.jsonl"
    run_fakes(tmp_path, monkeypatch, ["base", "other"], until=26)

    def find(minutes: float = 2, tokenizer: str | None = None, **settings: object) -> set[str]:
        trials = (Trial("base"), Trial("other", {key.replace("__", "."): v for key, v in settings.items()}, tokenizer))
        return recipe_trials.find_done(Plan("encoder-20min", minutes, 2, TASKS, trials), path)

    assert find() == {"base", "other"} and find(train__lr=1e-5) == find(tokenizer="word:9") == {"base"}
    assert find(minutes=4) == set()
    names = {
        recipe_trials.name_run(Plan(recipe, minutes, 2, TASKS, ()), Trial("base", settings, tokenizer))
        for recipe, minutes, settings, tokenizer in (
            ("encoder-20min", 2, {}, None), ("encoder-20min", 4, {}, None), ("encoder-20min", 2, {"train.lr": 1}, None),
            ("encoder-20min", 2, {}, "word:9"), ("encoder-5min", 2, {}, None),
        )
    }  # fmt: skip
    assert len(names) == 5 and all(name.startswith("base-") for name in names)


def test_the_table_has_what_all_trials_have(tmp_path: Path) -> None:
    """Lines with another number of seeds or other tasks ended it with an error."""
    line = {"steps": 10, "set": {}, "tokenizer": None}
    results = [
        {"trial": "base", "scores": {"a": [50, 52], "b": [70, 70]}, **line},
        {"trial": "later", "scores": {"a": [53], "c": [90]}, **line},
    ]
    rows = format_table(results).splitlines()
    assert rows[0].startswith("trial | a | b | c | mean") and rows[1].startswith(
        "later | 53.0 | – | 90.0 | 53.00 | +3.0"
    )
    assert rows[2].startswith("base | 51.0 | 70.0 | – | 51.00 |")


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
