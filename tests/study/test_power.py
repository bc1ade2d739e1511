"""What a study could settle, told before it runs."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from etude.study import plan as plans
from etude.study import planner
from etude.study.execute import load_outcome
from etude.study.power import claim_level, describe_power, measure_spread, plan_power
from etude.study.runner import Report
from etude.study.settings import Study
from etude.study.uncertainty import detectable_difference, example_variance, pseudo_values
from tests.study.tiny_study import tiny


def test_a_guess_is_said_to_be_one(tmp_path: Path) -> None:
    plan = planner.make_plan(tiny(**{"seeds.pretrain": 3, "rule.deviation": 0.03}), tmp_path, dry=True)
    mean, topic = plan_power(plan)
    assert mean.spread.deviation == 0.03 and not mean.spread.rows and not mean.is_measured
    assert list(mean.by_seeds) == [3, 5, 10] and mean.by_seeds[3] > mean.by_seeds[5] > mean.by_seeds[10] > 0.03
    assert topic.by_seeds == mean.by_seeds, "there is one task"
    words = "\n".join(describe_power(plan))
    assert "3.0 points (a guess: rule.deviation)" in words and f"{100 * mean.by_seeds[3]:.1f} with 3 seeds" in words
    assert claim_level(plan) == pytest.approx(1 - 0.05 / 2), "two claims"
    lower = planner.make_plan(tiny(**{"seeds.pretrain": 3, "rule.deviation": 0.01}), tmp_path, dry=True)
    assert plan_power(lower)[0].by_seeds[3] < mean.by_seeds[3]


def test_a_planned_look_has_its_own_part_of_the_error(tmp_path: Path) -> None:
    """By the seeds that are new to it: two at the first look, one at the second."""
    plan = planner.make_plan(tiny(**{"seeds.pretrain": 2, "rule.looks": [2, 3]}), tmp_path, dry=True)
    assert [claim_level(plan, seeds) for seeds in (2, 3)] == pytest.approx([1 - 0.05 * 2 / 3 / 2, 1 - 0.05 / 3 / 2])
    power = plan_power(plan)[0]
    assert list(power.by_seeds) == [2, 3], "no look is planned at five or ten"
    variances = 2 * power.spread.deviation**2 / 3, power.examples
    assert power.by_seeds[3] == pytest.approx(detectable_difference(*variances, 3, claim_level(plan, 3)))


def test_one_seed_settles_nothing(report: Report, study: Study) -> None:
    plan = planner.make_plan(study, report.folder, dry=True)
    words = describe_power(plan)
    assert words[0].startswith("One pre-training seed settles no claim")
    assert math.isinf(plan_power(plan)[0].by_seeds[1]) and plan_power(plan)[0].is_measured
    assert all(claim["detectable"] is None for claim in report.results["claims"])
    assert not {"holds", "fails"} & {claim["verdict"] for claim in report.results["claims"]}
    page = report.page.read_text(encoding="utf-8")
    assert "There is only one pre-training seed" in page and "사전 학습 시드가 하나뿐입니다" in page


def test_cells_that_are_done_tell_the_spread(report: Report, study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """Units of the tiny study as if they were of different pre-trainings."""
    plan = planner.make_plan(study, report.folder, dry=True)
    for (row, column, number, (_, second)), key in list(plan.trials.items()):
        plan.trials[row, column, number, (second, 0)] = key
    monkeypatch.setattr(plans.Plan, "units", [(0, 0), (1, 0)])
    spread = measure_spread(plan, "topic@16")
    rows = [row for row in report.results["rows"] if row["kind"] in ("contender", "control")]
    expected = np.mean([np.var(row["scores"]["topic@16"]["seeds"], ddof=1) for row in rows])
    assert spread.rows == 3 and spread.deviation == pytest.approx(math.sqrt(expected))
    values = [
        np.stack([pseudo_values(load_outcome(plan.store, plan.trials[row["name"], "topic@16", 0, unit]))
                  for unit in plan.units])
        for row in rows
    ]  # fmt: skip
    pairs = [left - right for left, right in itertools.combinations(values, 2)]
    examples = plan_power(plan)[1].examples
    assert examples == pytest.approx(np.mean([example_variance(pair) for pair in pairs]))
    assert examples < np.mean([example_variance(pair[:1]) for pair in pairs]), "a seed's own chance counted twice"
