"""What a claim is about: its rows, its columns, and the cells that it waits for."""

from __future__ import annotations

from etude.study.plan import Column, Plan
from etude.study.sections import MAJORITY, MEAN, Claim


def columns_of(plan: Plan, on: str) -> list[Column]:
    """Return the columns of a task, of a task with one number of labels, or of all tasks."""
    return [column for column in plan.columns if on in (MEAN, column.name, column.task)]


def largest_budget_rows(plan: Plan) -> dict[str, str]:
    """Map each entry to its row at the largest budget, which claims are about."""
    return {row.draft.entry.name: row.name for row in plan.rows if row.kind in ("contender", "start") and row.draft}


def claim_cells(plan: Plan, claim: Claim) -> list[str]:
    """List the keys of all cells that a verdict needs, pre-trainings and the majority's answers among them."""
    rows = largest_budget_rows(plan)
    names = {rows.get(claim.better, claim.better), rows.get(claim.than, claim.than), MAJORITY}
    columns = {column.name for column in columns_of(plan, claim.on)}
    scored = [key for (row, column, _, _), key in plan.trials.items() if row in names and column in columns]
    return list(dict.fromkeys([*(base for key in scored for base in base_cells(plan, key)), *scored]))


def base_cells(plan: Plan, key: str) -> list[str]:
    """List the cells whose runs a cell starts from, the first to run first: a student's teacher, then the student."""
    base = plan.cells[key].depends_on
    return [] if base is None else [*base_cells(plan, base), base]
