"""A pre-training that ends above its lowest held-out loss, and the lower rate at which its contender trains again."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from etude.study import planner, tuning
from etude.study.plan import Plan
from etude.study.report.page import render_page
from etude.study.runner import Report, run
from etude.study.settings import Study
from etude.study.stability import Rise, find_rise
from etude.study.tuning import describe_tuning, needs_lower_rate
from tests.study.test_tuning import row_of, store_loss, store_result
from tests.study.tiny_study import tiny

RATE = "train.lr"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Path]:
    """A study whose trials learnt the faster the higher their rate, by losses that are made up."""
    study = tiny(tune_pretraining={"lr": [0.1, 0.5, 1], "share": 0.2, "by": "loss"}, **{"seeds.transfer": 1})
    folder = Path(tmp_path_factory.mktemp("trained")) / "study"
    run(study, folder)
    plan = planner.make_plan(study, folder)
    for trial in plan.tunings["bert"].trials:
        store_loss(plan, trial.bases[0], 0.01 / trial.value)
    run(study, folder)
    return study, folder


@pytest.mark.parametrize(("losses", "rise"), [
    ([3.85, 3.05, 2.79, 2.68, 2.62, 2.558, 2.573, 2.618], Rise(2.558, 2.618)),  # two towers at 1e-3, seed 0
    ([3.78, 3.12, 3.3, 3.23, 3.22, 3.17, 3.18, 3.16], Rise(3.12, 3.16)),
    ([3.0, 2.5, 3.6, 2.4], None),  # a spike from which it recovered
    ([4.428, 4.418, 4.42], None),
    ([3.0], None), ([], None),
])  # fmt: skip
def test_where_a_run_ends_decides(losses: Sequence[float], rise: Rise | None) -> None:
    assert find_rise({"curve": [{"loss": loss} for loss in losses]}) == rise


def test_a_discriminator_may_have_a_harder_task_at_the_end() -> None:
    curve = [{"loss": 16.6, "discriminator": 0.3}, {"loss": 27.1, "discriminator": 0.5}]
    assert find_rise({"curve": curve}) is None and find_rise({}) is None


def let_rise(plan: Plan, key: str) -> None:
    result = plan.store.result(key)
    low, *others = result["curve"]
    curve = [{**low, "loss": 2.0}, *({**point, "loss": 2.2} for point in (others or [low]))]
    store_result(plan, key, {**result, "curve": curve})


def test_the_next_lower_rate_is_taken(trained: tuple[Study, Path], tmp_path: Path) -> None:
    study, finished = trained
    folder = tmp_path / "study"
    shutil.copytree(finished, folder)
    plan = planner.make_plan(study, folder)
    highest = plan.tunings["bert"].chosen[RATE]
    assert plan.tunings["bert"].watched == (plan.bases["bert", 0],) and not has_given_up(plan)
    let_rise(plan, given_up := plan.bases["bert", 0])
    assert needs_lower_rate(plan, plan.tunings["bert"]) and not needs_lower_rate(plan, plan.tunings["gpt"])
    before = describe_tuning(plan, plan.tunings["bert"])

    plan = planner.make_plan(study, folder)
    lower = plan.tunings["bert"]
    assert lower.chosen[RATE] == pytest.approx(highest / 2) and not lower.at_end
    assert [(runs.rate, runs.keys) for runs in lower.given_up] == [(highest, (given_up,))]
    assert lower.watched == (plan.bases["bert", 0],) != (given_up,), "the lower rate may be too high as well"
    assert given_up in plan.cells, "archives and the report have it"
    described = describe_tuning(plan, lower)
    assert described["lowest_loss"] is None, "the rate of the lowest loss in trials is the one given up"
    assert described["flops"] == pytest.approx(before["flops"] + plan.store.result(given_up)["flops"])

    report = run(study, folder)
    assert not report.failed and len(row_of(report, "bert")["tuning"]["given_up"]) == 1
    page = render_page(report.results)
    assert f"{highest:g} was given up" in page and "1 of 1 runs" in page and "(2.00 → 2.20)" in page
    assert row_of(report, "bert")["lr"] == pytest.approx(highest / 2) and row_of(report, "bert")["scores"]


def test_where_every_rate_rises_the_chosen_one_stays(trained: tuple[Study, Path], tmp_path: Path) -> None:
    """As with a text that is too small for its epochs: lower rates would not help."""
    study, finished = trained
    folder = tmp_path / "study"
    shutil.copytree(finished, folder)
    plan = planner.make_plan(study, folder)
    highest, trials = plan.tunings["bert"].chosen[RATE], len(plan.tunings["bert"].trials)
    for _ in range(trials):
        let_rise(plan, plan.bases["bert", 0])
        report = run(study, folder)
        plan = planner.make_plan(study, folder)
    final = plan.tunings["bert"]
    assert final.chosen[RATE] == highest and final.rises_always and not final.given_up and not final.watched
    assert not plan.pending_cells() and "at lower rates too" in render_page(report.results)


def test_a_study_under_way_goes_on_at_the_lower_rate(
    trained: tuple[Study, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No transfer of the run that was given up is begun."""
    study, finished = trained
    folder = tmp_path / "study"
    shutil.copytree(finished, folder)
    plan = planner.make_plan(study, folder)
    given_up = plan.cells[plan.bases["bert", 0]]
    transfers = [key for key, cell in plan.cells.items() if cell.depends_on == given_up.key]
    for key in (given_up.key, *transfers):
        plan.store.forget(key)

    def find_made_up_rise(result: dict[str, Any]) -> Rise | None:
        return Rise(2.0, 2.2) if result["settings_key"] == given_up.settings_key else None

    monkeypatch.setattr(tuning, "find_rise", find_made_up_rise)
    lines: list[str] = []
    report: Report = run(study, folder, on_progress=lines.append)
    assert not report.failed and row_of(report, "bert")["scores"]
    counts = [re.match(r"\[(\d+)/(\d+)\] ", line) for line in lines]
    ended = [(int(count[1]), int(count[2])) for count in counts if count]
    assert [number for number, _ in ended] == list(range(1, len(ended) + 1)), "cells that were there do not count"
    assert ended[-1][0] == ended[-1][1] and len(ended) > len(transfers)
    assert [each["runs"] for each in row_of(report, "bert")["tuning"]["given_up"]] == [1]
    assert plan.store.state(given_up.key) == "done"
    assert transfers and all(plan.store.state(key) != "done" for key in transfers)


def has_given_up(plan: Plan) -> bool:
    return any(each.given_up for each in plan.tunings.values())
