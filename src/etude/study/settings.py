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
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from etude.baselines.registry import supports
from etude.errors import UserError, suggest_name
from etude.recipes.datasets import resolve_dataset
from etude.recipes.document import Document, parse_file
from etude.recipes.schema import Recipe, validate_settings
from etude.runs.task_plan import check_settings, task_module
from etude.settings import Strict
from etude.study.prompts import TaskPrompt

Localized = str | dict[str, str]  # one text, or one for each language of the report
Positive = Annotated[float, Field(gt=0)]
Changes = dict[str, Any]  # {"train.lr": 3e-4}

MEAN = "mean"  # of all tasks
SOURCES = ("world", "files", "corpus")  # of a text
SETTINGS = ("set", "transfer", "tune", "vary")  # groups whose keys are settings by their full names
CONTROL = "no pre-training"
FROZEN = "random frozen"
MAJORITY = "majority"


class Text(Strict):
    """Exactly one of world, files and corpus."""

    world: Positive | None = Field(default=None, description="megabytes of text about the built-in town")
    language: Literal["en", "ko", "both"] = Field(default="en", description="of the town; both: documents in turn")
    seed: int = 0
    files: list[str] | None = None
    corpus: str | None = Field(default=None, description="a prepared corpus: its tokenizer is everybody's")
    valid: float = Field(default=0.02, gt=0, lt=1, description="share of documents held out")
    where: str | None = Field(default=None, description="keeps records by their fields: score>=3")
    pairs: str | None = Field(default=None, description="source and target, en,ko: pairs to learn translation from")
    share: float = Field(default=1.0, gt=0, le=1, description="of the documents of files or a corpus that are read")
    noise: float = Field(default=0.0, ge=0, le=1, description="of the documents that are read, their words shuffled")
    pseudo_words: int = Field(default=0, ge=0, description="pairs of words merged into one (altered_corpus.py)")

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if sum(value is not None for value in (self.world, self.files, self.corpus)) != 1:
            raise ValueError("a text is either world (megabytes), files (a list), or corpus (a prepared folder)")
        if self.world is not None and (self.share < 1 or self.pseudo_words):
            raise ValueError("share and pseudo_words are for files and corpora: the world has megabytes and homonyms")
        if self.pairs is not None and (self.share < 1 or self.noise or self.pseudo_words):
            raise ValueError("pairs stay as they are: leave out share, noise and pseudo_words")
        if self.pairs is not None and self.world is not None and set(self.pairs.split(",")) != {"en", "ko"}:
            raise ValueError("the pairs of the world are en,ko or ko,en")
        return self


class Budget(Strict):
    """Exactly one kind, equal for everybody; a list of amounts gives a curve."""

    flops: list[Positive] | Positive | None = None
    tokens: list[Positive] | Positive | None = None
    minutes: list[Positive] | Positive | None = None

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if sum(value is not None for value in (self.flops, self.tokens, self.minutes)) != 1:
            raise ValueError("a budget is exactly one of flops, tokens and minutes")
        return self

    @property
    def kind(self) -> Literal["flops", "tokens", "minutes"]:
        return "flops" if self.flops is not None else "tokens" if self.tokens is not None else "minutes"

    @property
    def amounts(self) -> list[float]:
        amounts = getattr(self, self.kind)
        return sorted({float(amount) for amount in (amounts if isinstance(amounts, list) else [amounts])})


class Contender(Strict):
    """A recipe to pre-train within the budget, or a run that comes with its weights (study/starts.py)."""

    recipe: str | None = None
    run: str | None = Field(default=None, description="a finished run, or a folder of transformers: no pre-training")
    start: str | None = Field(default=None, description="a run whose weights its pre-training begins with")
    entities: str | None = Field(default=None, description="a run of a graph embedding, for a recipe like ernie")
    set: Changes = Field(default_factory=dict)
    transfer: Changes = Field(default_factory=dict, description="settings of its transfers, over those of the study")
    label: Localized | None = None
    text: Text | None = Field(default=None, description="its own; one without a source changes the study's")
    teacher: str | None = Field(default=None, description="a contender that it learns from, seed by seed: distillation")
    flops_of: list[str] = Field(
        default_factory=list, description="contenders: it may spend what they spend together, in place of the budget"
    )
    tune: dict[str, list[Any]] = Field(
        default_factory=dict, description="settings of its pre-training that are tried after the learning rate"
    )
    epochs: Positive | None = Field(
        default=None, description="passes over the text, in place of the budget: of word vectors, which need few FLOPs"
    )

    @model_validator(mode="after")
    def _check_origin(self) -> Self:
        if (self.recipe is None) == (self.run is None):
            raise ValueError("a contender has exactly one of recipe (to pre-train) and run (that comes with weights)")
        if self.run is not None and (self.set or self.text or self.tune or self.start or self.entities or self.epochs):
            raise ValueError("a run is trained already: set, text, tune, start, entities and epochs are for recipes")
        if self.run is not None and (self.teacher or self.flops_of):
            raise ValueError("a run is trained already: teacher and flops_of are for recipes")
        if self.teacher is not None and (self.start or self.entities or self.text):
            raise ValueError("a student reads its teacher's text, and has new weights or its: leave out start and text")
        if self.epochs is not None and self.flops_of:
            raise ValueError("epochs and flops_of both say how long it trains: leave one out")
        return self


