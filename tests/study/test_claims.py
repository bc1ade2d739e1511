"""Claims whose numbers say nothing about their methods."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from etude.study import planner
from etude.study.claims import explain_untested, judge_claims, leaves_majority
from etude.study.execute import OUTCOME
from etude.study.leaderboard import format_cost, render_leaderboard_html, render_markdown
from etude.study.plan import Plan
from etude.study.references import Progress
from etude.study.runner import Report
from etude.study.settings import Study
from etude.study.study_outcomes import StudyOutcomes
from etude.study.uncertainty import detectable_difference
from etude.tasks.outcomes import LEAST, mean_outcome
from tests.study.tiny_study import tiny

YOUNG = Progress(4.0, 3.0, "bigram", "nats a token")
GROWN = Progress(2.5, 3.0, "bigram", "nats a token")


def test_tasks_on_which_nobody_leaves_the_majority() -> None:
    assert explain_untested("not settled", [False], GROWN, GROWN) == "majority"
    assert explain_untested("fails", [False, False], GROWN, GROWN) == "majority"
    assert explain_untested("not settled", [False, True], GROWN, GROWN) is None, "one of the tasks tells them apart"
    assert explain_untested("not settled", [None], GROWN, None) is None, "no majority to compare with"


def test_models_that_have_hardly_learnt() -> None:
    assert explain_untested("not settled", [True], YOUNG, GROWN) == "young"
    assert explain_untested("holds", [True], GROWN, YOUNG) == "young", "it won against a model that had not begun"
    assert explain_untested("holds", [True], YOUNG, None) is None, "it wins although it is young"
    assert (
        explain_untested("fails", [True], YOUNG, GROWN) == "young"
        and explain_untested("fails", [True], GROWN, YOUNG) is None
    )
    assert explain_untested("not settled", [True], None, None) is None


def test_where_learning_at_all_is_the_question() -> None:
    assert explain_untested("holds", [True], GROWN, YOUNG, trainability=True) is None
    assert explain_untested("not settled", [True], YOUNG, GROWN, trainability=True) is None
    assert explain_untested("not settled", [True], YOUNG, YOUNG, trainability=True) == "young"
    assert explain_untested("holds", [False], GROWN, YOUNG, trainability=True) == "majority"


def test_the_tiny_study_is_not_tested(report: Report, study: Study) -> None:
    """Models of a few steps are above a bigram, and the report says so in both languages."""
    claims = report.results["claims"]
    assert {claim["verdict"] for claim in claims} == {"not tested"}
    assert {claim["untested"] for claim in claims} <= {"majority", "young"}
    progress = report.results["rows"][0]["pretraining"]["progress"]
    assert progress["kind"] == "bigram" and not progress["has_learnt"]
    page = report.page.read_text(encoding="utf-8")
    assert "not tested" in page and ("바이그램" in page or "최빈값을 확실히" in page)
    table = (report.folder / "table.md").read_text(encoding="utf-8")
    assert "not tested: " in table and "| 95 % interval |" in table
    stricter = {**report.results, "rule": {**report.results["rule"], "interval": 0.99}}
    assert "| 99 % interval |" in render_markdown(stricter) and "99 % interval" in render_leaderboard_html(stricter, "")
    outcomes = StudyOutcomes(planner.make_plan(study, report.folder, dry=True), {})
    assert leaves_majority(outcomes, "topic@16") is report.results["columns"][0]["tested"]
    scores = outcomes.scores
    scores["bert", "topic@16"] = scores["bert", "topic@16"] * 0 + 1
    outcomes.examples["bert", "topic@16"] = outcomes.examples["bert", "topic@16"] * 0 + 1
    assert leaves_majority(outcomes, "topic@16") is True


def test_intervals_end_where_scores_do(report: Report, study: Study) -> None:
    """At 0 where none is below; correlations and gains reach below it."""
    outcomes = StudyOutcomes(planner.make_plan(study, report.folder, dry=True), {})
    names = [column.name for column in outcomes.plan.columns]
    assert outcomes.least == dict.fromkeys(names, 0.0)
    for name in names:
        outcomes.scores["bert", name] = outcomes.scores["bert", name] * 0 + 0.001
    assert outcomes.summary("bert", names[0]).low == outcomes.summary("bert", "mean").low == 0.0
    outcomes.least = dict.fromkeys(names, LEAST["matthews"])
    assert outcomes.summary("bert", names[0]).low < 0.0 > outcomes.summary("bert", "mean").low


def test_whoever_leaves_the_majority_shows_that_the_task_can_be_learnt(report: Report, study: Study) -> None:
    """Not contenders alone: a run that came with its weights, a baseline of words, a frozen encoder."""
    outcomes = StudyOutcomes(planner.make_plan(study, report.folder, dry=True), {})
    for name in ("bert", "gpt", "no pre-training", "random frozen", "majority"):
        for table in (outcomes.scores, outcomes.examples):
            table[name, "topic@16"] = table[name, "topic@16"] * 0 + (name == "random frozen")
    assert leaves_majority(outcomes, "topic@16") is True


def test_a_claim_against_the_majority_is_tested_where_nobody_leaves_it(report: Report) -> None:
    """That examples in a prompt add nothing, or do harm, was called not tested: nobody was above a gain of zero."""
    claims = [{"claim": "helps", "better": "bert", "than": than} for than in ("majority", "gpt")]
    study = tiny(**{"seeds.pretrain": 4, "seeds.transfer": 1, "claims": claims})
    outcomes = StudyOutcomes(planner.make_plan(study, report.folder, dry=True), {})
    for table in (outcomes.scores, outcomes.examples, outcomes.progress):
        table.clear()
    rng = np.random.default_rng(0)
    for row, share in (("bert", 0.3), ("gpt", 0.5), ("majority", 0.6)):
        outcomes.scores[row, "topic@16"] = share + rng.normal(0, 0.001, (4, 1))
        outcomes.examples[row, "topic@16"] = (rng.random((4, 4000)) < share).astype(float)
    assert leaves_majority(outcomes, "topic@16") is False
    against, between = judge_claims(outcomes)
    assert against["verdict"] == "fails" and "untested" not in against
    assert between["untested"] == "majority"


def test_settings_that_are_not_done_yet_may_be_the_best(report: Report) -> None:
    """The control is tuned by two lengths, of which one is done: it must not be judged by that one alone."""
    study = tiny(**{"control.tune": {"train.epochs": [2, 3]}})
    plan = planner.make_plan(study, report.folder, dry=True)
    keys = [plan.trials["no pre-training", "topic@16", number, unit] for number in (0, 1) for unit in plan.units]
    assert [plan.store.state(key) for key in keys] == ["done", "done", "absent", "absent"]
    outcomes = StudyOutcomes(plan, {})
    assert not outcomes.has_scores("no pre-training", "topic@16")
    assert len(outcomes.partial["no pre-training", "topic@16"]) == 2
    assert StudyOutcomes(plan, {keys[2]: "memory ran out"}).has_scores("no pre-training", "topic@16"), "it has lost"


def test_the_first_planned_look_that_settles_a_claim_counts(report: Report) -> None:
    """Four seeds of made-up scores: clear at the first two, blurred by the others."""
    study = tiny(**{"rule.looks": [2, 3, 4], "seeds.pretrain": 4, "seeds.transfer": 1})
    outcomes = StudyOutcomes(planner.make_plan(study, report.folder, dry=True), {})
    outcomes.scores.clear()
    outcomes.progress.clear()
    rng = np.random.default_rng(0)
    for row, scores in (("bert", [0.9, 0.9001, 0.2, 0.9]), ("gpt", [0.5, 0.5, 0.5, 0.5])):
        outcomes.scores[row, "topic@16"] = np.array(scores)[:, None]
        outcomes.examples[row, "topic@16"] = (rng.random((4, 4000)) < np.array(scores)[:, None]).astype(float)
    first = judge_claims(outcomes)[0]
    assert first["verdict"] == "holds" and first["pretrainings"] == 2 and len(first["seeds"]) == 2
    assert first["holm"] == pytest.approx(2 * first["p"]), "of two claims, though the other has no scores yet"
    variances = [share * first["error"] ** 2 for share in (first["seed_share"], 1 - first["seed_share"])]
    error = 0.05 * 2 / 4 / 2  # of the look with two of four seeds, of the first of two claims
    assert first["detectable"] == pytest.approx(detectable_difference(*variances, 2, 1 - error))
    study = tiny(**{"seeds.pretrain": 4, "seeds.transfer": 1})
    outcomes.plan.study, outcomes.rule = study, study.rule
    whole = judge_claims(outcomes)[0]
    assert whole["verdict"] == "not settled" and whole["pretrainings"] == 4


def finish_cell(plan: Plan, key: str, scores: list[float], dev: float) -> None:
    """Store a transfer that has ended with these scores of its test examples."""
    outcome = mean_outcome(scores)
    folder = plan.store.work_folder(key)
    folder.mkdir(parents=True, exist_ok=True)
    outcome.save(folder / OUTCOME)
    plan.store.finish(key, {"seconds": 1.0, "how": "mean", "value": float(outcome.score()), "dev": dev})


def test_of_seeds_that_are_done_the_setting_that_is_best_on_dev_is_shown(tmp_path: Path) -> None:
    """Of settings with as many seeds the first was, so that a control was shown at a rate that dev does not prefer."""
    changes = {"seeds.pretrain": 3, "seeds.transfer": 1, "tune": {"train.lr": [1e-3, 1e-4, 1e-5]}}
    plan = planner.make_plan(tiny(**changes), tmp_path, device="cpu", dry=True)
    for number, (dev, seeds) in enumerate([(0.6, 2), (0.7, 2), (0.9, 1)]):
        for unit in sorted(plan.units)[:seeds]:
            finish_cell(plan, plan.trials["bert", "topic@16", number, unit], [number / 4] * 8, dev)
    outcomes = StudyOutcomes(plan, {})
    assert not outcomes.has_scores("bert", "topic@16")
    assert outcomes.partial["bert", "topic@16"] == [0.25, 0.25], "more seeds count more than a better dev score"


def test_a_look_keeps_the_settings_that_it_chose(tmp_path: Path) -> None:
    """Settings are chosen on dev: those that later seeds prefer must not change what an earlier look has settled."""
    changes = {"rule.looks": [2, 4], "seeds.pretrain": 4, "seeds.transfer": 1, "tune": {"train.lr": [1e-3, 1e-4]}}
    plan = planner.make_plan(tiny(**changes), tmp_path, device="cpu", dry=True)
    rng = np.random.default_rng(0)
    for (row, _, number, (seed, _)), key in plan.trials.items():
        if row not in ("bert", "gpt"):
            continue
        dev = 0.8 if number == (seed >= 2) else 0.5 + 0.1 * number  # the first is the best of two seeds, not of four
        share = 0.9 if (row, number) == ("bert", 0) else 0.5
        finish_cell(plan, key, (rng.random(2000) < share).astype(float).tolist(), dev)
    outcomes = StudyOutcomes(plan, {})
    assert outcomes.chosen["bert", "topic@16"] == 1, "by all four"
    first = judge_claims(outcomes)[0]
    assert first["verdict"] == "holds" and first["pretrainings"] == 2 and first["mean"] > 0.3


def test_what_has_not_run_yet_did_not_cost_nothing() -> None:
    assert format_cost({"pretraining": {"flops": None, "tokens": None, "seconds": None}}) == ("", "", "")
    assert format_cost({}) == ("0", "0", "0")
