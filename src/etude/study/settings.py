"""Schema of a study file: contenders, text, tasks, budget and claims.

    name: mlm-vs-electra
    text: {world: 3}                      # megabytes of the built-in town; or {files: [...]}, or {corpus: folder}
    budget: {flops: 2e11}                 # or tokens, or minutes; a list gives a curve
    contenders:
      bert: {recipe: bert-toy}
      electra: {recipe: electra-toy, set: {train.lr: 2e-3}}
      minilm: {run: runs/minilm}          # comes with its weights: a run, or a folder of transformers
    vary: {objective.mask_rate: [0.15, 0.4]}    # every contender once for every value
    tasks:
      topic: {kind: classify, world: topic, labels: [64, 256]}
    seeds: {pretrain: 3}
    claims:
      - {claim: ELECTRA beats masking, better: electra, than: bert, on: mean}
    gpu: {...}                            # sections that take the place of these with --gpu

Claims, their direction and the rule that settles them stand here, so they are there before the first cell runs.
Relative paths are looked for from where the command runs, those of tasks from `data` where it is given, here or by
`--data`; in a file with a `root`, such as the copy in a study's folder, from there (relative_paths.py).
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field

from etude.baselines.registry import supports
from etude.errors import UserError, suggest_name
from etude.recipes.datasets import resolve_dataset
from etude.recipes.document import Document, find_recipe, parse_file
from etude.recipes.schema import Recipe, validate_settings
from etude.runs.task_plan import check_settings, task_module
from etude.settings import Strict
from etude.study.relative_paths import locate_files
from etude.study.sections import (
    CONTROL,
    FROZEN,
    MAJORITY,
    MEAN,
    SETTINGS,
    SOURCES,
    Budget,
    Changes,
    Claim,
    Contender,
    Control,
    Localized,
    Needs,
    PretrainingTrials,
    Rule,
    Seeds,
    Task,
    Text,
    Values,
    format_value,
)  # fmt: skip


def _check_name(name: str) -> str:
    """A study's name is that of its folder: it must not lead out of the folder it is put into."""
    if not name.isprintable() or "/" in name or "\\" in name or name.startswith(".") or not 0 < len(name) <= 100:
        raise ValueError("a study's name is that of a folder: 1 to 100 printable characters, no slash, no dot in front")
    return name