class Task(Strict):
    """Labelled examples: from the world, from files, or made from held-out sentences."""

    kind: str
    world: str | None = Field(default=None, description="a task of the built-in town")
    made: Literal["next", "order", "sense"] | None = Field(default=None, description="from held-out documents")
    train: str | None = None
    dev: str | None = Field(default=None, description="chosen on; a fifth of train if there is none")
    test: str | None = Field(default=None, description="reported; half of dev if there is none")
    columns: dict[str, str] = Field(default_factory=dict)
    prompt: TaskPrompt | None = Field(default=None, description="asked as a prompt: nothing is learnt (prompts.py)")
    direct: bool = Field(default=False, description="translation: a run of pairs answers as it is, nothing is learnt")
    labels: list[int] | int | None = Field(default=None, description="labelled examples to learn from; all if None")
    dev_size: int | None = Field(default=None, ge=2, description="examples chosen on; 200 of the world, all of a file")
    test_size: int | None = Field(
        default=None, ge=2, description="examples reported on; 500 of the world, all of a file"
    )
    set: Changes = Field(default_factory=dict, description="settings of its transfers")
    label: Localized | None = None

    @model_validator(mode="after")
    def _check_examples(self) -> Self:
        if sum(value is not None for value in (self.world, self.made, self.train)) != 1:
            raise ValueError("a task has its examples from one of world, made and train")
        if self.direct and self.prompt is not None:
            raise ValueError("direct and prompt are two ways to answer without learning: leave one out")
        if self.direct and self.labels is not None:
            raise ValueError("direct learns from no labels: leave one of the two out")
        if self.train is None and self.labels is None and not self.direct:
            raise ValueError("how many examples of the world are learnt from is said by labels")
        return self

    @property
    def amounts(self) -> list[int | None]:
        if self.labels is None:
            return [None]
        return sorted(set(self.labels)) if isinstance(self.labels, list) else [self.labels]  # type: ignore[return-value]


class Seeds(Strict):
    pretrain: int = Field(default=1, ge=1)
    transfer: int = Field(default=1, ge=1, description="for every pre-trained run")


class PretrainingTrials(Strict):
    """Short pre-trainings of every contender, from which its settings are chosen on dev before the cells run.

    The learning rate comes first, then the settings that a contender names under `tune`, one after the other.
    Everybody has the same number of trials.
    """

    lr: list[Positive] = Field(default=[0.5, 1.0, 2.0], description="multiples of each recipe's own rate; 1 is in it")
    share: float = Field(default=0.1, gt=0, le=1, description="of the largest budget, for each trial")
    tasks: list[str] = Field(default_factory=list, description="whose dev scores decide, by their mean; all if empty")
    seeds: int = Field(default=1, ge=1, description="pre-training seeds of a trial, none of them a seed of the study")


class Control(Strict):
    """Baseline without pre-training: the same models trained on the labels alone."""

    of: list[str] | Literal["first", "all"] = Field(default="first", description="whose model is taken")
    epochs: int | None = Field(default=None, ge=1, description="over the labels; as many as everybody's if None")
    set: Changes = Field(default_factory=dict)
    tune: dict[str, list[Any]] = Field(
        default_factory=dict,
        description="settings chosen on dev for it alone: new weights want other rates",
    )
    baselines: list[Literal["tfidf", "ngrams"]] = Field(
        default_factory=list, description="linear models of plain text, as rows of their own (baselines/registry.py)"
    )


class Claim(Strict):
    claim: Localized
    better: str
    than: str
    on: str = Field(default=MEAN, description="a task, task@labels, or mean: of all tasks")
    margin: float = Field(default=0.0, description="by more than this; below 0: not worse by more than that")
    paper: str = ""


