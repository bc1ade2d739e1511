"""Results of a study as plain data: the content of `results.json` and of the report."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from etude.recipes.schema import Recipe
from etude.runs.model_card import describe_hardware, describe_versions
from etude.study.claims import compare_with_control, judge_claims, leaves_majority
from etude.study.length_scores import score_by_length
from etude.study.plan import Column, Draft, Plan, Row
from etude.study.prompts import PROMPT_FILE, TaskPrompt
from etude.study.relative_paths import map_settings
from etude.study.sections import MEAN
from etude.study.settings import Study
from etude.study.study_outcomes import StudyOutcomes, average_records
from etude.study.tuning import describe_tuning, read_setting
from etude.text.remote.urls import is_url


def collect(plan: Plan, errors: Mapping[str, str], registered: Mapping[str, Any]) -> dict[str, Any]:
    """Collect everything known about a study as JSON-ready data."""
    outcomes = StudyOutcomes(plan, errors)
    study = plan.study
    done = {key: plan.store.result(key) for key in plan.cells if plan.store.state(key) == "done"}
    return {
        "format": "etude study", "version": 1,
        "name": study.name, "title": study.title or study.name, "question": study.question, "paper": study.paper,
        "text": study.text.model_dump(mode="json", exclude_none=True),
        "budget": {"kind": study.budget.kind, "amounts": study.budget.amounts, "epochs": study.epochs},
        "seeds": study.seeds.model_dump(), "rule": study.rule.model_dump(),
        "registered": {**registered, "older_cells": _count_older_cells(done, registered)},
        "date": _find_last_day(done),
        "hardware": _list_facts(done, "hardware") or describe_hardware(),
        "versions": _list_facts(done, "versions") or describe_versions(),
        "code_versions": _count_code_versions(plan, done),
        "device": plan.machine.device,
        "precision": _list_precisions(plan),
        "columns": [_describe_column(outcomes, column) for column in plan.columns],
        "rows": [_describe_row(outcomes, row) for row in plan.rows],
        "common": compare_settings(study),
        "lengths": score_by_length(outcomes),
        "claims": judge_claims(outcomes), "comparisons": compare_with_control(outcomes),
        "cells": [_describe_cell(outcomes, key) for key in plan.cells],
    }  # fmt: skip


def compare_settings(study: Study) -> list[dict[str, Any]]:
    """List what the study sets for everybody, with each recipe's own value: no hidden handicap."""
    entries = {entry.contender: entry for entry in study.entries() if entry.run(study) is None}
    listed = []
    for name, value in study.set.items():
        own: dict[str, Any] = {}
        for contender in entries:
            source = study.contenders[contender].recipe
            assert source is not None
            own[contender] = read_setting(Recipe.load(source, {}), name)
        listed.append({"name": name, "value": value, "own": own})
    return listed


def _list_facts(done: Mapping[str, Mapping[str, Any]], name: str) -> str:
    """List what the finished cells say of the machines that they ran on: seldom the one that reports."""
    facts = {result.get(name) for result in done.values()}
    return "; ".join(sorted(filter(None, facts)))


