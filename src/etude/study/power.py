"""Power of a planned study: the smallest difference that it could settle, before it runs.

The spread of seeds is that of the cells already done, pooled over the contenders, or the guess that the rule states.
How much test examples add is measured on pairs of contenders that are done, or guessed from the size of the test set.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from etude.study.claim_scope import columns_of
from etude.study.execute import load_outcome
from etude.study.plan import Column, Plan, Row, Unit
from etude.study.uncertainty import POWER, detectable_difference, example_variance, pseudo_values

DISAGREEMENT = 0.15  # share of test examples that two contenders answer differently, where nobody has answered yet
MAX_PAIRS = 10  # of contenders that are compared example by example
MORE_SEEDS = (3, 5, 10)


@dataclass(frozen=True)
class SeedSpread:
    deviation: float  # of one contender's score over pre-training seeds
    rows: int  # contenders it is measured on; 0 for a guess


@dataclass(frozen=True)
class Detectable:
    """Smallest differences that claims on one task (or the mean) could settle."""

    on: str
    spread: SeedSpread
    examples: float  # variance of a difference by the draw of examples
    is_measured: bool  # the variance of examples
    by_seeds: dict[int, float]  # by the number of pre-training seeds


def claim_level(plan: Plan, seeds: int | None = None) -> float:
    """Return the level that a claim must pass by itself, Holm's smallest, at a look; the last unless `seeds` says."""
    rule, claims = plan.study.rule, max(1, len(plan.study.claims))
    error = rule.error_at(plan.study.seeds.pretrain if seeds is None else seeds)
    return 1 - error / (claims if rule.correction == "holm" else 1)


def plan_power(plan: Plan) -> list[Detectable]:
    """Compute what could be settled on each task (or mean) that a claim is about."""
    targets = dict.fromkeys(claim.on for claim in plan.study.claims)
    return [_compute(plan, on) for on in targets]


def _compute(plan: Plan, on: str) -> Detectable:
    spread = measure_spread(plan, on)
    tasks = dict.fromkeys(column.task for column in columns_of(plan, on))
    measured = {task: _measure_examples(plan, task) for task in tasks}
    columns = columns_of(plan, on)
    examples = 0.0
    for task, variance in measured.items():
        weight = sum(column.task == task for column in columns) / len(columns)
        size = max(2, _count_lines(plan, task))
        examples += weight**2 * (DISAGREEMENT / size if variance is None else variance)
    looks = plan.study.rule.looks  # claims are judged at these alone, and each spends its own part of the error
    counts = looks or sorted({plan.study.seeds.pretrain, *MORE_SEEDS})
    by_seeds = {
        count: detectable_difference(2 * spread.deviation**2 / count, examples, count, claim_level(plan, count))
        for count in counts
        if count >= plan.study.seeds.pretrain
    }
    return Detectable(on, spread, examples, all(value is not None for value in measured.values()), by_seeds)


def _count_lines(plan: Plan, task: str) -> int:
    return plan.files[task].test.read_bytes().count(b"\n")


def _done_units(plan: Plan, row: Row, columns: Sequence[Column]) -> Iterator[Unit]:
    """Yield the units of a row that are done on all columns, with its first tuned settings."""
    for unit in plan.units:
        keys = [plan.trials[row.name, column.name, 0, unit] for column in columns]
        if all(plan.store.state(key) == "done" for key in keys):
            yield unit


def measure_spread(plan: Plan, on: str) -> SeedSpread:
    """Measure the deviation over pre-training seeds, pooled over the contenders that have two or more."""
    columns = columns_of(plan, on)
    squares, degrees, rows = 0.0, 0, 0
    for row in plan.rows:
        if row.kind not in ("contender", "control"):
            continue
        by_seed: dict[int, list[float]] = {}
        for unit in _done_units(plan, row, columns):
            keys = [plan.trials[row.name, column.name, 0, unit] for column in columns]
            by_seed.setdefault(unit[0], []).append(fmean(plan.store.result(key)["value"] for key in keys))
        means = [fmean(values) for values in by_seed.values()]
        if len(means) > 1:
            squares += float(np.var(means, ddof=1)) * (len(means) - 1)
            degrees += len(means) - 1
            rows += 1
    if not degrees:
        return SeedSpread(plan.study.rule.deviation, 0)
    return SeedSpread(math.sqrt(squares / degrees), rows)


def _measure_examples(plan: Plan, task: str) -> float | None:
    """Measure the variance of a difference by the draw of examples, on pairs of contenders; None where none is done.

    Over all seeds that both have: what one seed answers by chance is in the spread of seeds, and not counted twice.
    """
    column = columns_of(plan, task)[0]
    rows: list[dict[Unit, np.ndarray]] = []
    for row in plan.rows:
        if row.kind in ("contender", "control") and math.comb(len(rows), 2) < MAX_PAIRS:
            keys = {unit: plan.trials[row.name, column.name, 0, unit] for unit in _done_units(plan, row, [column])}
            if keys:
                rows.append({unit: pseudo_values(load_outcome(plan.store, key)) for unit, key in keys.items()})
    variances = []
    for left, right in itertools.combinations(rows, 2):
        by_seed: dict[int, list[np.ndarray]] = {}
        for unit in left.keys() & right.keys():
            by_seed.setdefault(unit[0], []).append(left[unit] - right[unit])
        if by_seed:
            table = np.stack([np.mean(differences, axis=0) for differences in by_seed.values()])  # (seeds, examples)
            variances.append(float(example_variance(table)))
    return fmean(variances[:MAX_PAIRS]) if variances else None


def describe_power(plan: Plan) -> list[str]:
    """Describe in a line for each task what the study could settle, for `--dry-run`."""
    study = plan.study
    if not study.claims or study.rule.over == "examples":
        return []
    lines = []
    if study.seeds.pretrain < 2:
        lines.append("One pre-training seed settles no claim about a method: set seeds.pretrain=3 or more.")
    for item in plan_power(plan):
        spread = f"seeds deviate by {100 * item.spread.deviation:.1f} points "
        spread += f"({item.spread.rows} contenders that are done)" if item.spread.rows else "(a guess: rule.deviation)"
        examples = (
            "examples as measured" if item.is_measured else f"{100 * DISAGREEMENT:.0f} % of answers differ (a guess)"
        )
        needed = ", ".join(
            f"{100 * difference:.1f} with {count} seeds"
            for count, difference in item.by_seeds.items()
            if math.isfinite(difference)
        )
        claims = "1 claim" if len(study.claims) == 1 else f"{len(study.claims)} claims"
        lines.append(
            f"Smallest difference on {item.on} that is settled with {100 * POWER:.0f} % chance, in points: {needed}. "
            f"Assumed: {spread}, {examples}; {claims} ({study.rule.correction})."
        )
    return lines
