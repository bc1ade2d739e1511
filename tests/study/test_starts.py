"""Starts: contenders that come with their weights are transferred like others; their earlier compute may be unknown."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from etude.errors import UserError
from etude.recipes.document import parse
from etude.runs.checksums import remove_checksums
from etude.study.leaderboard import render_markdown
from etude.study.plan_cells import list_cells
from etude.study.planner import make_plan
from etude.study.runner import run
from etude.study.settings import Study
from tests.study.tiny_study import TINY


def study_with(contender: dict[str, Any], **changes: Any) -> Study:
    quick = {"contenders.given": contender, "seeds.transfer": 1, "claims": [
        {"claim": "what is given beats BERT", "better": "given", "than": "bert"}]}  # fmt: skip
    document = parse(TINY, "tiny.yaml")
    document.values["contenders"].pop("gpt")
    return Study.from_document(document, changes={**quick, **changes})


@pytest.fixture
def start(base: Callable[[str], Path], tmp_path: Path) -> Path:
    shutil.copytree(base("bert"), tmp_path / "start")
    return tmp_path / "start"


def test_a_run_of_unknown_cost_and_one_with_a_log(start: Path, tmp_path: Path) -> None:
    report = run(study_with({"run": str(start)}), tmp_path / "study")
    row = next(row for row in report.results["rows"] if row["name"] == "given")
    assert row["kind"] == "start" and row["mean"] is not None and row["start"]["earlier"] is None
    assert report.results["claims"][0]["verdict"]
    line = next(line for line in render_markdown(report.results).splitlines() if line.startswith("| given"))
    assert "unknown" in line
    page = (tmp_path / "study" / "report.html").read_text(encoding="utf-8")
    assert "compute unknown, published" in page
    log = {"step": 3, "tokens": 99, "flops": 1234567, "seconds": 1.5, "loss": 2.0, "split": "train"}
    (start / "metrics.jsonl").write_text(json.dumps(log) + "\n", encoding="utf-8")
    plan = make_plan(study_with({"run": str(start)}), tmp_path / "study", dry=True)
    (copy,) = (key for (name, _), key in plan.bases.items() if name == "given")
    shutil.rmtree(tmp_path / "study" / "cells" / copy)  # it knows its log; all that was learnt stays
    again = run(study_with({"run": str(start)}), tmp_path / "study")
    row = next(row for row in again.results["rows"] if row["name"] == "given")
    assert row["start"]["earlier"] == {"tokens": 99, "flops": 1234567, "seconds": 1.5}


def test_other_weights_are_another_key(start: Path, tmp_path: Path) -> None:
    keys = []
    remove_checksums(start)
    for number in range(2):
        plan = make_plan(study_with({"run": str(start)}), tmp_path / str(number), dry=True)
        keys.append({name: key for (name, _), key in plan.bases.items()})
        weights = load_file(start / "model.safetensors")
        first = sorted(name for name, value in weights.items() if value.dtype == torch.float32)[0]
        weights[first] = weights[first] + 1.0
        save_file(weights, start / "model.safetensors", metadata={"format": "pt"})
    assert keys[0]["given"] != keys[1]["given"] and keys[0]["bert"] == keys[1]["bert"]


def test_transfers_of_another_torch_are_other_cells(start: Path, tmp_path: Path) -> None:
    """The copy of a run is the same under every version, and what is learnt from it is not."""
    plan = make_plan(study_with({"run": str(start)}), tmp_path / "study", dry=True)
    before = {cell.title: cell.key for cell in list_cells(plan)}
    plan.machine.torch_version = "0.0.0"
    after = {cell.title: cell.key for cell in list_cells(plan)}
    same = {title for title, key in before.items() if after[title] == key}
    assert same == {"weights of given", *(title for title in before if title.startswith("majority"))}


@pytest.mark.parametrize(
    ("contender", "message"),
    [
        ({"run": "x", "recipe": "bert-toy"}, "exactly one of recipe"),
        ({}, "exactly one of recipe"),
        ({"run": "x", "set": {"train.lr": 1e-3}}, "trained already"),
    ],
)
def test_bad_contenders(contender: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        study_with(contender)


def test_folders_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no model"):
        make_plan(study_with({"run": str(tmp_path)}), tmp_path / "study", dry=True)
    with pytest.raises(UserError, match="must have a recipe"):
        Study.from_document(parse(TINY.replace("recipe: bert-toy, set: {model.layers: 1, model.width: 16, "
            "model.heads: 2, train.batch_tokens: 256}", "run: x"), "tiny.yaml"),
            changes={"contenders.gpt": {"run": "y"}})  # fmt: skip
