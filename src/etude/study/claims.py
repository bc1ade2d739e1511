"""Verdicts on a study's claims, and every contender's difference from no pre-training.

A claim whose numbers say nothing about its methods is not tested: nobody leaves the majority on its tasks, or a
language model has not passed the loss of a bigram.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from etude.study.claim_scope import largest_budget_rows
from etude.study.power import claim_level
from etude.study.references import Progress
from etude.study.sections import MAJORITY, MEAN
from etude.study.statistics import Difference, Verdict, decide_verdict, holm_adjust
from etude.study.study_outcomes import StudyOutcomes
from etude.study.uncertainty import detectable_difference


@dataclass(frozen=True)
class Judgement:
    difference: Difference
    holm: float  # p, corrected over all claims of the study
    verdict: Verdict


def judge_claims(outcomes: StudyOutcomes) -> list[dict[str, Any]]:
    """Test each claim; p-values are corrected over all claims of the study.

    Where several looks are planned, a claim has the verdict of the first that settles it.
    """
    study, rows = outcomes.plan.study, largest_budget_rows(outcomes.plan)
    columns = {column.name: leaves_majority(outcomes, column.name) for column in outcomes.plan.columns}
    planned = [look for look in study.rule.looks if look <= study.seeds.pretrain] or [study.seeds.pretrain]
    looks = [_judge_at(outcomes, look) for look in planned]
    claims = []
    for number, claim in enumerate(study.claims):
        values: dict[str, Any] = {**claim.model_dump(mode="json"), "verdict": "not tested", "untested": "missing"}
        judged = [judgement for look in looks if (judgement := look[number]) is not None]
        if judged:
            final = next((one for one in judged if one.verdict != "not settled"), judged[-1])
            values |= {
                **final.difference.json(),
                "holm": final.holm,
                "detectable": _detectable(outcomes, final.difference),
                "verdict": final.verdict,
            }
            del values["untested"]
            # whether anybody leaves the majority is the question of a claim against it
            is_about_majority = MAJORITY in (claim.better, claim.than)
            on_columns = [] if is_about_majority else [columns[each.name] for each in outcomes.columns_of(claim.on)]
            sides = [outcomes.progress.get(rows.get(name, name)) for name in (claim.better, claim.than)]
            reason = explain_untested(final.verdict, on_columns, *sides, trainability=claim.trainability)
            if reason is not None:
                is_gain = reason == "majority" and all(map(outcomes.measures_gain, outcomes.columns_of(claim.on)))
                values |= {"verdict": "not tested", "untested": "gain" if is_gain else reason}
        claims.append(values)
    return claims


def _judge_at(outcomes: StudyOutcomes, look: int) -> list[Judgement | None]:
    """Judge every claim on the first `look` pre-training seeds; None where a side has no scores."""
    study, rows = outcomes.plan.study, largest_budget_rows(outcomes.plan)
    earlier = outcomes.at_look(look)
    differences: list[Difference | None] = []
    for claim in study.claims:
        left, right = rows.get(claim.better, claim.better), rows.get(claim.than, claim.than)
        has_both = all(each.has_scores(row, claim.on) for each in (outcomes, earlier) for row in (left, right))
        differences.append(earlier.difference(left, right, claim.on, claim.margin, look) if has_both else None)
    # a claim whose cells are not done counts as undecided: the family is the one that was registered
    corrected = holm_adjust([1.0 if difference is None else difference.p for difference in differences])
    judged: list[Judgement | None] = []
    for claim, difference, holm in zip(study.claims, differences, corrected, strict=True):
        if difference is None:
            judged.append(None)
            continue
        p = holm if study.rule.correction == "holm" else difference.p
        judged.append(Judgement(difference, holm, decide_verdict(difference, p, study.rule, claim.margin)))
    return judged


def explain_untested(
    verdict: Verdict,
    columns: Sequence[bool | None],
    better: Progress | None,
    than: Progress | None,
    *,
    trainability: bool = False,
) -> Literal["majority", "young"] | None:
    """Explain why a claim's numbers say nothing about its methods; None where they do.

    No model leaves the majority on any of its tasks, or a language model has not passed its reference. A young model
    that wins all the same has won; one that loses, or is level, was not tested. With `trainability`, whether a side
    learns at all is the question: it is enough that the other one did.
    """
    if columns and all(column is False for column in columns):
        return "majority"
    is_young = {
        "better": better is not None and not better.has_learnt,
        "than": than is not None and not than.has_learnt,
    }
    if trainability:
        return "young" if all(is_young.values()) else None
    if verdict == "holds":
        return "young" if is_young["than"] else None
    if verdict == "fails":
        return "young" if is_young["better"] else None
    return "young" if any(is_young.values()) else None


def _detectable(outcomes: StudyOutcomes, difference: Difference) -> float | None:
    """Compute the smallest difference that would have been settled with 80 % power, given the spread that there was."""
    variance, seeds = difference.error**2, difference.pretrainings
    share = difference.seed_share
    if seeds < 2 or outcomes.rule.over == "examples":
        return None
    return detectable_difference(share * variance, (1 - share) * variance, seeds, claim_level(outcomes.plan, seeds))


def compare_with_control(outcomes: StudyOutcomes) -> list[dict[str, Any]]:
    """Compare every contender with no pre-training on every column, p-values corrected together."""
    plan = outcomes.plan
    controls = {row.draft.entry.contender: row.name for row in plan.rows if row.kind == "control" and row.draft}
    default = next((row.name for row in plan.rows if row.kind == "control"), None)
    differences = []
    for row in plan.rows:
        if row.kind != "contender" or default is None or row.draft is None:
            continue
        against = controls.get(row.draft.entry.contender, default)
        for on in [MEAN, *(column.name for column in plan.columns)]:
            if outcomes.has_scores(row.name, on) and outcomes.has_scores(against, on):
                differences.append((row.name, against, on, outcomes.difference(row.name, against, on)))
    corrected = holm_adjust([difference.p for *_, difference in differences])
    return [
        {"row": row, "against": against, "on": on, **difference.json(), "holm": p,
         "verdict": decide_verdict(difference, p, plan.study.rule)}
        for (row, against, on, difference), p in zip(differences, corrected, strict=True)
    ]  # fmt: skip


def leaves_majority(outcomes: StudyOutcomes, column: str) -> bool | None:
    """Return whether any model's score on a column is above the majority's for sure; None where it cannot be said."""
    if not outcomes.has_scores(MAJORITY, column):
        return None
    names = [row.name for row in outcomes.plan.rows if row.kind != "majority"]
    scored = [name for name in names if outcomes.has_scores(name, column)]
    if not scored:
        return None
    return any(outcomes.difference(name, MAJORITY, column).low > 0 for name in scored)
