"""From a study to its cells: who trains how long on what, which cells there already are, what the rest will cost.

Rows are contenders (at each budget) and what they are held against; columns are tasks with a number of labels. Every
row meets every column once a unit, a pre-training seed and a transfer seed. The baselines are always there:

    no pre-training   the same model from its first weights, trained on the labels alone, for longer
    random frozen     its first weights, never trained, under the same head: what a head alone can do
    majority          no model: the most frequent answer
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

import torch

from etude.recipes.schema import Recipe
from etude.study import cell_code
from etude.study.budget import Cost, Length, Machine, clock, cost, invented, length, stretched
from etude.study.cells import Cell, Store
from etude.study.label_splits import Labelled, labelled
from etude.study.settings import FROZEN, MAJORITY, Changes, Entry, Study, Words
from etude.study.text_source import Source, digest
from etude.text.corpus.corpus import Corpus

EVALUATIONS = 10  # on dev in a transfer, where the study does not say: the best of them is taken
START = 1.5  # seconds that a transfer takes beside its steps: reading, building, saving, predicting
LENGTHS = ("train.epochs", "train.steps", "train.tokens", "train.flops")
RowKind = Literal["contender", "control", "frozen", "majority"]
Unit = tuple[int, int]


@dataclass(frozen=True)
class Draft:
    """A contender before its budget is turned into steps."""

    entry: Entry
    recipe: Recipe
    corpus: Corpus | None
    cost: Cost
    place: Path

    @property
    def fingerprint(self) -> str:
        return f"not prepared yet: {self.place.name}" if self.corpus is None else self.corpus.fingerprint

    @cached_property
    def usual(self) -> dict[bool, dict[str, Any]]:
        """What a transfer does unless told otherwise: frozen or not -> its settings."""
        with torch.device("meta"):
            model = self.recipe.build_model()
        return {frozen: model.transfer_defaults(frozen) for frozen in (False, True)}


@dataclass(frozen=True)
class Row:
    name: str  # unique: the entry, and its budget where there are several
    kind: RowKind
    label: Words
    draft: Draft | None  # whose model it is; none for the majority
    amount: float | None = None  # of the budget
    recipe: Recipe | None = None  # stretched to it, seed 0
    length: Length | None = None


@dataclass(frozen=True)
class Column:
    task: str
    labels: int | None

    @property
    def name(self) -> str:
        return self.task if self.labels is None else f"{self.task}@{self.labels}"


@dataclass
class Plan:
    study: Study
    folder: Path
    machine: Machine
    source: Source
    data: Path | None = None
    keep: bool = False  # the weights of transfers too
    dry: bool = False
    exact: bool = True  # False in a dry run without corpora: costs are estimates on a made-up text
    speeds: dict[str, float] = field(default_factory=dict)  # tokens a second, by entry
    rows: list[Row] = field(default_factory=list)
    cells: dict[str, Cell] = field(default_factory=dict)
    bases: dict[tuple[str, int], str] = field(default_factory=dict)  # (row, pre-training seed) -> cell
    trials: dict[tuple[str, str, int, Unit], str] = field(default_factory=dict)  # (row, column, tuned, unit) -> cell

    @property
    def store(self) -> Store:
        return Store(self.folder / "cells")

    @property
    def columns(self) -> list[Column]:
        return [Column(task, labels) for task, labels in self.study.fields()]

    @property
    def units(self) -> list[Unit]:
        seeds = self.study.seeds
        return [(first, second) for first in range(seeds.pretrain) for second in range(seeds.transfer)]

    @cached_property
    def files(self) -> dict[str, Labelled]:
        first = self.study.entries()[0].recipe(self.study).tokenizer
        return {name: labelled(self.study, name, self.source, first, self.data) for name in self.study.tasks}

    def speed(self, draft: Draft) -> float:
        """Tokens a second; unmeasured (infinite) on a GPU in earnest, where a trial would first compile."""
        if self.machine.device.startswith("cuda") and not self.dry:
            return math.inf
        if draft.entry.name not in self.speeds:
            self.speeds[draft.entry.name] = self.machine.speed(draft.recipe, draft.corpus)
        return self.speeds[draft.entry.name]

    def waiting(self) -> list[Cell]:
        """What is not done yet."""
        return [cell for cell in self.cells.values() if self.store.state(cell.key) != "done"]


def make(
    study: Study,
    folder: Path,
    *,
    data: Path | None = None,
    device: str | None = None,
    dry: bool = False,
    keep: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Plan:
    """The whole grid. Prepares the corpora first; a dry run goes without those that are not there."""
    machine = Machine(folder / "machine.json", device)
    plan = Plan(study, folder, machine, Source(study.text, folder), data, keep, dry)
    drafts = [_draft(plan, entry, dry, say) for entry in study.entries()]
    amounts = study.budget.amounts
    for amount in amounts:
        for draft in drafts:
            plan.rows.append(_row(plan, draft, drafts, amount, many=len(amounts) > 1))
    drafted = {draft.entry.contender: draft for draft in reversed(drafts)}
    for name, contender in study.controls().items():
        draft = drafted[contender]
        plan.rows.append(Row(name, "control", _named(name), draft))
    plan.rows.append(Row(FROZEN, "frozen", _named(FROZEN), drafts[0]))
    plan.rows.append(Row(MAJORITY, "majority", _named(MAJORITY), None))
    for cell in _cells(plan):
        plan.cells.setdefault(cell.key, cell)
    return plan


NAMES: dict[str, str] = {
    "no pre-training": "사전 학습 없음", FROZEN: "고정된 무작위 인코더", MAJORITY: "최빈값",
}  # fmt: skip


def _named(name: str) -> Words:
    for english, korean in NAMES.items():
        if name.startswith(english):
            return {"en": name, "ko": name.replace(english, korean)}
    return name


# --- who trains how long ----------------------------------------------------------------------------


def _draft(plan: Plan, entry: Entry, dry: bool, say: Callable[[str], None]) -> Draft:
    recipe, own = entry.recipe(plan.study), plan.study.contenders[entry.contender].text
    source = Source(own, plan.folder) if own is not None else plan.source
    ready = source.ready(recipe.tokenizer)
    corpus = source.corpus(recipe.tokenizer, say) if ready or not dry else None
    like = corpus or source.like(recipe.tokenizer)
    resolved = plan.machine.recipe(recipe.resolve(vocab=like.tokenizer.vocab if like else None))
    place = source.place(recipe.tokenizer)
    if corpus is not None:
        return Draft(entry, resolved, corpus, cost(resolved, corpus), place)
    if like is not None:
        known = cost(resolved, like)
        part = replace(known, epoch_tokens=int(known.epoch_tokens * source.text.share))
        return Draft(entry, resolved, None, part, place)
    plan.exact = False
    found = cost(resolved, invented(resolved))
    tokens = int(source.bytes / 4)  # about, for pieces of words
    return Draft(entry, resolved, None, replace(found, epoch_tokens=tokens), place)


def _row(plan: Plan, draft: Draft, drafts: list[Draft], amount: float, many: bool) -> Row:
    study, kind = plan.study, plan.study.budget.kind
    own_clock = draft.cost.own_update or kind == "minutes"
    if own_clock:
        minutes = clock(lambda: _seconds(plan, drafts, amount), amount, kind)
        speed = plan.machine.speed(draft.recipe, draft.corpus)
        found = length(draft.recipe, draft.cost, "minutes", minutes, study.epochs, speed)
        found = replace(found, by_clock=kind != "minutes")
    else:
        found = length(draft.recipe, draft.cost, kind, amount, study.epochs, None)
    recipe = stretched(draft.recipe, draft.cost, found, study.curve)
    name = f"{draft.entry.name} @ {shown_amount(kind, amount)}" if many else draft.entry.name
    return Row(name, "contender", draft.entry.label, draft, amount, recipe, found)


def _seconds(plan: Plan, drafts: list[Draft], amount: float) -> list[float]:
    """What the contenders that learn by gradients will take."""
    found = []
    for draft in drafts:
        if not draft.cost.own_update:
            how_long = length(draft.recipe, draft.cost, plan.study.budget.kind, amount, plan.study.epochs, None)
            found.append(how_long.tokens / plan.machine.speed(draft.recipe, draft.corpus))
    return found


def shown_amount(kind: str, amount: float) -> str:
    if kind == "minutes":
        return f"{amount:g} min"
    return f"{power(amount)} {'FLOPs' if kind == 'flops' else kind}"


def power(value: float) -> str:
    """2 × 10¹¹, as people write it."""
    if not value:
        return "0"
    digits = math.floor(math.log10(abs(value)) + 1e-9)
    if abs(digits) < 4:
        return f"{value:.3g}"
    raised = str(digits).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    front = f"{value / 10**digits:.3g}"
    return f"10{raised}" if front == "1" else f"{front} × 10{raised}"


# --- cells ------------------------------------------------------------------------------------------


def _cells(plan: Plan) -> Iterator[Cell]:
    """Seed by seed, so that a study that is stopped has something whole to show."""
    for seed in range(plan.study.seeds.pretrain):
        for row in plan.rows:
            base: Cell | None = None
            if row.draft is not None:
                base = _base(plan, row, row.draft, seed)
                plan.bases[row.name, seed] = base.key
                yield base
            for second in range(plan.study.seeds.transfer):
                for column in plan.columns:
                    for number, tuned in enumerate(plan.study.tuned() if row.kind != "majority" else [{}]):
                        cell = _trial(plan, row, column, (seed, second), tuned, base)
                        plan.trials[row.name, column.name, number, (seed, second)] = cell.key
                        yield cell


def _base(plan: Plan, row: Row, draft: Draft, seed: int) -> Cell:
    """Its pre-training; of a baseline, the first weights."""
    trained = row.recipe is not None
    recipe = (row.recipe or draft.recipe.with_settings({"train.steps": 1})).with_settings({"train.seed": seed})
    kind: Literal["pretrain", "untrained"] = "pretrain" if trained else "untrained"
    made_by = (cell_code.pretraining if trained else cell_code.initial_weights)(
        recipe.model_kind, recipe.objective_kind
    )
    return Cell(
        key=digest([kind, _settled(recipe), draft.fingerprint, made_by, torch.__version__]),
        kind=kind,
        title=f"pre-training {row.name}, seed {seed}"
        if trained
        else f"first weights of {draft.entry.name}, seed {seed}",
        order={"recipe": recipe.dump(), "corpus": str(draft.place)},
        place={"row": row.name, "seed": seed},
        flops=row.length.flops if row.length else 0.0,
        seconds=row.length.tokens / plan.speed(draft) if row.length else 0.2,
        needs=_needs(plan),
    )


def _settled(recipe: Recipe) -> dict[str, Any]:
    """All of a resolved recipe that a result depends on: not its name and notes, nor when it saves."""
    train = recipe.train.model_dump(mode="json")
    for name in ("save_every", "keep", "tensorboard", "log_every", "workers"):
        train.pop(name)
    return {
        "model": [recipe.model_kind, recipe.model.model_dump(mode="json")],
        "objective": [recipe.objective_kind, recipe.objective.model_dump(mode="json")],
        "train": train,
    }


def _trial(plan: Plan, row: Row, column: Column, unit: Unit, tuned: Changes, base: Cell | None) -> Cell:
    task, files = plan.study.tasks[column.task], plan.files[column.task]
    number = unit[0] * plan.study.seeds.transfer + unit[1]  # drawn labels and heads differ from unit to unit
    # the drawn labels are drawn evenly, so the majority is that of all there are
    train = files.train(column.labels if base is not None else None, number)
    examples = train.read_bytes().count(b"\n")
    settings = _settings(plan, row, column, tuned, examples, number)
    kind: Literal["majority", "transfer"] = "majority" if base is None else "transfer"
    if row.draft is None:
        made_by = cell_code.majority(task.kind)
    else:
        made_by = cell_code.transfer(row.draft.recipe.model_kind, row.draft.recipe.objective_kind, task.kind)
    content = [_hash(path, path.stat().st_mtime_ns) for path in (train, files.dev, files.test)]
    own = {
        name: value
        for name, value in settings.items()
        if (name.startswith("task.") if base is None else name != "train.save_every")
    }
    key = digest([kind, base.key if base else None, task.kind, own, task.columns, content, made_by])
    order: dict[str, Any] = {
        "base": base.key if base else None, "task": task.kind, "train": str(train), "dev": str(files.dev),
        "test": str(files.test), "columns": task.columns, "settings": settings, "keep": plan.keep,
    }  # fmt: skip
    flops, seconds = _transfer_cost(plan, row, settings, train, files)
    extra = f", {', '.join(f'{name}={value}' for name, value in tuned.items())}" if tuned else ""
    return Cell(
        key=key,
        kind=kind,
        title=f"{row.name} on {column.name}, seed {unit[0]}.{unit[1]}{extra}",
        order=order,
        place={"row": row.name, "column": column.name, "unit": list(unit), "tuned": tuned},
        after=base.key if base else None,
        flops=flops,
        seconds=seconds,
        needs=_needs(plan),
    )


def _needs(plan: Plan) -> dict[str, float]:
    needs = plan.study.needs
    gpus = needs.gpus if needs.gpus is not None else float(plan.machine.device.startswith("cuda"))
    return {"cpus": needs.cpus, "gpus": gpus}


def _settings(plan: Plan, row: Row, column: Column, tuned: Changes, examples: int, seed: int) -> Changes:
    """Of one transfer: the study's, the task's, the contender's, then what the row is."""
    study = plan.study
    found: Changes = {**study.transfer, **study.tasks[column.task].set}
    if row.draft is not None:
        found |= study.contenders[row.draft.entry.contender].transfer
    found |= tuned
    if row.kind == "frozen":
        found |= {"transfer.frozen": True}
        for name in ("train.lr", "train.epochs", "transfer.freeze", "train.layer_decay"):
            found.pop(name, None)  # those of fine-tuning; a head on features has usual values of its own
    if row.kind == "control":
        found.pop("transfer.frozen", None)
        if study.control.epochs is not None:
            found = {name: value for name, value in found.items() if name not in LENGTHS}
            found["train.epochs"] = study.control.epochs
        found |= study.control.set
    found = {"train.precision": plan.machine.precision, **found}  # a study may ask for its own
    found |= {"train.seed": seed, "train.device": plan.machine.device}
    if row.draft is not None and "train.eval_every" not in found:
        usual = row.draft.usual[bool(found.get("transfer.frozen"))]
        batch = found.get("train.batch_examples", usual["batch_examples"])
        steps = found.get("train.steps")
        if not any(name in found for name in ("train.steps", "train.tokens", "train.flops")):
            steps = math.ceil(found.get("train.epochs", usual["epochs"]) * examples / batch)
        if steps is not None:
            found["train.eval_every"] = max(1, math.ceil(steps / EVALUATIONS))
    if "train.eval_every" in found:  # usual is every pass over the labels, which are few: a checkpoint every third step
        found.setdefault("train.save_every", found["train.eval_every"])
    return found


def _transfer_cost(plan: Plan, row: Row, settings: Changes, train: Path, files: Labelled) -> tuple[float, float]:
    """(FLOPs, seconds) of a transfer, about: four bytes a token, half of a record being text."""
    if row.draft is None:
        return 0.0, 0.2
    frozen = bool(settings.get("transfer.frozen"))
    passes = settings.get("train.epochs", row.draft.usual[frozen]["epochs"])
    if "train.steps" in settings:
        examples = max(1, train.read_bytes().count(b"\n"))
        passes = settings["train.steps"] * settings.get("train.batch_examples", 32) / examples
    learnt, chosen, told = (path.stat().st_size / 8 for path in (train, files.dev, files.test))
    tokens = learnt * (1 if frozen else passes)
    looking = (chosen * (1 if frozen else EVALUATIONS) + told) / 3
    return tokens * row.draft.cost.flops_per_token, (tokens + looking) / plan.speed(row.draft) + START


@cache
def _hash(path: Path, changed: int) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
