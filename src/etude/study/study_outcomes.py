"""Scores of a study's finished cells by seed and by example, and what follows: means, intervals, differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from etude.study.claim_scope import columns_of
from etude.study.execute import load_outcome
from etude.study.plan import Column, Plan, Row
from etude.study.references import Progress, load_reference, measure_progress
from etude.study.statistics import Difference, Summary, compare, summarize
from etude.study.uncertainty import Estimate, estimate_mean, pseudo_values
from etude.tasks.outcomes import LEAST


class StudyOutcomes:
    """Outcomes of the finished cells of a plan, by seed and by example."""

    def __init__(self, plan: Plan, errors: Mapping[str, str], look: int | None = None) -> None:
        """`look`: as if there were so many pre-training seeds, the first of them."""
        self.plan, self.errors, self.rule = plan, errors, plan.study.rule
        self.units = [unit for unit in sorted(plan.units) if look is None or unit[0] < look]
        self.chosen: dict[tuple[str, str], int] = {}  # the tuned settings that were best on dev
        self.scores: dict[tuple[str, str], np.ndarray] = {}  # (pre-training seeds, transfer seeds)
        self.examples: dict[tuple[str, str], np.ndarray] = {}  # (seeds, examples) pseudo-values
        self.least: dict[str, float] = {}  # possible score of a column
        self.partial: dict[tuple[str, str], list[float]] = {}  # scores of the seeds that are done, where some are not
        self.progress: dict[str, Progress] = {}  # of language models, by row
        for column in plan.columns:
            for row in plan.rows:
                self._collect(row, column)
        for row in plan.rows:
            self._measure_progress(row)

    def _measure_progress(self, row: Row) -> None:
        if row.recipe is None or row.draft is None or row.draft.corpus is None or self.plan.is_waiting(row):
            return
        keys = [self.plan.bases[row.name, seed] for seed in range(self.plan.study.seeds.pretrain)]
        valid = [self.plan.store.result(key)["valid"] for key in keys if self.plan.store.state(key) == "done"]
        if valid:
            reference = load_reference(row.draft.corpus.location, self.plan.folder / "references")
            progress = measure_progress(row.recipe, average_records(valid), reference)
            if progress is not None:
                self.progress[row.name] = progress

    def _collect(self, row: Row, column: Column) -> None:
        plan, store = self.plan, self.plan.store
        if plan.is_waiting(row):
            return  # its settings are not chosen yet: cells of others may lie there from a study without trials
        candidates, is_pending = [], False
        for number in range(len(plan.tune_grid(row))):
            keys = [plan.trials[row.name, column.name, number, unit] for unit in self.units]
            if all(store.state(key) == "done" for key in keys):
                candidates.append((fmean(store.result(key)["dev"] for key in keys), -number))
            elif not any(key in self.errors or store.state(key) == "failed" for key in keys):
                is_pending = True  # it may be the best: whoever has fewer settings done would be judged by fewer
        if not candidates or is_pending:
            self._collect_partial(row, column)
            return
        number = -max(candidates)[1]
        self.chosen[row.name, column.name] = number
        keys = [plan.trials[row.name, column.name, number, unit] for unit in self.units]
        outcomes = {key: load_outcome(store, key) for key in keys}
        prompt = plan.study.tasks[column.task].prompt
        is_gain = prompt is not None and prompt.over is not None
        self.least[column.name] = -1.0 if is_gain else LEAST.get(outcomes[keys[0]].statistic, 0.0)
        shape = (len(self.units) // plan.study.seeds.transfer, plan.study.seeds.transfer)
        self.scores[row.name, column.name] = np.array([float(outcomes[key].score()) for key in keys]).reshape(shape)
        values = {key: pseudo_values(outcome) for key, outcome in outcomes.items()}
        table = np.stack([values[key] for key in keys]).reshape(*shape, -1)
        self.examples[row.name, column.name] = _group_by_seed(table)

    def _collect_partial(self, row: Row, column: Column) -> None:
        """Keep the scores of the seeds that are done: of several tuned settings, of the one with the most.

        Of settings with as many seeds, of the one that is best on dev, as where all are done.
        """
        plan, store = self.plan, self.plan.store
        candidates: list[tuple[int, float, list[float]]] = []
        for number in range(len(plan.tune_grid(row))):
            keys = [plan.trials[row.name, column.name, number, unit] for unit in self.units]
            done = [key for key in keys if store.state(key) == "done"]
            if done:
                dev = fmean(store.result(key)["dev"] for key in done)
                candidates.append((len(done), dev, [float(load_outcome(store, key).score()) for key in done]))
        if candidates:
            self.partial[row.name, column.name] = max(candidates, key=lambda candidate: candidate[:2])[2]

    def at_look(self, look: int) -> StudyOutcomes:
        """The outcomes as they were at a planned look: settings are chosen on dev by the seeds that there were.

        Chosen by later seeds too, they could change the verdict that the look gave.
        """
        is_chosen = any(len(self.plan.tune_grid(row)) > 1 for row in self.plan.rows)
        is_early = look < self.plan.study.seeds.pretrain
        return StudyOutcomes(self.plan, self.errors, look) if is_chosen and is_early else self

    # --- scores of a row on a column, a task, or all of them ----------------------------------------

    def columns_of(self, on: str) -> list[Column]:
        return columns_of(self.plan, on)

    def measures_gain(self, column: Column) -> bool:
        """Whether a column's score is what examples in a prompt add, of which the majority answer has none."""
        prompt = self.plan.study.tasks[column.task].prompt
        return prompt is not None and prompt.over is not None

    def has_scores(self, row: str, on: str) -> bool:
        return all((row, column.name) in self.scores for column in self.columns_of(on))

    def seeds(self, row: str, on: str) -> list[float]:
        """Return the score of each unit, in order."""
        return [float(score) for score in self._mean_scores(row, on).ravel()]

    def _mean_scores(self, row: str, on: str) -> np.ndarray:
        mean: np.ndarray = np.mean([self.scores[row, column.name] for column in self.columns_of(on)], axis=0)
        return mean

    def _example_tables(self, row: str, on: str) -> dict[str, tuple[float, np.ndarray]]:
        """Return the weight and the pseudo-values of each test set; columns of one task share theirs."""
        columns = self.columns_of(on)
        tables: dict[str, tuple[float, np.ndarray]] = {}
        for task in dict.fromkeys(column.task for column in columns):
            own = [self.examples[row, column.name] for column in columns if column.task == task]
            tables[task] = (len(own) / len(columns), np.mean(own, axis=0))
        return tables

    def estimate(self, row: str, on: str) -> Estimate:
        tables = list(self._example_tables(row, on).values())
        return self.estimate_from(self._mean_scores(row, on), tables)

    def estimate_from(self, scores: np.ndarray, tables: Sequence[tuple[float, np.ndarray]]) -> Estimate:
        """Estimate a mean; `scores` are (pre-training seeds, transfer seeds)."""
        if self.rule.over == "examples":  # these runs and no others: their mean is what is estimated
            return estimate_mean(
                scores.mean(keepdims=True)[0], [(weight, table.mean(0)[None]) for weight, table in tables]
            )
        return estimate_mean(_group_by_seed(scores), tables)

    def summary(self, row: str, on: str) -> Summary:
        least = fmean(self.least[column.name] for column in self.columns_of(on))
        return summarize(self.seeds(row, on), self.estimate(row, on), self.rule.interval, least)

    def difference(self, left: str, right: str, on: str, margin: float = 0.0, look: int | None = None) -> Difference:
        """Compare two rows, on the first `look` pre-training seeds where that is given."""
        pretrainings = look or self.plan.study.seeds.pretrain
        rows = slice(look) if self.plan.study.seeds.pretrain > 1 else slice(None)
        against = self._example_tables(right, on)
        tables = [
            (weight, (own - against[task][1])[rows]) for task, (weight, own) in self._example_tables(left, on).items()
        ]
        scores = [self._mean_scores(row, on)[:pretrainings] for row in (left, right)]
        estimate = self.estimate_from(scores[0] - scores[1], tables)
        seeds = [[float(score) for score in values.ravel()] for values in scores]
        return compare(seeds[0], seeds[1], estimate, self.rule.interval, margin, pretrainings)


def _group_by_seed(values: np.ndarray) -> np.ndarray:
    """Average (pre-training seeds, transfer seeds, ...) over transfers; these are the seeds of one pre-training."""
    return values[0] if len(values) == 1 else values.mean(1)


def average_records(records: list[dict[str, Any]]) -> dict[str, float]:
    if not records:
        return {}
    return {
        name: fmean(record[name] for record in records)
        for name in records[0]
        if all(isinstance(record.get(name), (int, float)) for record in records)
    }