def _find_last_day(done: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the day on which the last cell ended, as hardware and versions are those of cells; today without any."""
    dates = [str(result["date"]) for result in done.values() if "date" in result]  # all of UTC
    return max(dates, default=datetime.now(UTC).isoformat())[: len("2026-11-18")]


def _count_older_cells(done: Mapping[str, Mapping[str, Any]], registered: Mapping[str, Any]) -> int:
    """Count finished cells from before the claims were recorded: those of another folder, or of other claims."""
    if not registered.get("date"):
        return 0
    recorded = datetime.fromisoformat(registered["date"])
    return sum(datetime.fromisoformat(result["date"]) < recorded for result in done.values() if "date" in result)


def _count_code_versions(plan: Plan, done: Mapping[str, Mapping[str, Any]]) -> int:
    """Count the versions of the code by which cells of one kind were done: more than one with `any_version` alone."""
    code: dict[tuple[object, ...], set[str]] = {}
    for key, result in done.items():
        cell = plan.cells[key]
        place = (cell.kind, cell.position.get("row"), cell.position.get("column"))
        code.setdefault(place, set()).add(result.get("code", ""))
    return max(map(len, code.values()), default=1)


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
        "learnt_from": 0 if task.direct else column.labels or len(plan.files[column.task].pool),
        "tested": leaves_majority(outcomes, column.name),
    }  # fmt: skip


def _describe_row(outcomes: StudyOutcomes, row: Row) -> dict[str, Any]:
    plan, store = outcomes.plan, outcomes.plan.store
    scores = {
        column.name: outcomes.summary(row.name, column.name).json()
        for column in plan.columns
        if outcomes.has_scores(row.name, column.name)
    }
    tuned = {
        name: plan.tune_grid(row)[number]
        for (row_name, name), number in outcomes.chosen.items()
        if row_name == row.name
    }
    mean = outcomes.summary(row.name, MEAN).json() if outcomes.has_scores(row.name, MEAN) else None
    values: dict[str, Any] = {
        "name": row.name, "label": row.label, "kind": row.kind, "amount": row.amount, "scores": scores, "mean": mean,
        "partial": {name: {"mean": fmean(values), "seeds": values, "planned": len(plan.units)}
                    for (row_name, name), values in outcomes.partial.items() if row_name == row.name},
        "tuned": {name: changes for name, changes in tuned.items() if changes},
        "failed": sorted({message for key, message in outcomes.errors.items()
                          if plan.cells[key].position["row"] == row.name}),
    }  # fmt: skip
    if row.draft is not None:
        recipe, cost = row.recipe or row.draft.recipe, row.draft.cost
        values |= {
            "contender": row.draft.entry.contender, "recipe": recipe.name, "system": recipe.system or recipe.name,
            "paper": recipe.paper, "changes": _list_changes(plan, row.draft), **_describe_text(plan, row.draft),
            "model": {"kind": recipe.model_kind, **_model_shape(recipe.model)}, "objective": recipe.objective_kind,
            "parameters": cost.parameters, "head_parameters": cost.head_parameters,
            "flops_per_token": cost.flops_per_token, "lr": recipe.train.lr, "batch_tokens": recipe.train.batch_tokens,
        }  # fmt: skip
        if (tuning := plan.tunings.get(row.draft.entry.name)) is not None and row.kind == "contender":
            values["tuning"] = describe_tuning(plan, tuning)
    if row.kind == "start" and row.draft is not None and row.draft.start is not None:
        key = plan.bases[row.name, 0]
        earlier = store.result(key).get("earlier") if store.state(key) == "done" else None
        start = row.draft.start
        values["start"] = {"run": start.folder.name, "fingerprint": start.fingerprint[:16], "earlier": earlier}
    if row.length is not None:
        keys = [plan.bases[row.name, seed] for seed in range(plan.study.seeds.pretrain)]
        results = [store.result(key) for key in keys if store.state(key) == "done"]
        values["pretraining"] = {
            "steps": row.length.steps, "epochs": row.length.epochs, "capped": row.length.capped,
            "by_clock": row.length.by_clock, "planned_flops": row.length.flops,
            **{name: fmean(result[name] for result in results) if results else None
               for name in ("tokens", "flops", "seconds")},
            "valid": average_records([result["valid"] for result in results]),
            "curves": [result["curve"] for result in results],
            "progress": None if (progress := outcomes.progress.get(row.name)) is None else progress.json(),
        }  # fmt: skip
    return values


def _list_changes(plan: Plan, draft: Draft) -> dict[str, Any]:
    """List the settings that a study changes in a recipe, with the values that its trials chose."""
    tuning = plan.tunings.get(draft.entry.name)
    return {**draft.entry.changes, **({} if tuning is None else tuning.chosen)}


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


def _describe_cell(outcomes: StudyOutcomes, key: str) -> dict[str, Any]:
    plan, cell = outcomes.plan, outcomes.plan.cells[key]
    values: dict[str, Any] = {
        "key": key, "kind": cell.kind, "title": cell.title, "place": cell.position, "state": plan.store.state(key),
        "commands": list_commands(plan, key),
    }  # fmt: skip
    if values["state"] == "done":
        result = plan.store.result(key)
        names = ("value", "dev", "by_shots", "step", "tokens", "flops", "seconds", "valid")
        values |= {name: result[name] for name in names if name in result}
    if key in outcomes.errors:
        values["error"] = outcomes.errors[key]
    return values


def list_commands(plan: Plan, key: str) -> list[str]:
    """List the shell commands that reproduce a cell, typed in the study's folder."""
    cell = plan.cells[key]
    places = ("corpus", "train", "dev", "test", "start", "entities")
    inside = {name: _relative_path(plan, cell.arguments[name]) for name in places if cell.arguments.get(name)}
    again, base = f"again/{key[:8]}", f"cells/{cell.depends_on}/run"
    columns = [word for role, name in cell.arguments.get("columns", {}).items() for word in ("-c", f"{role}={name}")]
    if cell.kind == "pretrain":
        first = [word for name in ("start", "entities") if name in inside for word in (f"--{name}", inside[name])]
        words = ["etude", "pretrain", f"cells/{key}/run/recipe.yaml", inside["corpus"], *first, "-o", again]
        return [shlex.join(words)]
    if cell.kind == "distill":
        words = ["etude", "distill", f"cells/{key}/run/recipe.yaml", inside["corpus"], "--teacher", base, "-o", again]
        return [shlex.join(words)]
    if cell.kind == "prompt":
        shots = ",".join(map(str, TaskPrompt.model_validate(cell.arguments["prompt"]).all_shots))
        words = ["etude", "prompt", base, f"cells/{key}/{PROMPT_FILE}", "--train", inside["train"], "--test",
                 inside["test"], "--shots", shots, "--seed", str(cell.arguments["settings"]["train.seed"])]  # fmt: skip
        return [shlex.join(words)]
    if cell.kind == "direct":
        return [shlex.join(["etude", "evaluate", base, inside["test"], *columns])]
    if cell.kind == "transfer":
        located = map_settings(cell.arguments["settings"], Path(), lambda path: _relative_path(plan, path))
        settings = [f"{name}={_format_setting(value)}" for name, value in located.items()]
        words = ["etude", "finetune", base, cell.arguments["task"], "--train", inside["train"], "--dev", inside["dev"],
                 "-o", again, *columns, *settings]  # fmt: skip
        return [shlex.join(words), shlex.join(["etude", "evaluate", again, inside["test"]])]
    return [f"etude study study.yaml -o . --cell {key[:8]}"]


def _relative_path(plan: Plan, path: str) -> str:
    """Return a path relative to the study's folder; only its name where the two share nothing but the root."""
    if is_url(path):
        return path
    if Path(path).absolute().is_relative_to(plan.folder.absolute()):  # by a link, too, to what one queue shares
        return str(Path(path).absolute().relative_to(plan.folder.absolute()))
    inside, folder = Path(path).resolve(), plan.folder.resolve()
    if inside.is_relative_to(folder):
        return str(inside.relative_to(folder))
    is_outside = Path(path).is_absolute() or os.path.commonpath([inside, folder]) == inside.anchor
    return inside.name if is_outside else os.path.relpath(inside, folder)


def _format_setting(value: Any) -> str:
    """Format a setting as the command line reads it, with all digits."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
