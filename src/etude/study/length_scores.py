"""Scores by the length of what was read: Bahdanau et al. 2015, figure 2, for every row of a study.

A task that has lengths (translation: words of the source) keeps them with its results. Examples of like lengths form a
bucket; its score is that of its sums, and its interval the study's own, over seeds and the examples of the bucket.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from etude.study.execute import load_outcome
from etude.study.plan import Column
from etude.study.study_outcomes import StudyOutcomes
from etude.study.uncertainty import pseudo_values
from etude.tasks.outcomes import Outcome

BUCKETS = 6  # at most, of about equal numbers of examples
SMALLEST = 12  # examples of a bucket


def score_by_length(outcomes: StudyOutcomes) -> list[dict[str, Any]]:
    """For each column with lengths: its buckets, and the score of every row on each of them."""
    return [values for column in outcomes.plan.columns if (values := _score_column(outcomes, column)) is not None]


def _score_column(outcomes: StudyOutcomes, column: Column) -> dict[str, Any] | None:
    lengths: np.ndarray | None = None
    rows: dict[str, list[dict[str, float]]] = {}
    buckets: list[np.ndarray] = []
    for row in outcomes.plan.rows:
        if row.kind not in ("contender", "start", "control") or not outcomes.has_scores(row.name, column.name):
            continue
        keys = _chosen_cells(outcomes, row.name, column.name)
        if lengths is None:
            stored = outcomes.plan.store.result(keys[0]).get("lengths")
            if stored is None:
                return None
            lengths = np.array(stored)
            buckets = split_lengths(lengths)
        rows[row.name] = [_score_bucket(outcomes, keys, numbers) for numbers in buckets]
    if lengths is None or len(buckets) < 2:
        return None
    described = [
        {"low": int(inside.min()), "high": int(inside.max()), "mean": float(inside.mean()), "examples": len(inside)}
        for inside in (lengths[numbers] for numbers in buckets)
    ]  # fmt: skip
    return {"column": column.name, "buckets": described, "rows": rows}


def _chosen_cells(outcomes: StudyOutcomes, row: str, column: str) -> list[str]:
    """Keys of a row's cells, with the settings that were best on dev, in the order of units."""
    number = outcomes.chosen[row, column]
    return [outcomes.plan.trials[row, column, number, unit] for unit in sorted(outcomes.plan.units)]


def _score_bucket(outcomes: StudyOutcomes, keys: list[str], numbers: np.ndarray) -> dict[str, float]:
    plan = outcomes.plan
    parts = [load_outcome(plan.store, key) for key in keys]
    inside = [Outcome(outcome.statistic, outcome.parts[numbers]) for outcome in parts]
    shape = (plan.study.seeds.pretrain, plan.study.seeds.transfer)
    scores = np.array([float(outcome.score()) for outcome in inside]).reshape(shape)
    table = np.stack([pseudo_values(outcome) for outcome in inside]).reshape(*shape, -1)
    table = table[0] if len(table) == 1 else table.mean(1)  # transfers of one pre-training together
    estimate = outcomes.estimate_from(scores, [(1.0, table)])
    low, high = estimate.interval(outcomes.rule.interval)
    return {"mean": estimate.mean, "low": max(0.0, low), "high": min(1.0, high)}


def split_lengths(lengths: np.ndarray) -> list[np.ndarray]:
    """Numbers of the examples of each bucket, short ones first; one length is never in two buckets."""
    wanted = max(1, min(BUCKETS, len(lengths) // SMALLEST))
    ends = np.unique(np.quantile(lengths, np.arange(1, wanted + 1) / wanted, method="lower"))
    places = np.searchsorted(ends, lengths)  # the first end that is not below
    return [np.flatnonzero(places == place) for place in range(len(ends)) if (places == place).any()]
