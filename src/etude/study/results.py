"""Results of a study as plain data: the content of `results.json` and of the report."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from etude.runs.model_card import describe_hardware, describe_versions
from etude.study.execute import load_outcome
from etude.study.plan import Column, Draft, Plan, Row
from etude.study.power import claim_level
from etude.study.settings import MEAN, Claim
from etude.study.statistics import Difference, Summary, compare, decide_verdict, holm_adjust, summarize
from etude.study.uncertainty import Estimate, detectable_difference, estimate_mean, pseudo_values


class StudyOutcomes:
    """Outcomes of the finished cells of a plan, by seed and by example."""

    def __init__(self, plan: Plan, errors: Mapping[str, str]) -> None:
        self.plan, self.errors, self.rule = plan, errors, plan.study.rule
        self.chosen: dict[tuple[str, str], int] = {}  # the tuned settings that were best on dev
        self.scores: dict[tuple[str, str], np.ndarray] = {}  # (pre-training seeds, transfer seeds)
        self.examples: dict[tuple[str, str], np.ndarray] = {}  # (seeds, examples) pseudo-values
        for column in plan.columns:
            for row in plan.rows:
                self._collect(row, column)

    def _collect(self, row: Row, column: Column) -> None:
        plan, store = self.plan, self.plan.store
        candidates = []
        for number in range(len(plan.study.tune_grid()) if row.kind != "majority" else 1):
            keys = [plan.trials[row.name, column.name, number, unit] for unit in plan.units]
            if all(store.state(key) == "done" for key in keys):
                candidates.append((fmean(store.result(key)["dev"] for key in keys), -number))
        if not candidates:
            return
        number = -max(candidates)[1]
        self.chosen[row.name, column.name] = number
        keys = [plan.trials[row.name, column.name, number, unit] for unit in sorted(plan.units)]
        outcomes = {key: load_outcome(store, key) for key in keys}
        shape = (plan.study.seeds.pretrain, plan.study.seeds.transfer)
        self.scores[row.name, column.name] = np.array([float(outcomes[key].score()) for key in keys]).reshape(shape)
        values = {key: pseudo_values(outcome) for key, outcome in outcomes.items()}
        table = np.stack([values[key] for key in keys]).reshape(*shape, -1)
        self.examples[row.name, column.name] = _group_by_seed(table)

    # --- scores of a row on a column, a task, or all of them ----------------------------------------

    def columns_of(self, on: str) -> list[Column]:
        return [column for column in self.plan.columns if on in (MEAN, column.name, column.task)]

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
        return self._estimate(self._mean_scores(row, on), tables)

    def _estimate(self, scores: np.ndarray, tables: Sequence[tuple[float, np.ndarray]]) -> Estimate:
        """Estimate a mean; `scores` are (pre-training seeds, transfer seeds)."""
        if self.rule.over == "examples":  # these runs and no others: their mean is what is estimated
            return estimate_mean(
                scores.mean(keepdims=True)[0], [(weight, table.mean(0)[None]) for weight, table in tables]
            )
        return estimate_mean(_group_by_seed(scores), tables)

    def summary(self, row: str, on: str) -> Summary:
        return summarize(self.seeds(row, on), self.estimate(row, on), self.rule.interval)

    def difference(self, left: str, right: str, on: str, margin: float = 0.0) -> Difference:
        against = self._example_tables(right, on)
        tables = [(weight, own - against[task][1]) for task, (weight, own) in self._example_tables(left, on).items()]
        estimate = self._estimate(self._mean_scores(left, on) - self._mean_scores(right, on), tables)
        seeds = (self.seeds(left, on), self.seeds(right, on))
        return compare(*seeds, estimate, self.rule.interval, margin, self.plan.study.seeds.pretrain)


def _group_by_seed(values: np.ndarray) -> np.ndarray:
    """Average (pre-training seeds, transfer seeds, ...) over transfers; these are the seeds of one pre-training."""
    return values[0] if len(values) == 1 else values.mean(1)


def collect(plan: Plan, errors: Mapping[str, str], registered: Mapping[str, Any]) -> dict[str, Any]:
    """Collect everything known about a study as JSON-ready data."""
    outcomes = StudyOutcomes(plan, errors)
    study = plan.study
    return {
        "format": "etude study", "version": 1,
        "name": study.name, "title": study.title or study.name, "question": study.question, "paper": study.paper,
        "text": study.text.model_dump(mode="json", exclude_none=True),
        "budget": {"kind": study.budget.kind, "amounts": study.budget.amounts, "epochs": study.epochs},
        "seeds": study.seeds.model_dump(), "rule": study.rule.model_dump(), "registered": dict(registered),
        "date": datetime.now(UTC).date().isoformat(), "hardware": describe_hardware(), "versions": describe_versions(),
        "system": f"{platform.system()} {platform.machine()}", "device": plan.machine.device,
        "precision": _list_precisions(plan),
        "columns": [_describe_column(outcomes, column) for column in plan.columns],
        "rows": [_describe_row(outcomes, row) for row in plan.rows],
        "claims": _test_claims(outcomes), "comparisons": _compare_with_control(outcomes),
        "cells": [_describe_cell(outcomes, key) for key in plan.cells],
    }  # fmt: skip


def _list_precisions(plan: Plan) -> str:
    """List the precisions of the cells: a study may set another than the machine's default."""
    learnt = {row.recipe.train.precision for row in plan.rows if row.recipe is not None}
    tuned = {cell.arguments["settings"]["train.precision"] for cell in plan.cells.values() if cell.kind == "transfer"}
    return ", ".join(sorted(learnt | tuned))


