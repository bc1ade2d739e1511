"""Baselines without pre-training at their strongest: tuned for themselves, and linear models of plain text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from etude.errors import UserError
from etude.study import planner
from etude.study.plan_cells import LENGTHS
from etude.study.runner import run
from tests.study.tiny_study import tiny

STRONG = {"control": {"tune": {"train.lr": [1e-3, 1e-2], "train.epochs": [1, 2]}, "baselines": ["tfidf", "ngrams"]}}


def test_only_the_control_is_tuned_by_its_own_list(tmp_path: Path) -> None:
    plan = planner.make_plan(tiny(**STRONG), tmp_path, device="cpu", dry=True)
    counts = {row.name: len(plan.tune_grid(row)) for row in plan.rows}
    assert counts == {
        "bert": 1, "gpt": 1, "no pre-training": 4, "tfidf": 1, "ngrams": 1, "random frozen": 1, "majority": 1,
    }  # fmt: skip
    keys = [plan.trials["no pre-training", "topic@16", number, (0, 0)] for number in range(4)]
    settings = [plan.cells[key].arguments["settings"] for key in keys]
    assert [(each["train.lr"], each["train.epochs"]) for each in settings] == [
        (1e-3, 1), (1e-3, 2), (1e-2, 1), (1e-2, 2),
    ]  # fmt: skip


def test_a_value_that_was_the_only_one_keeps_its_cell(tmp_path: Path) -> None:
    before = planner.make_plan(tiny(**{"transfer.train.lr": 1e-3}), tmp_path, device="cpu", dry=True)
    tuned = {"transfer.train.lr": 1e-3, "control.tune": {"train.lr": [1e-3, 1e-2]}}
    after = planner.make_plan(tiny(**tuned), tmp_path, device="cpu", dry=True)
    assert set(before.cells) <= set(after.cells)


@pytest.mark.parametrize(
    ("changes", "length"),
    [
        ({"control.epochs": 3}, {"train.epochs": 3}),  # 6 steps of 8 for 16 labels, a contender has 2
        ({"control.epochs": None}, {"train.epochs": 1}),
        ({"transfer": {"train.epochs": 5}}, {"train.epochs": 5}),
        ({"transfer": {"train.steps": 4, "train.batch_examples": 8}}, {"train.epochs": 2}),
        ({"transfer": {"train.steps": 5, "train.batch_examples": 8}}, {"train.steps": 5}),
        ({"transfer": {"train.steps": 5}, "control.set": {"train.batch_examples": 4}}, {"train.epochs": 2}),
        ({"transfer": {"train.tokens": 100_000}}, {"train.epochs": 2}),
        ({"transfer": {}, "tune": {"train.epochs": [1, 4]}}, {"train.epochs": 4}),
        ({"transfer": {"transfer.frozen": True}}, {"train.epochs": 20}),
        ({"transfer": {"transfer.frozen": True}, "control.epochs": None}, {"train.epochs": 20}),
        ({"transfer": {}, "control.epochs": None}, {}),
        ({"transfer": {"train.steps": 9}, "control.set": {"train.steps": 1}}, {"train.steps": 1}),
    ],
)
def test_a_control_trains_at_least_as_long_as_its_contender(
    changes: dict[str, Any], length: dict[str, int], tmp_path: Path
) -> None:
    """With 100 labels 60 epochs were 188 steps, where the contenders had 200."""
    plan = planner.make_plan(tiny(**changes), tmp_path, device="cpu", dry=True)
    row = next(row for row in plan.rows if row.kind == "control")
    last = len(plan.tune_grid(row)) - 1
    settings = plan.cells[plan.trials[row.name, "topic@16", last, (0, 0)]].arguments["settings"]
    assert {name: value for name, value in settings.items() if name in LENGTHS} == length
    assert "transfer.frozen" not in settings


def test_the_best_on_dev_is_reported_and_linear_models_have_rows(tmp_path: Path) -> None:
    report = run(tiny(**STRONG, **{"seeds.transfer": 1, "claims": [
        {"claim": "GPT beats a bag of words", "better": "gpt", "than": "tfidf"}]}), tmp_path, device="cpu")  # fmt: skip
    assert report.failed == []
    rows = {row["name"]: row for row in report.results["rows"]}
    cells = [cell for cell in report.results["cells"] if cell["place"]["row"] == "no pre-training"]
    scored = [cell for cell in cells if cell["kind"] == "transfer"]
    best = max(cell["dev"] for cell in scored)
    chosen = next(cell for cell in scored if cell["dev"] == best)
    assert rows["no pre-training"]["tuned"]["topic@16"] == chosen["place"]["tuned"]
    assert rows["no pre-training"]["mean"]["mean"] == pytest.approx(chosen["value"])
    assert rows["tfidf"]["kind"] == "baseline" and rows["tfidf"]["mean"]["mean"] > rows["majority"]["mean"]["mean"]
    assert report.results["claims"][0]["than"] == "tfidf" and "tf-idf" in report.page.read_text(encoding="utf-8")


def test_a_task_without_such_a_baseline_is_refused() -> None:
    with pytest.raises(UserError, match="there is no baseline 'ngrams' for words"):
        tiny(
            **{
                "control.baselines": ["ngrams"],
                "claims": [],
                "tasks": {"words": {"kind": "tag", "world": "tags", "labels": 8, "columns": {"tags": "upos"}}},
            }
        )


def test_a_misspelt_setting_of_the_control_is_refused() -> None:
    with pytest.raises(UserError, match="epoch"):
        tiny(**{"control.tune": {"train.epoch": [1, 2]}})
