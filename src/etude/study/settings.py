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
Relative paths are looked for from where the command runs, those of tasks from `--data` where it is given.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field

from etude.errors import UserError, suggest_name
from etude.recipes.document import Document, parse_file
from etude.recipes.schema import Recipe, validate_settings
from etude.settings import Strict
from etude.study.checks import check_study
from etude.study.sections import (
    CONTROL,
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
    vary: dict[str, list[Any]] = Field(default_factory=dict)
    tasks: dict[str, Task]
    transfer: Changes = Field(default_factory=dict)
    tune: dict[str, list[Any]] = Field(default_factory=dict, description="settings chosen on dev for each contender")
    tune_pretraining: PretrainingTrials | None = Field(default=None, description="chosen on dev for each contender")
    seeds: Seeds = Seeds()
    control: Control = Control()
    claims: list[Claim] = Field(default_factory=list)
    rule: Rule = Rule()
    needs: Needs = Needs()
    curve: int = Field(default=8, ge=1, description="evaluations on held-out text, for the learning curves")

    # --- reading ------------------------------------------------------------------------------------

    @classmethod
    def load(cls, path: str | Path, gpu: bool = False, changes: Mapping[str, Any] | None = None) -> Self:
        """Load a file; `changes` as {"budget": {"flops": 1e12}, "seeds.pretrain": 1}, by name or dotted name."""
        file = Path(path)
        if file.suffix not in (".yaml", ".yml"):
            file = file.with_suffix(".yaml")
        absent = f"There is no study {file}. The shipped ones lie in studies/."
        return cls.from_document(parse_file(file, str(file), absent), gpu, changes)

    @classmethod
    def from_document(cls, document: Document, gpu: bool = False, changes: Mapping[str, Any] | None = None) -> Self:
        values, places = dict(document.values), dict(document.places)
        gpu_section = values.pop("gpu", None)
        if gpu:
            if not isinstance(gpu_section, dict):
                where = document.place(())
                raise UserError(f"{where}: this study has no section 'gpu'. Run it without --gpu.")
            values |= gpu_section
            own_places = {path: place for path, place in places.items() if path[:1] and path[0] not in gpu_section}
            places = own_places | {path[1:]: place for path, place in places.items() if path[:1] == ("gpu",)}
        changed = Document(values, places)
        for name, value in (changes or {}).items():
            changed = _with_change(changed, _split_name(name), value)
        changed = _inherit_text(changed)
        study = _validate(cls, changed)
        check_study(study, changed)
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
        duplicates = [entry.name for number, entry in enumerate(entries) if entry in entries[:number]]
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
