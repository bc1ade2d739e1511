"""Trials of pre-training: every contender's learning rate, and what it names besides, chosen on dev at equal cost.

A recipe's rate was found by its authors for their batch, text and length, not for this study's. So before the cells of
the study run, each contender trains for a share of the budget with multiples of its own rate, and then, at the best of
these, with each setting that it lists under `tune`. The mean dev score over the tasks decides, or with `by: loss`, for
settings of training, the contender's own loss on held-out text; test examples and the seeds of the study have no part
in it. What the trials cost is counted beside what the cells cost. A value chosen at an end of its list may not be the
best there is, and is flagged. So is a rate chosen on dev where another has the lower held-out loss: a few hundred dev
examples tell rates apart less surely than the loss does, and contenders whose rates were drawn by chance are compared
by their rates. So is Adam without bias correction (BERT's and ELECTRA's
code): at the end of a warm-up of t steps its own are 1 / sqrt(1 - b2^t) times as long, 3.5 times for 83 of them and 1.3
times for 830, so short trials choose too low a rate for what follows.

A rate that a trial bears may be too high for a whole run: stability.py takes a lower one where the study's own runs get
worse while they train. What the others cost is counted with the trials.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import fmean
from typing import Any

from etude.errors import UserError
from etude.recipes.schema import Recipe
from etude.study.budget import compute_cost
from etude.study.cells import Cell
from etude.study.plan import Column, Draft, Plan, Row, Trial, Tuning
from etude.study.plan_cells import base_cell, teacher_cell, transfer_cell
from etude.study.sections import Changes, PretrainingTrials, format_value
from etude.study.stability import describe_endings, settle_rate

RATE = "train.lr"
FIRST_SEED = 1_000  # of trials: no study has so many seeds, so that none of its own is chosen on
MakeRow = Callable[[Draft, float], Row]  # a draft, trained for an amount of the budget


def is_pending(plan: Plan, trial: Trial) -> bool:
    """Whether a cell of a trial is left that can still run."""
    states = {plan.store.state(key) for key in trial.keys}
    return "failed" not in states and states != {"done"}


def score_trial(plan: Plan, trial: Trial) -> float:
    """Return the mean dev score; a trial that failed loses against every other."""
    if any(plan.store.state(key) != "done" for key in trial.keys):
        return -math.inf
    return fmean(plan.store.result(key)["dev"] for key in trial.transfers)


def read_trial_settings(plan: Plan) -> PretrainingTrials:
    """Return the section of a study that has trials."""
    trials = plan.study.tune_pretraining
    assert trials is not None
    return trials


def rank_trial(plan: Plan, trial: Trial) -> float:
    """Return a number that is highest for the trial to choose: its dev score, or minus its held-out loss."""
    score = score_trial(plan, trial)
    # a setting of the model or the objective may change what the loss is of
    if read_trial_settings(plan).by == "dev" or not trial.setting.startswith("train.") or math.isinf(score):
        return score
    if (loss := find_loss(plan, trial)) is None:
        name = plan.store.result(trial.bases[-1])["title"]
        raise UserError(f"{name} has no loss on held-out text, by which tune_pretraining chooses: set by: dev.")
    return -loss


def find_loss(plan: Plan, trial: Trial) -> float | None:
    """Return the mean held-out loss of a trial's pre-trainings; None where it has none, or is not done."""
    per_seed = len(trial.bases) // read_trial_settings(plan).seeds
    keys = trial.bases[per_seed - 1 :: per_seed]  # a seed's own pre-training comes after that of its teacher
    if any(plan.store.state(key) != "done" for key in keys):
        return None
    losses: list[float | None] = [(plan.store.result(key).get("valid") or {}).get("loss") for key in keys]
    known = [loss for loss in losses if loss is not None]
    return fmean(known) if len(known) == len(losses) else None


