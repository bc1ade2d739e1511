"""`etude recipes` and `etude tasks` as a user types them."""

from __future__ import annotations

import sys

import pytest
from typer.testing import CliRunner

from etude.cli import main as cli
from etude.recipes.schema import Recipe


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["etude", *words])
    with pytest.raises(SystemExit) as done:
        cli.main()
    return int(done.value.code or 0)


def test_one_recipe_prints_resolved_and_reads_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "recipes", "gpt2-toy", "model.layers=3", "train.minutes=5") == 0
    recipe = Recipe.parse(capsys.readouterr().out)
    assert recipe == Recipe.load("gpt2-toy", {"model.layers": 3, "train.minutes": 5}).resolve()
    assert recipe.train.tokens is None and recipe.model.feedforward == 4 * recipe.model.width


def test_recipes_are_listed_with_their_cost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("etude.recipes.document.shipped_recipes", lambda: ["gpt2", "bert-base"])
    assert run(monkeypatch, "recipes") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["bert-base", "BERT", "109M", "518M"] in lines
    assert ["gpt2", "GPT-2", "124M", "854M"] in lines


def test_tasks_are_listed_and_one_is_explained() -> None:
    listed = CliRunner().invoke(cli.app, ["tasks"]).output
    assert "classify " in listed and "column text:" in listed and "a suite with one score: CoLA" in listed
    assert "task.dropout" not in listed
    assert "\nentity_typing the types" in listed and "\nclassify      one label" in listed, "one column for all"
    explained = CliRunner().invoke(cli.app, ["tasks", "classify"]).output
    assert "\ntask.dropout=" in explained and "\ntransfer.frozen=false" in explained and "suite" not in explained
    assert explained.rstrip().endswith("train.lr, train.epochs, train.seed …")
    suite = CliRunner().invoke(cli.app, ["tasks", "glue"]).output
    assert suite.startswith("glue ") and "classify " not in suite