def _describe_column(outcomes: StudyOutcomes, column: Column) -> dict[str, Any]:
    plan = outcomes.plan
    task = plan.study.tasks[column.task]
    done = next(
        (plan.store.result(key) for (_, name, _, _), key in plan.trials.items()
         if name == column.name and plan.store.state(key) == "done"), {},
    )  # fmt: skip
    return {
        "name": column.name, "task": column.task, "labels": column.labels, "kind": task.kind,
        "label": task.label or column.task, "score": done.get("score", ""), "examples": done.get("examples", 0),
        "learnt_from": column.labels or len(plan.files[column.task].pool),
    }  # fmt: skip


def _describe_row(outcomes: StudyOutcomes, row: Row) -> dict[str, Any]:
    plan, store = outcomes.plan, outcomes.plan.store
    scores = {
        column.name: outcomes.summary(row.name, column.name).json()
        for column in plan.columns
        if outcomes.has_scores(row.name, column.name)
    }
    tuned = {
        name: plan.study.tune_grid()[number]
        for (row_name, name), number in outcomes.chosen.items()
        if row_name == row.name
    }
    mean = outcomes.summary(row.name, MEAN).json() if outcomes.has_scores(row.name, MEAN) else None
    values: dict[str, Any] = {
        "name": row.name, "label": row.label, "kind": row.kind, "amount": row.amount, "scores": scores, "mean": mean,
        "tuned": {name: changes for name, changes in tuned.items() if changes and row.kind != "majority"},
        "failed": sorted({message for key, message in outcomes.errors.items()
                          if plan.cells[key].position["row"] == row.name}),
    }  # fmt: skip
    if row.draft is not None:
        recipe, cost = row.recipe or row.draft.recipe, row.draft.cost
        values |= {
            "contender": row.draft.entry.contender, "recipe": recipe.name, "system": recipe.system or recipe.name,
            "paper": recipe.paper, "changes": row.draft.entry.changes, **_describe_text(plan, row.draft),
            "model": {"kind": recipe.model_kind, **_model_shape(recipe.model)}, "objective": recipe.objective_kind,
            "parameters": cost.parameters, "head_parameters": cost.head_parameters,
            "flops_per_token": cost.flops_per_token, "lr": recipe.train.lr, "batch_tokens": recipe.train.batch_tokens,
        }  # fmt: skip
    if row.length is not None:
        keys = [plan.bases[row.name, seed] for seed in range(plan.study.seeds.pretrain)]
        results = [store.result(key) for key in keys if store.state(key) == "done"]
        values["pretraining"] = {
            "steps": row.length.steps, "epochs": row.length.epochs, "capped": row.length.capped,
            "by_clock": row.length.by_clock, "planned_flops": row.length.flops,
            **{name: fmean(result[name] for result in results) if results else None
               for name in ("tokens", "flops", "seconds")},
            "valid": _average([result["valid"] for result in results]),
            "curves": [result["curve"] for result in results],
        }  # fmt: skip
    return values


def _describe_text(plan: Plan, draft: Draft) -> dict[str, Any]:
    """Describe text and tokenizer: a prepared corpus has its own, whatever the recipe names."""
    corpus = draft.corpus
    if corpus is None:
        return {"tokenizer": draft.recipe.tokenizer}
    text = plan.study.contenders[draft.entry.contender].text or plan.study.text
    facts = {name: getattr(text, name) for name in ("share", "noise", "pseudo_words")}
    spec = corpus.manifest["tokenizer"].get("spec") or draft.recipe.tokenizer
    return {"tokenizer": spec, "text": {"tokens": corpus.total, "bytes": corpus.bytes, **facts}}


