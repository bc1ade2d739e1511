"""Checks of a study before anything runs: references between its sections, trials, teachers, transfers.

A misspelt setting of a transfer must not be met after the pre-training it starts from. Errors name the line.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from etude.baselines.registry import supports
from etude.errors import UserError, suggest_name
from etude.recipes.datasets import resolve_dataset
from etude.recipes.document import Document
from etude.runs.task_plan import check_settings, task_module
from etude.study.sections import CONTROL, FROZEN, MAJORITY, MEAN, Task

if TYPE_CHECKING:
    from etude.study.settings import Study


def check_study(study: Study, document: Document) -> None:
    """Check references between sections; errors name the line."""
    if not study.contenders or not study.tasks:
        raise UserError(f"{document.place(())}: a study needs contenders and tasks.")
    if all(contender.recipe is None for contender in study.contenders.values()):
        raise UserError(f"{document.place(('contenders',))}: at least one contender must have a recipe to pre-train.")
    entries, tasks = study.entries(), study.scored_tasks()
    for name in (CONTROL, FROZEN, MAJORITY):
        if name in study.contenders:
            raise UserError(
                f"{document.place(('contenders', name))}: '{name}' is there in every study; choose another name."
            )
    for name, task in study.tasks.items():
        try:
            task_module(task.kind)
        except UserError as error:
            raise UserError(f"{document.place(('tasks', name, 'kind'))}: {error}") from None
        _check_direct(study, document, name, task)
        _check_prompt(study, document, name, task)
        if task.made == "sense" and not study.text.pseudo_words:
            where = document.place(("tasks", name, "made"))
            raise UserError(f"{where}: senses are those of pseudo-words: set text.pseudo_words, such as 20.")
    row_names = [entry.name for entry in entries] + [*study.controls(), *study.control.baselines, FROZEN, MAJORITY]
    task_names = [MEAN, *study.tasks, *(f"{task}@{labels}" for task, labels in tasks if labels is not None)]
    for number, claim in enumerate(study.claims):
        for key, reference, known in (
            ("better", claim.better, row_names), ("than", claim.than, row_names), ("on", claim.on, task_names),
        ):  # fmt: skip
            if reference not in known:
                where = document.place(("claims", str(number), key))
                raise UserError(f"{where}: '{reference}' is not in this study.{suggest_name(reference, known)}")
    looks = study.rule.looks
    if looks and (looks != sorted(set(looks)) or looks[0] < 2):
        where = document.place(("rule", "looks"))
        raise UserError(f"{where}: looks are numbers of seeds, two or more, each larger than the one before.")
    if looks and study.seeds.pretrain not in looks:
        planned = ", ".join(map(str, looks))
        where = document.place(("seeds", "pretrain"))
        raise UserError(f"{where}: {study.seeds.pretrain} pre-training seeds are no planned look ({planned}).")
    _check_trials(study, document)
    _check_transfers(study, document)
    _check_teachers(study, document)
    _check_baselines(study, document)
    for name in study.control.of if isinstance(study.control.of, list) else []:
        if name not in study.contenders:
            where = document.place(("control", "of"))
            raise UserError(f"{where}: '{name}' is no contender.{suggest_name(name, study.contenders)}")
        if study.contenders[name].recipe is None:
            where = document.place(("control", "of"))
            raise UserError(f"{where}: '{name}' is a run, which comes with its weights: name one with a recipe.")


def _check_direct(study: Study, document: Document, name: str, task: Task) -> None:
    """Check that what answers directly was trained to: recipes of translation, for the kind translate."""
    if not task.direct:
        return
    if task.kind != "translate":
        where = document.place(("tasks", name, "direct"))
        raise UserError(f"{where}: only translation has runs that answer as they are, not {task.kind}.")
    for entry in study.entries():
        if entry.run(study) is None and entry.recipe(study).objective_kind != "translate":
            where = document.place(("contenders", entry.contender))
            raise UserError(f"{where}: {name} asks for runs that translate, and this recipe learns something else.")


def _check_prompt(study: Study, document: Document, name: str, task: Task) -> None:
    """Check that what is asked can be put in words, and that everybody goes on with a text."""
    if task.prompt is None:
        return
    try:
        task.prompt.check(task.kind, task.columns)
    except UserError as error:
        raise UserError(f"{document.place(('tasks', name, 'prompt'))}: {error}") from None
    for entry in study.entries():
        if entry.run(study) is None and entry.recipe(study).objective_kind != "causal":
            where = document.place(("contenders", entry.contender))
            raise UserError(f"{where}: {name} is asked as a prompt, and only a causal model goes on with a text.")


def _check_teachers(study: Study, document: Document) -> None:
    """Check that teachers and contenders whose FLOPs are spent are in the study, and that teachers are masked."""
    for name, contender in study.contenders.items():
        for key, references in (("teacher", [contender.teacher] if contender.teacher else []),
                                ("flops_of", contender.flops_of)):  # fmt: skip
            for reference in references:
                where = document.place(("contenders", name, key))
                if reference not in study.contenders or reference == name:
                    known = [other for other in study.contenders if other != name]
                    hint = suggest_name(reference, known)
                    raise UserError(f"{where}: '{reference}' is no other contender of this study.{hint}")
                rival = study.contenders[reference]
                if rival.recipe is None or (key == "teacher" and rival.teacher is not None):
                    raise UserError(f"{where}: '{reference}' must be pre-trained here, without a teacher itself.")
                if key == "flops_of" and name in _list_rivals(study, reference):
                    raise UserError(f"{where}: {name} and {reference} would each wait for what the other spends.")
                if study.vary:
                    raise UserError(f"{where}: where settings are varied, '{reference}' is several contenders.")
        if contender.teacher is not None:
            if study.budget.kind == "minutes":
                where = document.place(("budget",))
                raise UserError(f"{where}: the budget of a study with a teacher is in flops or tokens.")
            for role, own in (("student", name), ("teacher", contender.teacher)):
                entry = next(entry for entry in study.entries() if entry.contender == own)
                if entry.recipe(study).objective_kind not in ("masked", "distill"):
                    where = document.place(("contenders", own))
                    raise UserError(f"{where}: a {role} is a masked model, and this recipe learns something else.")


def _check_baselines(study: Study, document: Document) -> None:
    """Check that every task has the baselines that are asked for, and that none has a contender's name."""
    for baseline in study.control.baselines:
        where = document.place(("control", "baselines"))
        if baseline in study.contenders:
            raise UserError(f"{where}: a contender is called '{baseline}' too; choose another name for it.")
        for name, task in study.tasks.items():
            if not supports(baseline, task.kind) or task.prompt is not None or task.direct:
                raise UserError(f"{where}: there is no baseline '{baseline}' for {name}. Leave it out.")


