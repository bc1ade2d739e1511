"""Claims whose numbers say nothing about their methods."""

from __future__ import annotations

import numpy as np

from etude.study import planner
from etude.study.claims import explain_untested, judge_claims, leaves_majority
from etude.study.references import Progress
from etude.study.runner import Report
from etude.study.settings import Study
from etude.study.study_outcomes import StudyOutcomes
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


def test_the_tiny_study_is_not_tested(report: Report, study: Study) -> None:
    """Models of a few steps are above a bigram, and the report says so in both languages."""
    claims = report.results["claims"]
    assert {claim["verdict"] for claim in claims} == {"not tested"}
    assert {claim["untested"] for claim in claims} <= {"majority", "young"}
    progress = report.results["rows"][0]["pretraining"]["progress"]
    assert progress["kind"] == "bigram" and not progress["has_learnt"]
    page = report.page.read_text(encoding="utf-8")
    assert "not tested" in page and ("바이그램" in page or "최빈값을 확실히" in page)
    assert "not tested: " in (report.folder / "table.md").read_text(encoding="utf-8")
    outcomes = StudyOutcomes(planner.make_plan(study, report.folder, dry=True), {})
    assert leaves_majority(outcomes, "topic@16") is report.results["columns"][0]["tested"]
    scores = outcomes.scores
    scores["bert", "topic@16"] = scores["bert", "topic@16"] * 0 + 1
    outcomes.examples["bert", "topic@16"] = outcomes.examples["bert", "topic@16"] * 0 + 1
    assert leaves_majority(outcomes, "topic@16") is True


def test_the_first_planned_look_that_settles_a_claim_counts(report: Report) -> None:
    """Four seeds of made-up scores: clear at the first two, blurred by the others."""
    study = tiny(**{"rule.looks": [2, 4], "seeds.pretrain": 4, "seeds.transfer": 1})
    outcomes = StudyOutcomes(planner.make_plan(study, report.folder, dry=True), {})
    outcomes.scores.clear()
    outcomes.progress.clear()
    rng = np.random.default_rng(0)
    for row, scores in (("bert", [0.9, 0.9001, 0.2, 0.9]), ("gpt", [0.5, 0.5, 0.5, 0.5])):
        outcomes.scores[row, "topic@16"] = np.array(scores)[:, None]
        outcomes.examples[row, "topic@16"] = (rng.random((4, 4000)) < np.array(scores)[:, None]).astype(float)
    first = judge_claims(outcomes)[0]
    assert first["verdict"] == "holds" and first["pretrainings"] == 2 and len(first["seeds"]) == 2
    study = tiny(**{"seeds.pretrain": 4, "seeds.transfer": 1})
    outcomes.plan.study, outcomes.rule = study, study.rule
    whole = judge_claims(outcomes)[0]
    assert whole["verdict"] == "not settled" and whole["pretrainings"] == 4