def find_rate_of_lowest_loss(plan: Plan, tuning: Tuning) -> float | None:
    """Return the rate with the lowest held-out loss if it is not the chosen one, of trials that are all done."""
    limit = min((runs.rate for runs in tuning.given_up), default=math.inf)
    trials = [trial for trial in tuning.trials if trial.setting == RATE and trial.value < limit]
    losses = [(loss, trial.value) for trial in trials if (loss := find_loss(plan, trial)) is not None]
    if RATE not in tuning.chosen or len(losses) < len(trials):
        return None
    _, lowest = min(losses)
    return None if lowest == tuning.chosen[RATE] else float(lowest)


def describe_tuning(plan: Plan, tuning: Tuning) -> dict[str, Any]:
    """Return trials, choice and cost as JSON-ready data."""
    planned = [key for trial in tuning.trials for key in trial.keys]
    planned += [key for runs in tuning.rejected for key in runs.keys]
    done = [key for key in planned if plan.store.state(key) == "done"]
    results = [plan.store.result(key) for key in dict.fromkeys(done)]
    trials = [
        {
            "setting": trial.setting, "value": trial.value, "own": trial.is_own,
            "dev": None if math.isinf(score := score_trial(plan, trial)) else score,
            "loss": find_loss(plan, trial),
            "pending": is_pending(plan, trial),
            "chosen": trial.setting in tuning.chosen and tuning.chosen[trial.setting] == trial.value,
        }
        for trial in tuning.trials
    ]  # fmt: skip
    return {
        "trials": trials, "at_end": tuning.at_end, "uncorrected": tuning.is_uncorrected, "pending": tuning.is_pending,
        "lowest_loss": find_rate_of_lowest_loss(plan, tuning),
        "given_up": [{"rate": runs.rate, **describe_endings(plan.store, runs)} for runs in tuning.given_up],
        "rises": describe_endings(plan.store, tuning.tried[tuning.chosen_index]) if tuning.tried else None,
        "by": read_trial_settings(plan).by,
        "flops": sum(result.get("flops", 0.0) for result in results),
        "seconds": sum(result["seconds"] for result in results),
    }  # fmt: skip


def plan_tuning(plan: Plan, draft: Draft, make_row: MakeRow, make_full_row: MakeRow) -> Tuning:
    """Plan the trials of a contender: of the settings that are chosen already, and of the next one.

    `make_full_row` makes the row as the study has it, beside contenders that are tuned.
    """
    trials = read_trial_settings(plan)
    tuning = Tuning(draft.entry.name, is_uncorrected=draft.recipe.train.optimizer == "adam" and trials.share < 1)
    if draft.teacher is not None and draft.teacher.entry.name in plan.untuned:
        tuning.is_pending = tuning.waits = True
        return tuning
    _choose_settings(plan, draft, tuning, make_row)
    if not tuning.is_pending:
        _settle_rate(plan, draft, tuning, make_full_row)
    for setting, values in _list_settings(plan, draft, trials):
        if len(values) > 2 and _is_ordered(values) and tuning.chosen.get(setting) in (min(values), max(values)):
            tuning.at_end.append(setting)
    return tuning


def _choose_settings(plan: Plan, draft: Draft, tuning: Tuning, make_row: MakeRow) -> None:
    """Choose setting after setting, as far as their trials are done."""
    trials = read_trial_settings(plan)
    for setting, values in _list_settings(plan, draft, trials):
        own = read_setting(draft.recipe, setting)
        stage = [_plan_trial(plan, draft, trials, tuning.chosen, setting, value, value == own, make_row)
                 for value in values]  # fmt: skip
        tuning.trials += stage
        if any(is_pending(plan, trial) for trial in stage):
            tuning.is_pending = True
            return
        # of equals, the recipe's own value: it has its authors' evidence besides
        best = max(stage, key=lambda trial: (rank_trial(plan, trial), trial.is_own))
        tuning.chosen[setting] = best.value