def _list_rivals(study: Study, name: str) -> list[str]:
    """List the contenders whose FLOPs say how long this one trains, directly or not."""
    rivals: list[str] = []
    pending = [name]
    while pending:
        contender = study.contenders.get(pending.pop())
        new = [rival for rival in contender.flops_of if rival not in rivals] if contender is not None else []
        rivals += new
        pending += new
    return rivals


def _check_trials(study: Study, document: Document) -> None:
    """Check that everybody is tuned by equally many trials, on tasks that there are."""
    trials = study.tune_pretraining
    counts = {
        name: sum(len(values) for values in contender.tune.values())
        for name, contender in study.contenders.items()
        if contender.recipe is not None
    }
    if trials is None:
        if name := next((name for name, count in counts.items() if count), None):
            where = document.place(("contenders", name, "tune"))
            raise UserError(f"{where}: settings are tried where the study has a section tune_pretraining.")
        return
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        where = document.place(("tune_pretraining",))
        raise UserError(f"{where}: contenders would have different numbers of trials beside the rate's ({listed}).")
    if len(set(trials.lr)) < len(trials.lr) or 1.0 not in trials.lr:
        where = document.place(("tune_pretraining", "lr"))
        raise UserError(f"{where}: lr lists multiples of each recipe's own rate, each once, 1 among them.")
    for name in trials.tasks:
        if name not in study.tasks:
            where = document.place(("tune_pretraining", "tasks"))
            raise UserError(f"{where}: '{name}' is no task of this study.{suggest_name(name, study.tasks)}")


def _check_transfers(study: Study, document: Document) -> None:
    """Check the settings of every transfer, so that no pre-training is spent before a misspelt one is met."""
    for name, task in study.tasks.items():
        for contender, settings in study.contenders.items():
            for tuned in [*study.tune_grid(), *study.tune_grid(is_control=True)]:
                changes = {**study.transfer, **task.set, **settings.transfer, **tuned}
                try:
                    check_settings(resolve_dataset(task.kind, {})[0], changes)
                except UserError as error:
                    own = ("tasks", name, "set"), ("contenders", contender, "transfer")
                    sections: tuple[tuple[str, ...], ...] = (*own, ("transfer",), ("tune",), ("control", "tune"))
                    paths = ((*section, key) for section in sections for key in changes if key in str(error))
                    place = next((document.places[path] for path in paths if path in document.places), "")
                    message = re.sub(r"^the override .*?: ", "", str(error))
                    raise UserError(f"{place or document.place(())}: {message}") from None