def _model_shape(model: Any) -> dict[str, Any]:
    values = model.model_dump(mode="json")
    return {name: values[name] for name in ("layers", "width", "heads", "context", "vocab", "share") if name in values}


def _average(records: list[dict[str, Any]]) -> dict[str, float]:
    if not records:
        return {}
    return {
        name: fmean(record[name] for record in records)
        for name in records[0]
        if all(isinstance(record.get(name), (int, float)) for record in records)
    }


def _test_claims(outcomes: StudyOutcomes) -> list[dict[str, Any]]:
    """Test each claim; p-values are corrected over all claims of the study."""
    study, rows = outcomes.plan.study, _largest_budget_rows(outcomes)
    tested: list[tuple[Claim, Difference | None]] = []
    for claim in study.claims:
        left, right = rows.get(claim.better, claim.better), rows.get(claim.than, claim.than)
        has_both = outcomes.has_scores(left, claim.on) and outcomes.has_scores(right, claim.on)
        tested.append((claim, outcomes.difference(left, right, claim.on, claim.margin) if has_both else None))
    corrected = iter(holm_adjust([left.p for _, left in tested if left is not None]))
    claims = []
    for claim, difference in tested:
        values: dict[str, Any] = {**claim.model_dump(mode="json"), "verdict": "not tested"}
        if difference is not None:
            p = next(corrected)
            p_used = p if study.rule.correction == "holm" else difference.p
            values |= {
                **difference.json(),
                "holm": p,
                "detectable": _detectable(outcomes, difference),
                "verdict": decide_verdict(difference, p_used, study.rule, claim.margin),
            }
        claims.append(values)
    return claims


def _detectable(outcomes: StudyOutcomes, difference: Difference) -> float | None:
    """Compute the smallest difference that would have been settled with 80 % power, given the spread that there was."""
    variance, seeds = difference.error**2, difference.pretrainings
    share = difference.seed_share
    if seeds < 2 or outcomes.rule.over == "examples":
        return None
    return detectable_difference(share * variance, (1 - share) * variance, seeds, claim_level(outcomes.plan))


def _largest_budget_rows(outcomes: StudyOutcomes) -> dict[str, str]:
    """Map each entry to its row at the largest budget, which claims are about."""
    return {row.draft.entry.name: row.name for row in outcomes.plan.rows if row.kind == "contender" and row.draft}


def _compare_with_control(outcomes: StudyOutcomes) -> list[dict[str, Any]]:
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


def _describe_cell(outcomes: StudyOutcomes, key: str) -> dict[str, Any]:
    plan, cell = outcomes.plan, outcomes.plan.cells[key]
    values: dict[str, Any] = {
        "key": key, "kind": cell.kind, "title": cell.title, "place": cell.position, "state": plan.store.state(key),
        "commands": list_commands(plan, key),
    }  # fmt: skip
    if values["state"] == "done":
        result = plan.store.result(key)
        values |= {name: result[name] for name in ("value", "dev", "step", "tokens", "flops", "seconds", "valid")
                   if name in result}  # fmt: skip
    if key in outcomes.errors:
        values["error"] = outcomes.errors[key]
    return values


def list_commands(plan: Plan, key: str) -> list[str]:
    """List the shell commands that reproduce a cell, typed in the study's folder."""
    cell = plan.cells[key]
    inside = {name: _relative_path(plan, cell.arguments[name]) for name in ("corpus", "train", "dev", "test")
              if cell.arguments.get(name)}  # fmt: skip
    if cell.kind == "pretrain":
        return [f"etude pretrain cells/{key}/run/recipe.yaml {inside['corpus']} -o again/{key[:8]}"]
    if cell.kind == "transfer":
        words = [f"{name}={_format_setting(value)}" for name, value in cell.arguments["settings"].items()]
        columns = [f"-c {role}={name}" for role, name in cell.arguments["columns"].items()]
        line = [f"etude finetune cells/{cell.depends_on}/run {cell.arguments['task']}", f"--train {inside['train']}",
                f"--dev {inside['dev']}", f"-o again/{key[:8]}", *columns, *words]  # fmt: skip
        return [" ".join(line), f"etude evaluate again/{key[:8]} {inside['test']}"]
    return [f"etude study study.yaml -o . --cell {key[:8]}"]


def _relative_path(plan: Plan, path: str) -> str:
    """Return a path relative to the study's folder; only its name where the two share nothing but the root."""
    inside, folder = Path(path).resolve(), plan.folder.resolve()
    if inside.is_relative_to(folder):
        return str(inside.relative_to(folder))
    is_outside = Path(path).is_absolute() or os.path.commonpath([inside, folder]) == inside.anchor
    return inside.name if is_outside else os.path.relpath(inside, folder)


def _format_setting(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)