def _settle_rate(plan: Plan, draft: Draft, tuning: Tuning, make_row: MakeRow) -> None:
    """Choose a lower rate where whole runs at the chosen one get worse while they train."""
    if draft.cost.updates_itself:  # word vectors learn by the clock, without a loss to compare
        return
    study, first = plan.study, dict(tuning.chosen)
    seeds = min(study.seeds.pretrain, *study.rule.looks) if study.rule.looks else study.seeds.pretrain

    def plan_runs(rate: float) -> list[Cell]:
        changed = with_settings(draft, {**first, RATE: rate})
        row = make_row(changed, study.budget.amounts[-1])
        return [base_cell(plan, row, changed, seed) for seed in range(seeds)]

    trained = [each for each in tuning.trials if each.setting == RATE and not math.isinf(score_trial(plan, each))]
    rates = {first[RATE], *(trial.value for trial in trained if trial.value < first[RATE])}
    settle_rate(plan.store, tuning, sorted(rates), plan_runs)
    tuning.chosen[RATE] = tuning.tried[tuning.chosen_index].rate


def tune_draft(draft: Draft, tuning: Tuning) -> Draft:
    """Return the contender with the settings that its trials chose."""
    return with_settings(draft, tuning.chosen) if tuning.chosen else draft


def with_settings(draft: Draft, changes: Changes) -> Draft:
    """Return a contender with other settings, and what a token of it costs with them: the budget is the same."""
    recipe = draft.recipe.with_settings(changes) if changes else draft.recipe
    if draft.corpus is None:  # of a dry run: its cost is an estimate anyway
        return replace(draft, recipe=recipe)
    teacher = None if draft.teacher is None else draft.teacher.recipe
    return replace(draft, recipe=recipe, cost=compute_cost(recipe, draft.corpus, teacher))


def tuned_columns(plan: Plan) -> list[Column]:
    """Return the columns whose dev scores decide: of each task the one with most labels."""
    trials = plan.study.tune_pretraining
    names = trials.tasks if trials is not None and trials.tasks else list(plan.study.tasks)
    return [[column for column in plan.columns if column.task == name][-1] for name in names]


def _list_settings(plan: Plan, draft: Draft, trials: PretrainingTrials) -> Iterator[tuple[str, list[Any]]]:
    rate = draft.recipe.train.lr
    yield RATE, [rate if multiple == 1 else float(f"{rate * multiple:.6g}") for multiple in trials.lr]
    yield from plan.study.contenders[draft.entry.contender].tune.items()


def read_setting(recipe: Recipe, name: str) -> Any:
    """Return a recipe's value of a setting such as train.lr or tokenizer; None where it has no such setting."""
    if name == "tokenizer":
        return recipe.tokenizer
    group, *path = name.split(".")
    if group == "distill":  # short for a group of the objective, as on a command line
        group, path = "objective", ["distill", *path]
    parts = {"model": recipe.model, "objective": recipe.objective, "train": recipe.train}
    value: Any = parts[group].model_dump(mode="json") if group in parts else None
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _plan_trial(
    plan: Plan, draft: Draft, trials: PretrainingTrials, chosen: Changes, setting: str, value: Any, is_own: bool,
    make_row: MakeRow,
) -> Trial:  # fmt: skip
    changed = with_settings(draft, {**chosen, setting: value})
    row = make_row(changed, trials.share * plan.study.budget.amounts[-1])
    row = replace(row, name=f"{draft.entry.name}, trial of {setting}={format_value(value)}", kind="trial")
    bases: list[Cell] = []
    transfers: list[Cell] = []
    for seed in range(FIRST_SEED, FIRST_SEED + trials.seeds):
        base = base_cell(plan, row, changed, seed)
        bases += [base] if (teacher := teacher_cell(plan, row, seed)) is None else [teacher, base]
        transfers += [
            transfer_cell(plan, row, column, (seed, 0), plan.study.tune_grid()[0], base)
            for column in tuned_columns(plan)
        ]
    for cell in (*bases, *transfers):
        plan.tuning_cells.setdefault(cell.key, cell)
    return Trial(setting, value, is_own, tuple(cell.key for cell in bases), tuple(cell.key for cell in transfers))


def _is_ordered(values: list[Any]) -> bool:
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