class Study(Strict):
    name: Annotated[str, AfterValidator(_check_name)]
    title: Localized = ""
    question: Localized = ""
    paper: str = ""
    text: Text
    budget: Budget
    epochs: float = Field(default=20, gt=0, description="passes over the text at most, however cheap a model is")
    contenders: dict[str, Contender]
    set: Changes = Field(default_factory=dict, description="settings of everybody's recipe")
    vary: dict[str, Values] = Field(default_factory=dict)
    tasks: dict[str, Task]
    transfer: Changes = Field(default_factory=dict)
    tune: dict[str, Values] = Field(default_factory=dict, description="settings chosen on dev for each contender")
    tune_pretraining: PretrainingTrials | None = Field(default=None, description="chosen on dev for each contender")
    seeds: Seeds = Seeds()
    control: Control = Control()
    claims: list[Claim] = Field(default_factory=list)
    rule: Rule = Rule()
    needs: Needs = Needs()
    curve: int = Field(default=8, ge=1, description="evaluations on held-out text, for the learning curves")
    data: str | None = Field(
        default=None, description="folder that relative paths of tasks are looked for in; --data takes its place"
    )
    root: str | None = Field(
        default=None,
        description="folder that relative paths are looked for in, seen from this file's; else the working one",
    )

    # --- reading ------------------------------------------------------------------------------------

    @classmethod
    def load(cls, path: str | Path, gpu: bool = False, changes: Mapping[str, Any] | None = None) -> Self:
        """Load a file; `changes` as {"budget": {"flops": 1e12}, "seeds.pretrain": 1}, by name or dotted name."""
        file = Path(path)
        if file.suffix not in (".yaml", ".yml"):
            if file.is_dir() or (file.is_file() and not file.with_suffix(".yaml").is_file()):
                kind = "folder" if file.is_dir() else "file of another kind"
                raise UserError(
                    f"{file} is no study: it is a {kind}. Name its .yaml file, as in studies/mask-rate.yaml."
                )
            file = file.with_suffix(".yaml")
        absent = f"There is no study {file}. The shipped ones lie in studies/."
        return cls.from_document(parse_file(file, str(file), absent), gpu, changes, file.parent)

    @classmethod
    def from_document(
        cls, document: Document, gpu: bool = False, changes: Mapping[str, Any] | None = None, folder: Path = Path()
    ) -> Self:
        """Check a document; `folder` is that of its file, which a `root` is seen from."""
        values, places = dict(document.values), dict(document.places)
        gpu_section = values.pop("gpu", None)
        if gpu:
            if not isinstance(gpu_section, dict):
                where = document.place(())
                raise UserError(f"{where}: this study has no section 'gpu'. Run it without --gpu.")
            values |= gpu_section
            own_places = {path: place for path, place in places.items() if path[:1] and path[0] not in gpu_section}
            places = own_places | {path[1:]: place for path, place in places.items() if path[:1] == ("gpu",)}
        if changes and changes.get("data") is not None:
            values["data"] = changes["data"]  # tasks' paths are not those of a root then
        if isinstance(root := values.get("root"), str):
            values = {**locate_files(values, folder / root), "root": str(folder / root)}
        changed = Document(values, places)
        for name, value in (changes or {}).items():
            changed = _with_change(changed, _split_name(name), value)
        changed = _inherit_text(changed)
        study = _validate(cls, changed)
        _check_study(study, changed)
        return study

    # --- the grid -----------------------------------------------------------------------------------

    def entries(self) -> list[Entry]:
        """List every contender with every varied value; the budget is not part of it."""
        entries = []
        for name, contender in self.contenders.items():
            if contender.run is not None:  # nothing of it is varied
                entries.append(Entry(name, name, {}, contender.label or name))
                continue
            for values in itertools.product(*self.vary.values()):
                varied = dict(zip(self.vary, values, strict=True))
                parts = [f"{key.rpartition('.')[2]}={format_value(value)}" for key, value in varied.items()]
                label = contender.label or name
                if isinstance(label, str):
                    label = ", ".join([label, *parts])
                else:
                    label = {language: ", ".join([text, *parts]) for language, text in label.items()}
                entries.append(Entry(" ".join([name, *parts]), name, {**self.set, **contender.set, **varied}, label))
        names = [entry.name for entry in entries]
        duplicates = [name for number, name in enumerate(names) if name in names[:number]]
        if duplicates:
            raise UserError(f"'{duplicates[0]}' stands twice in what is varied. Name each value once.")
        return entries

    def controls(self) -> dict[str, str]:
        """Map each control to the contender whose model it uses."""
        with_recipe = [name for name, contender in self.contenders.items() if contender.recipe is not None]
        first = with_recipe[0]
        if self.control.of == "first":
            return {CONTROL: first}
        of = with_recipe if self.control.of == "all" else list(self.control.of)
        return {CONTROL: of[0]} if len(of) == 1 else {f"{CONTROL} ({name})": name for name in of}

    def scored_tasks(self) -> list[tuple[str, int | None]]:
        """List (task, labels) of every column."""
        return [(name, amount) for name, task in self.tasks.items() for amount in task.amounts]

    def tune_grid(self, is_control: bool = False) -> list[Changes]:
        """List the settings of transfers that are tried; of a control, with what is tried for it alone."""
        grid = {**self.tune, **(self.control.tune if is_control else {})}
        return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]

    def merge_transfer(self, task: str, contender: str, is_control: bool = False) -> Changes:
        """Merge what study, task and contender set for a transfer; dropout for everybody is not of a frozen model.

        is_control: For the baseline of this contender without pre-training, all of which learns.
        """
        own = self.contenders[contender].transfer
        merged = {**self.transfer, **self.tasks[task].set, **own}
        is_frozen = not is_control and (merged.get("transfer.frozen") or merged.get("transfer.probe"))
        if is_frozen and "transfer.dropout" not in own:
            merged.pop("transfer.dropout", None)
        return merged

    def dump(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude_defaults=True)


@dataclass(frozen=True)
class Entry:
    """One contender with its varied values."""

    name: str
    contender: str
    changes: Changes
    label: Localized

    def run(self, study: Study) -> str | None:
        """The run that it is, where it comes with its weights."""
        return study.contenders[self.contender].run

    def recipe(self, study: Study) -> Recipe:
        recipe = study.contenders[self.contender].recipe
        assert recipe is not None  # a run has its own
        loaded = Recipe.load(recipe, self.changes)
        if loaded.reads_graph:
            raise UserError(f"The contender {self.contender}: {recipe} learns from a graph, and a study reads text.")
        return loaded


def _split_name(name: str) -> tuple[str, ...]:
    """Split a dotted name; behind a group of settings (`set.train.lr`) the rest is one name."""
    parts = name.split(".")
    for number, part in enumerate(parts[:-1], 1):
        if part in SETTINGS:
            return (*parts[:number], ".".join(parts[number:]))
    return tuple(parts)


def _with_change(document: Document, path: tuple[str, ...], value: Any) -> Document:
    changed = Document(json.loads(json.dumps(document.values)), dict(document.places))
    changed.put(path, value, f"the change {'.'.join(path)}")
    return changed


