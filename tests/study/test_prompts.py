"""Tasks that are asked as prompts: nothing is learnt, and a gain is counted example by example."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etude
from etude.errors import UserError
from etude.recipes.document import parse
from etude.study import planner
from etude.study.cell_archive import export_cells, import_cells
from etude.study.cells import CellStore
from etude.study.claims import judge_claims
from etude.study.execute import load_outcome
from etude.study.leaderboard import describe_verdict
from etude.study.runner import Report, run
from etude.study.settings import Study
from etude.study.study_outcomes import StudyOutcomes

PROMPTS = """
name: prompts
text: {world: 0.05, valid: 0.1}
budget: {tokens: 4096}
epochs: 50
contenders:
  gpt: {recipe: gpt2-toy}
set:
  {tokenizer: "bytebpe:400", model.layers: 1, model.width: 16, model.heads: 2, model.context: 256,
   objective.length: 256,
   train.batch_tokens: 512}
tasks:
  few:
    kind: classify
    world: sentiment
    labels: 24
    dev_size: 8
    test_size: 24
    prompt: {template: "{text} In the end everybody was", answers: {positive: happy, negative: sad}, shots: 2}
  gain:
    kind: classify
    world: sentiment
    labels: 24
    dev_size: 8
    test_size: 24
    prompt: {template: "{text} In the end everybody was", answers: {positive: happy, negative: sad}, shots: 2, over: 0}
seeds: {pretrain: 2}
curve: 2
claims:
  - {claim: Examples help, better: gpt, than: majority, on: gain}
"""


def load(**changes: Any) -> Study:
    return Study.from_document(parse(PROMPTS, "prompts.yaml"), changes=changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("prompts")


@pytest.fixture(scope="module")
def report(folder: Path) -> Report:
    return run(load(), folder, device="cpu")


def _cells(report: Report, row: str, column: str) -> list[dict[str, Any]]:
    cells = report.results["cells"]
    return [cell for cell in cells if cell["place"]["row"] == row and cell["place"].get("column") == column]


def test_a_run_answers_as_it_is(report: Report, folder: Path) -> None:
    assert report.failed == []
    few = _cells(report, "gpt", "few@24")
    assert [cell["kind"] for cell in few] == ["prompt", "prompt"] and all(cell["step"] == 0 for cell in few)
    store = CellStore(folder / "cells")
    key = few[0]["key"]
    command = few[0]["commands"][0]
    assert command.startswith("etude prompt cells/") and f"cells/{key}/prompt.yaml" in command
    words = command.split()
    train, test = (folder / words[words.index(option) + 1] for option in ("--train", "--test"))
    base = store.folder / words[2].split("/")[1] / "run"
    again = etude.prompt(base, store.result_folder(key) / "prompt.yaml", shots=(2,), train=train, test=test, seed=0)
    assert again.results[0].scores["accuracy"].value == pytest.approx(few[0]["value"])


def test_a_gain_is_what_the_shots_add_to_each_example(report: Report, folder: Path) -> None:
    gain, few = (_cells(report, "gpt", column)[0] for column in ("gain@24", "few@24"))
    by_shots = gain["by_shots"]
    assert by_shots["2"] == pytest.approx(few["value"])  # the same examples are shown
    assert gain["value"] == pytest.approx(by_shots["2"] - by_shots["0"])
    outcome = load_outcome(CellStore(folder / "cells"), gain["key"])
    assert set(np.unique(outcome.parts[:, 0])) <= {-1.0, 0.0, 1.0} and len(outcome.parts) == 24
    majority = _cells(report, "majority", "gain@24")[0]
    assert majority["value"] == 0.0 and _cells(report, "majority", "few@24")[0]["value"] > 0
    column = next(column for column in report.results["columns"] if column["task"] == "gain")
    assert column["score"] == "accuracy gained"


def test_a_gain_that_nobody_has_is_named_as_that(report: Report, folder: Path) -> None:
    """Answers far above the most frequent one, which examples made worse, were called no better than that one."""
    sides = {"better": "gpt", "than": "no pre-training"}
    claims = [{"claim": "grows", "on": "gain", **sides}, {"claim": "on all", "on": "mean", **sides}]
    plan = planner.make_plan(load(claims=claims), folder, device="cpu")
    outcomes = StudyOutcomes(plan, {})
    for key in outcomes.scores:
        outcomes.scores[key] = outcomes.scores[key] * 0 - (key[0] == "gpt") * 0.2
        outcomes.examples[key] = outcomes.examples[key] * 0 - (key[0] == "gpt") * 0.2
    outcomes.progress.clear()
    assert [claim.get("untested") for claim in judge_claims(outcomes)] == ["gain", "majority"]
    assert "clearly gains from examples" in describe_verdict({"verdict": "not tested", "untested": "gain"})


def test_models_without_pre_training_are_asked_too(report: Report) -> None:
    control = next(row for row in report.results["rows"] if row["name"] == "no pre-training")
    assert set(control["scores"]) == {"few@24", "gain@24"}


def test_other_shots_are_other_cells(report: Report, folder: Path) -> None:
    before = set(planner.make_plan(load(), folder, device="cpu").cells)
    assert {cell["key"] for cell in report.results["cells"]} == before
    changed = planner.make_plan(load(**{"tasks.few.prompt.shots": 1}), folder, device="cpu")
    new = {cell.position["column"] for key, cell in changed.cells.items() if key not in before}
    assert new == {"few@24"}


def test_answers_of_prompts_travel(report: Report, folder: Path, tmp_path: Path) -> None:
    export_cells(CellStore(folder / "cells"), tmp_path / "cells.zip", folder)
    other = CellStore(tmp_path / "cells")
    import_cells(other, tmp_path / "cells.zip", tmp_path)
    key = _cells(report, "gpt", "gain@24")[0]["key"]
    assert other.result(key)["by_shots"] == _cells(report, "gpt", "gain@24")[0]["by_shots"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"contenders.gpt": {"recipe": "bert-toy"}, "set": {}}, "only a causal model goes on with a text"),
        ({"tasks.few.prompt.template": "{txt}"}, r"has no field \{txt\}"),
        ({"tasks.gain.prompt.over": 2}, "there is no gain to measure"),
        ({"tasks.few.kind": "tag"}, "cannot be put in words"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_its_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"(?s)(prompts.yaml|the change).*{message}"):
        load(**changes)