class Rule(Strict):
    """When a claim holds: the difference is beyond the margin in the stated direction with p below 1 - interval, over
    pre-training seeds and examples together, after the correction for the number of claims. It fails where all that is
    so in the other direction; otherwise it is not settled at this budget."""

    interval: float = Field(default=0.95, gt=0.5, lt=1)
    over: Literal["seeds and examples", "examples"] = Field(
        default="seeds and examples", description="examples: about these runs, not about other seeds of the methods"
    )
    seeds: Literal["all", "ignored"] = Field(default="ignored", description="all: every seed must agree, too")
    correction: Literal["holm", "none"] = "holm"
    looks: list[int] = Field(
        default_factory=list,
        description="numbers of pre-training seeds at which claims are judged, planned beforehand; one look if empty",
    )
    deviation: float = Field(default=0.02, gt=0, description="of seeds, guessed for the plan where no cell is done")

    def error_at(self, seeds: int) -> float:
        """Return the error that is spent at the look with so many seeds: by the share of seeds that are new to it."""
        error = 1 - self.interval
        if not self.looks:
            return error
        before = max((look for look in self.looks if look < seeds), default=0)
        return error * (seeds - before) / self.looks[-1]


class Needs(Strict):
    """Of one cell, for a cluster."""

    cpus: float = Field(default=1, gt=0)
    gpus: float | None = Field(default=None, ge=0, description="a whole one where there is any, unless given")


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
        study._check(changed)
        return study

    def _check(self, document: Document) -> None:
        """Check references between sections; errors name the line."""
        if not self.contenders or not self.tasks:
            raise UserError(f"{document.place(())}: a study needs contenders and tasks.")
        if all(contender.recipe is None for contender in self.contenders.values()):
            raise UserError(
                f"{document.place(('contenders',))}: at least one contender must have a recipe to pre-train."
            )
        entries, tasks = self.entries(), self.scored_tasks()
        for name in (CONTROL, FROZEN, MAJORITY):
            if name in self.contenders:
                raise UserError(
                    f"{document.place(('contenders', name))}: '{name}' is there in every study; choose another name."
                )
        for name, task in self.tasks.items():
            try:
                task_module(task.kind)
            except UserError as error:
                raise UserError(f"{document.place(('tasks', name, 'kind'))}: {error}") from None
            self._check_direct(document, name, task)
            self._check_prompt(document, name, task)
            if task.made == "sense" and not self.text.pseudo_words:
                where = document.place(("tasks", name, "made"))
                raise UserError(f"{where}: senses are those of pseudo-words: set text.pseudo_words, such as 20.")
        row_names = [entry.name for entry in entries] + [*self.controls(), *self.control.baselines, FROZEN, MAJORITY]
        task_names = [MEAN, *self.tasks, *(f"{task}@{labels}" for task, labels in tasks if labels is not None)]
        for number, claim in enumerate(self.claims):
            for key, reference, known in (
                ("better", claim.better, row_names), ("than", claim.than, row_names), ("on", claim.on, task_names),
            ):  # fmt: skip
                if reference not in known:
                    where = document.place(("claims", str(number), key))
                    raise UserError(f"{where}: '{reference}' is not in this study.{suggest_name(reference, known)}")
        looks = self.rule.looks
        if looks and (looks != sorted(set(looks)) or looks[0] < 2):
            where = document.place(("rule", "looks"))
            raise UserError(f"{where}: looks are numbers of seeds, two or more, each larger than the one before.")
        if looks and self.seeds.pretrain not in looks:
            planned = ", ".join(map(str, looks))
            where = document.place(("seeds", "pretrain"))
            raise UserError(f"{where}: {self.seeds.pretrain} pre-training seeds are no planned look ({planned}).")
        self._check_trials(document)
        self._check_transfers(document)
        self._check_teachers(document)
        self._check_baselines(document)
        for name in self.control.of if isinstance(self.control.of, list) else []:
            if name not in self.contenders:
                where = document.place(("control", "of"))
                raise UserError(f"{where}: '{name}' is no contender.{suggest_name(name, self.contenders)}")
            if self.contenders[name].recipe is None:
                where = document.place(("control", "of"))
                raise UserError(f"{where}: '{name}' is a run, which comes with its weights: name one with a recipe.")

    def _check_direct(self, document: Document, name: str, task: Task) -> None:
        """Check that what answers directly was trained to: recipes of translation, for the kind translate."""
        if not task.direct:
            return
        if task.kind != "translate":
            where = document.place(("tasks", name, "direct"))
            raise UserError(f"{where}: only translation has runs that answer as they are, not {task.kind}.")
        for entry in self.entries():
            if entry.run(self) is None and entry.recipe(self).objective_kind != "translate":
                where = document.place(("contenders", entry.contender))
                raise UserError(f"{where}: {name} asks for runs that translate, and this recipe learns something else.")

    def _check_prompt(self, document: Document, name: str, task: Task) -> None:
        """Check that what is asked can be put in words, and that everybody goes on with a text."""
        if task.prompt is None:
            return
        try:
            task.prompt.check(task.kind, task.columns)
        except UserError as error:
            raise UserError(f"{document.place(('tasks', name, 'prompt'))}: {error}") from None
        for entry in self.entries():
            if entry.run(self) is None and entry.recipe(self).objective_kind != "causal":
                where = document.place(("contenders", entry.contender))
                raise UserError(f"{where}: {name} is asked as a prompt, and only a causal model goes on with a text.")

    def _check_teachers(self, document: Document) -> None:
        """Check that teachers and contenders whose FLOPs are spent are in the study, and that teachers are masked."""
        for name, contender in self.contenders.items():
            for key, references in (("teacher", [contender.teacher] if contender.teacher else []),
                                    ("flops_of", contender.flops_of)):  # fmt: skip
                for reference in references:
                    where = document.place(("contenders", name, key))
                    if reference not in self.contenders or reference == name:
                        known = [other for other in self.contenders if other != name]
                        hint = suggest_name(reference, known)
                        raise UserError(f"{where}: '{reference}' is no other contender of this study.{hint}")
                    rival = self.contenders[reference]
                    if rival.recipe is None or (key == "teacher" and rival.teacher is not None):
                        raise UserError(f"{where}: '{reference}' must be pre-trained here, without a teacher itself.")
                    if key == "flops_of" and name in self._rivals(reference):
                        raise UserError(f"{where}: {name} and {reference} would each wait for what the other spends.")
                    if self.vary:
                        raise UserError(f"{where}: where settings are varied, '{reference}' is several contenders.")
            if contender.teacher is not None:
                if self.budget.kind == "minutes":
                    where = document.place(("budget",))
                    raise UserError(f"{where}: the budget of a study with a teacher is in flops or tokens.")
                for role, own in (("student", name), ("teacher", contender.teacher)):
                    entry = next(entry for entry in self.entries() if entry.contender == own)
                    if entry.recipe(self).objective_kind not in ("masked", "distill"):
                        where = document.place(("contenders", own))
                        raise UserError(f"{where}: a {role} is a masked model, and this recipe learns something else.")

    def _check_baselines(self, document: Document) -> None:
        """Check that every task has the baselines that are asked for, and that none has a contender's name."""
        for baseline in self.control.baselines:
            where = document.place(("control", "baselines"))
            if baseline in self.contenders:
                raise UserError(f"{where}: a contender is called '{baseline}' too; choose another name for it.")
            for name, task in self.tasks.items():
                if not supports(baseline, task.kind) or task.prompt is not None or task.direct:
                    raise UserError(f"{where}: there is no baseline '{baseline}' for {name}. Leave it out.")

    def _rivals(self, name: str) -> list[str]:
        """List the contenders whose FLOPs say how long this one trains, directly or not."""
        rivals: list[str] = []
        pending = [name]
        while pending:
            contender = self.contenders.get(pending.pop())
            new = [rival for rival in contender.flops_of if rival not in rivals] if contender is not None else []
            rivals += new
            pending += new
        return rivals

    def _check_trials(self, document: Document) -> None:
        """Check that everybody is tuned by equally many trials, on tasks that there are."""
        trials = self.tune_pretraining
        counts = {
            name: sum(len(values) for values in contender.tune.values())
            for name, contender in self.contenders.items()
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
            if name not in self.tasks:
                where = document.place(("tune_pretraining", "tasks"))
                raise UserError(f"{where}: '{name}' is no task of this study.{suggest_name(name, self.tasks)}")

    def _check_transfers(self, document: Document) -> None:
        """Check the settings of every transfer, so that no pre-training is spent before a misspelt one is met."""
        for name, task in self.tasks.items():
            for contender, settings in self.contenders.items():
                for tuned in [*self.tune_grid(), *self.tune_grid(is_control=True)]:
                    changes = {**self.transfer, **task.set, **settings.transfer, **tuned}
                    try:
                        check_settings(resolve_dataset(task.kind, {})[0], changes)
                    except UserError as error:
                        own = ("tasks", name, "set"), ("contenders", contender, "transfer")
                        sections: tuple[tuple[str, ...], ...] = (*own, ("transfer",), ("tune",), ("control", "tune"))
                        paths = ((*section, key) for section in sections for key in changes if key in str(error))
                        place = next((document.places[path] for path in paths if path in document.places), "")
                        message = re.sub(r"^the override .*?: ", "", str(error))
                        raise UserError(f"{place or document.place(())}: {message}") from None

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


def format_value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value)


def localize(text: Localized, language: str) -> str:
    if isinstance(text, str):
        return text
    return text.get(language) or text.get("en") or next(iter(text.values()), "")


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