def _inherit_text(document: Document) -> Document:
    """Merge the study's text into a contender's text that names no source of its own."""
    study_text, contenders = document.values.get("text"), document.values.get("contenders")
    if not isinstance(study_text, dict) or not isinstance(contenders, dict):
        return document
    inherited = dict(contenders)
    for name, contender in contenders.items():
        own_text = contender.get("text") if isinstance(contender, dict) else None
        if isinstance(own_text, dict) and not any(source in own_text for source in SOURCES):
            inherited[name] = {**contender, "text": {**study_text, **own_text}}
    return Document({**document.values, "contenders": inherited}, document.places)


def _validate(model: type[Study], document: Document) -> Any:
    """Validate a study section by section, so that a message names its line."""
    values = dict(document.values)
    if not values:
        raise UserError(f"{document.place(())}: this file is empty. A study has text, budget, contenders and tasks.")
    parts: dict[str, Any] = {"contenders": Contender, "tasks": Task}
    for group, kind in parts.items():
        inside = values.get(group)
        if not isinstance(inside, dict):
            continue
        for name, content in inside.items():
            if isinstance(content, str) and group == "contenders":
                content = inside[name] = {"recipe": content}
            if not isinstance(content, dict):
                raise UserError(f"{document.place((group, name))}: '{group}.{name}' holds no settings.")
            validate_settings(kind, content, document.rooted(f"{group}.{name}", (group, name)), f"{group}.{name}")
    for key in values:
        if key not in model.model_fields:
            known = suggest_name(key, model.model_fields)
            raise UserError(f"{document.place((key,))}: '{key}' is not a part of a study.{known}")
    for group in ("contenders", "tasks", "text", "budget"):
        if group not in values:
            raise UserError(f"{document.place(())}: this study names no {group}.")
    return validate_settings(model, values, document.rooted("study"), "study")


# --- checks before anything runs: a misspelt setting must not be met after a pre-training ---------------


def _check_study(study: Study, document: Document) -> None:
    """Check references between sections; errors name the line."""
    if not study.contenders or not study.tasks:
        raise UserError(f"{document.place(())}: a study needs contenders and tasks.")
    if all(contender.recipe is None for contender in study.contenders.values()):
        raise UserError(f"{document.place(('contenders',))}: at least one contender must have a recipe to pre-train.")
    for name, contender in study.contenders.items():
        try:
            if contender.recipe is not None:
                find_recipe(contender.recipe)
        except UserError as error:
            raise UserError(f"{document.place(('contenders', name, 'recipe'))}: {error}") from None
    entries, tasks = study.entries(), study.scored_tasks()
    for name in (CONTROL, FROZEN, MAJORITY):
        if name in study.contenders:
            raise UserError(
                f"{document.place(('contenders', name))}: '{name}' is there in every study; choose another name."
            )
    for name, task in study.tasks.items():
        if name == MEAN or Path(name).is_absolute() or ".." in Path(name).parts:
            where = document.place(("tasks", name))
            problem = f"all tasks together are called '{MEAN}'" if name == MEAN else "a folder is named by it"
            raise UserError(f"{where}: '{name}' cannot be the name of a task: {problem}. Choose another.")
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
    for entry in study.entries():
        for setting, values in study.contenders[entry.contender].tune.items():
            for value in values:
                try:
                    Recipe.load(str(study.contenders[entry.contender].recipe), {**entry.changes, setting: value})
                except UserError as error:
                    where = document.place(("contenders", entry.contender, "tune"))
                    raise UserError(f"{where}: {error}") from None


def _check_transfers(study: Study, document: Document) -> None:
    """Check the settings of every transfer, so that no pre-training is spent before a misspelt one is met."""
    for name, task in study.tasks.items():
        for contender in study.contenders:
            of_control = [{**study.control.set, **tuned} for tuned in study.tune_grid(is_control=True)]
            for tuned in [*study.tune_grid(), *of_control]:
                changes = {**study.merge_transfer(name, contender), **tuned}
                try:
                    check_settings(resolve_dataset(task.kind, {})[0], changes)
                except UserError as error:
                    own = ("tasks", name, "set"), ("contenders", contender, "transfer")
                    sections: tuple[tuple[str, ...], ...] = (
                        *own, ("transfer",), ("tune",), ("control", "tune"), ("control", "set"),
                    )  # fmt: skip
                    paths = ((*section, key) for section in sections for key in changes if key in str(error))
                    place = next((document.places[path] for path in paths if path in document.places), "")
                    message = re.sub(r"^the override .*?: ", "", str(error))
                    raise UserError(f"{place or document.place(())}: {message}") from None
