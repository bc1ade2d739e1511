"""Plan of a study: its cells with their cost, and which of them are cached.

Rows are contenders (at each budget) and baselines; columns are tasks with a number of labels. Every row is evaluated on
every column once per unit, a pair of pre-training seed and transfer seed. The baselines are always included:

    no pre-training   the same model from initial weights, trained on the labels alone, for longer
    random frozen     its initial weights, frozen, under the same head: what a head alone can do
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

from etude.pretraining.continued import StartWeights
from etude.recipes.schema import Recipe
from etude.study import cell_code
from etude.study.budget import (
    Cost,
    Machine,
    TrainingLength,
    compute_cost,
    compute_length,
    make_placeholder_corpus,
    resolve_minutes,
    stretch_schedule,
)
from etude.study.cells import Cell, CellStore
from etude.study.label_splits import TaskFiles, prepare_labels
from etude.study.settings import FROZEN, MAJORITY, Changes, Entry, Localized, Study
from etude.study.starts import open_start
from etude.study.text_source import TextSource, hash_json
from etude.text.corpus.corpus import Corpus

EVALUATIONS = 10  # on dev in a transfer, where the study does not say: the best of them is taken
TRANSFER_OVERHEAD = 1.5  # seconds that a transfer takes beside its steps: reading, building, saving, predicting
LENGTHS = ("train.epochs", "train.steps", "train.tokens", "train.flops")
RowKind = Literal["contender", "start", "control", "frozen", "majority"]
Unit = tuple[int, int]


@dataclass(frozen=True)
class Draft:
    """A contender before its budget is turned into steps."""

    entry: Entry
    recipe: Recipe
    corpus: Corpus | None
    cost: Cost
    corpus_folder: Path
    start: StartWeights | None = None  # where it comes with its weights

    @property
    def fingerprint(self) -> str:
        return f"not prepared yet: {self.corpus_folder.name}" if self.corpus is None else self.corpus.fingerprint

    @cached_property
    def transfer_defaults(self) -> dict[bool, dict[str, Any]]:
        """Default settings of a transfer, by whether the model is frozen."""
        with torch.device("meta"):
            model = self.recipe.build_model()
        return {frozen: model.transfer_defaults(frozen) for frozen in (False, True)}


@dataclass(frozen=True)
class Row:
    name: str  # unique: the entry, and its budget where there are several
    kind: RowKind
    label: Localized
    draft: Draft | None  # whose model it is; none for the majority
    amount: float | None = None  # of the budget
    recipe: Recipe | None = None  # stretched to it, seed 0
    length: TrainingLength | None = None


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
    source: TextSource
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
    def store(self) -> CellStore:
        return CellStore(self.folder / "cells")

    @property
    def columns(self) -> list[Column]:
        return [Column(task, labels) for task, labels in self.study.scored_tasks()]

    @property
    def units(self) -> list[Unit]:
        seeds = self.study.seeds
        return [(first, second) for first in range(seeds.pretrain) for second in range(seeds.transfer)]

    @cached_property
    def files(self) -> dict[str, TaskFiles]:
        with_recipe = next(entry for entry in self.study.entries() if entry.run(self.study) is None)
        first = with_recipe.recipe(self.study).tokenizer
        return {name: prepare_labels(self.study, name, self.source, first, self.data) for name in self.study.tasks}

    def tokens_per_second(self, draft: Draft) -> float:
        """Return tokens per second; infinite (unmeasured) in a real GPU run, where a trial would first compile."""
        if self.machine.device.startswith("cuda") and not self.dry:
            return math.inf
        if draft.entry.name not in self.speeds:
            self.speeds[draft.entry.name] = self.machine.tokens_per_second(draft.recipe, draft.corpus)
        return self.speeds[draft.entry.name]

    def pending_cells(self) -> list[Cell]:
        """List the cells that are not done."""
        return [cell for cell in self.cells.values() if self.store.state(cell.key) != "done"]


def make_plan(
    study: Study,
    folder: Path,
    *,
    data: Path | None = None,
    device: str | None = None,
    dry: bool = False,
    keep: bool = False,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Plan:
    """Plan the whole grid. Prepares the corpora first; a dry run estimates those that do not exist."""
    machine = Machine(folder / "machine.json", device)
    plan = Plan(study, folder, machine, TextSource(study.text, folder), data, keep, dry)
    entries = study.entries()
    drafts = [_make_draft(plan, entry, dry, on_progress) for entry in entries if entry.run(study) is None]
    amounts = study.budget.amounts
    for amount in amounts:
        for draft in drafts:
            plan.rows.append(_make_row(plan, draft, drafts, amount, has_curve=len(amounts) > 1))
    for entry in entries:
        if (run := entry.run(study)) is not None:
            plan.rows.append(Row(entry.name, "start", entry.label, _draft_start(plan, entry, run)))
    drafted = {draft.entry.contender: draft for draft in reversed(drafts)}
    for name, contender in study.controls().items():
        draft = drafted[contender]
        plan.rows.append(Row(name, "control", _localize_baseline(name), draft))
    plan.rows.append(Row(FROZEN, "frozen", _localize_baseline(FROZEN), drafts[0]))
    plan.rows.append(Row(MAJORITY, "majority", _localize_baseline(MAJORITY), None))
    for cell in _list_cells(plan):
        plan.cells.setdefault(cell.key, cell)
    return plan


BASELINE_NAMES: dict[str, str] = {
    "no pre-training": "사전 학습 없음", FROZEN: "고정된 무작위 인코더", MAJORITY: "최빈값",
}  # fmt: skip


def _localize_baseline(name: str) -> Localized:
    for english, korean in BASELINE_NAMES.items():
        if name.startswith(english):
            return {"en": name, "ko": name.replace(english, korean)}
    return name


# --- who trains how long ----------------------------------------------------------------------------


def _make_draft(plan: Plan, entry: Entry, dry: bool, on_progress: Callable[[str], None]) -> Draft:
    recipe, own_text = entry.recipe(plan.study), plan.study.contenders[entry.contender].text
    source = TextSource(own_text, plan.folder) if own_text is not None else plan.source
    ready = source.is_ready(recipe.tokenizer)
    corpus = source.open_corpus(recipe.tokenizer, on_progress) if ready or not dry else None
    similar = corpus or source.find_similar(recipe.tokenizer)
    resolved = plan.machine.fit_recipe(recipe.resolve(vocab=similar.tokenizer.vocab if similar else None))
    place = source.corpus_folder(recipe.tokenizer)
    if corpus is not None:
        return Draft(entry, resolved, corpus, compute_cost(resolved, corpus), place)
    if similar is not None:
        similar_cost = compute_cost(resolved, similar)
        cost = replace(similar_cost, epoch_tokens=int(similar_cost.epoch_tokens * source.text.share))
        return Draft(entry, resolved, None, cost, place)
    plan.exact = False
    cost = compute_cost(resolved, make_placeholder_corpus(resolved))
    tokens = int(source.size / 4)  # about, for pieces of words
    return Draft(entry, resolved, None, replace(cost, epoch_tokens=tokens), place)


def _draft_start(plan: Plan, entry: Entry, run: str) -> Draft:
    start = open_start(run)
    recipe = plan.machine.fit_recipe(start.recipe.with_settings({"train.steps": 1}))
    return Draft(entry, recipe, None, compute_cost(recipe, make_placeholder_corpus(recipe)), start.folder, start)


def _make_row(plan: Plan, draft: Draft, drafts: list[Draft], amount: float, has_curve: bool) -> Row:
    study, kind = plan.study, plan.study.budget.kind
    is_timed = draft.cost.updates_itself or kind == "minutes"
    if is_timed:
        minutes = resolve_minutes(lambda: _gradient_seconds(plan, drafts, amount), amount, kind)
        speed = plan.machine.tokens_per_second(draft.recipe, draft.corpus)
        length = compute_length(draft.recipe, draft.cost, "minutes", minutes, study.epochs, speed)
        length = replace(length, by_clock=kind != "minutes")
    else:
        length = compute_length(draft.recipe, draft.cost, kind, amount, study.epochs, None)
    recipe = stretch_schedule(draft.recipe, draft.cost, length, study.curve)
    name = f"{draft.entry.name} @ {format_budget(kind, amount)}" if has_curve else draft.entry.name
    return Row(name, "contender", draft.entry.label, draft, amount, recipe, length)


def _gradient_seconds(plan: Plan, drafts: list[Draft], amount: float) -> list[float]:
    """Estimate the seconds of each contender that learns by gradients."""
    seconds = []
    for draft in drafts:
        if not draft.cost.updates_itself:
            length = compute_length(draft.recipe, draft.cost, plan.study.budget.kind, amount, plan.study.epochs, None)
            seconds.append(length.tokens / plan.machine.tokens_per_second(draft.recipe, draft.corpus))
    return seconds


def format_budget(kind: str, amount: float) -> str:
    if kind == "minutes":
        return f"{amount:g} min"
    return f"{format_scientific(amount)} {'FLOPs' if kind == 'flops' else kind}"


def format_scientific(value: float) -> str:
    """Format a number as 2 × 10¹¹."""
    if not value:
        return "0"
    power = math.floor(math.log10(abs(value)) + 1e-9)
    if abs(power) < 4:
        return f"{value:.3g}"
    exponent = str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    mantissa = f"{value / 10**power:.3g}"
    return f"10{exponent}" if mantissa == "1" else f"{mantissa} × 10{exponent}"


# --- cells ------------------------------------------------------------------------------------------


def _list_cells(plan: Plan) -> Iterator[Cell]:
    """Yield the cells seed by seed, so that an interrupted study has complete seeds."""
    for seed in range(plan.study.seeds.pretrain):
        for row in plan.rows:
            base: Cell | None = None
            if row.draft is not None:
                base = _base_cell(plan, row, row.draft, seed)
                plan.bases[row.name, seed] = base.key
                yield base
            for second in range(plan.study.seeds.transfer):
                for column in plan.columns:
                    for number, tuned in enumerate(plan.study.tune_grid() if row.kind != "majority" else [{}]):
                        cell = _transfer_cell(plan, row, column, (seed, second), tuned, base)
                        plan.trials[row.name, column.name, number, (seed, second)] = cell.key
                        yield cell


def _base_cell(plan: Plan, row: Row, draft: Draft, seed: int) -> Cell:
    """Plan the pre-training of a row; of a baseline, its initial weights; of a start, the copy of its run."""
    if row.kind == "start":
        assert draft.start is not None
        return Cell(
            key=hash_json(["start", draft.start.fingerprint, cell_code.start()]),
            kind="start",
            title=f"weights of {row.name}",
            arguments={"run": str(draft.start.folder)},
            position={"row": row.name, "seed": seed},
            seconds=1.0,
            needs=_cell_needs(plan),
        )
    is_trained = row.recipe is not None
    recipe = (row.recipe or draft.recipe.with_settings({"train.steps": 1})).with_settings({"train.seed": seed})
    kind: Literal["pretrain", "untrained"] = "pretrain" if is_trained else "untrained"
    code = (cell_code.pretraining if is_trained else cell_code.initial_weights)(
        recipe.model_kind, recipe.objective_kind
    )
    return Cell(
        key=hash_json([kind, _key_settings(recipe), draft.fingerprint, code, torch.__version__]),
        kind=kind,
        title=f"pre-training {row.name}, seed {seed}"
        if is_trained
        else f"first weights of {draft.entry.name}, seed {seed}",
        arguments={"recipe": recipe.dump(), "corpus": str(draft.corpus_folder)},
        position={"row": row.name, "seed": seed},
        flops=row.length.flops if row.length else 0.0,
        seconds=row.length.tokens / plan.tokens_per_second(draft) if row.length else 0.2,
        needs=_cell_needs(plan),
    )


def _key_settings(recipe: Recipe) -> dict[str, Any]:
    """Return the settings that a result depends on: not names, notes or when checkpoints are saved."""
    train = recipe.train.model_dump(mode="json")
    for name in ("save_every", "keep", "tensorboard", "log_every", "workers"):
        train.pop(name)
    return {
        "model": [recipe.model_kind, recipe.model.model_dump(mode="json")],
        "objective": [recipe.objective_kind, recipe.objective.model_dump(mode="json")],
        "train": train,
    }


def _transfer_cell(plan: Plan, row: Row, column: Column, unit: Unit, tuned: Changes, base: Cell | None) -> Cell:
    task, files = plan.study.tasks[column.task], plan.files[column.task]
    unit_number = unit[0] * plan.study.seeds.transfer + unit[1]  # drawn labels and heads differ from unit to unit
    # the drawn labels are drawn evenly, so the majority is that of all there are
    train = files.write_train(column.labels if base is not None else None, unit_number)
    examples = train.read_bytes().count(b"\n")
    settings = _transfer_settings(plan, row, column, tuned, examples, unit_number)
    kind: Literal["majority", "transfer"] = "majority" if base is None else "transfer"
    if row.draft is None:
        code = cell_code.majority(task.kind)
    else:
        code = cell_code.transfer(row.draft.recipe.model_kind, row.draft.recipe.objective_kind, task.kind)
    data_hashes = [_hash_file(path, path.stat().st_mtime_ns) for path in (train, files.dev, files.test)]
    key_settings = {
        name: value
        for name, value in settings.items()
        if (name.startswith("task.") if base is None else name != "train.save_every")
    }
    key = hash_json([kind, base.key if base else None, task.kind, key_settings, task.columns, data_hashes, code])
    arguments: dict[str, Any] = {
        "base": base.key if base else None, "task": task.kind, "train": str(train), "dev": str(files.dev),
        "test": str(files.test), "columns": task.columns, "settings": settings, "keep": plan.keep,
    }  # fmt: skip
    flops, seconds = _estimate_transfer(plan, row, settings, train, files)
    suffix = f", {', '.join(f'{name}={value}' for name, value in tuned.items())}" if tuned else ""
    return Cell(
        key=key,
        kind=kind,
        title=f"{row.name} on {column.name}, seed {unit[0]}.{unit[1]}{suffix}",
        arguments=arguments,
        position={"row": row.name, "column": column.name, "unit": list(unit), "tuned": tuned},
        depends_on=base.key if base else None,
        flops=flops,
        seconds=seconds,
        needs=_cell_needs(plan),
    )


def _cell_needs(plan: Plan) -> dict[str, float]:
    needs = plan.study.needs
    gpus = needs.gpus if needs.gpus is not None else float(plan.machine.device.startswith("cuda"))
    return {"cpus": needs.cpus, "gpus": gpus}


def _transfer_settings(plan: Plan, row: Row, column: Column, tuned: Changes, examples: int, seed: int) -> Changes:
    """Merge the settings of a transfer: study, task, contender, tuning, then the kind of row."""
    study = plan.study
    settings: Changes = {**study.transfer, **study.tasks[column.task].set}
    if row.draft is not None:
        settings |= study.contenders[row.draft.entry.contender].transfer
    settings |= tuned
    if row.kind == "frozen":
        settings |= {"transfer.frozen": True}
        for name in ("train.lr", "train.epochs", "transfer.freeze", "train.layer_decay"):
            settings.pop(name, None)  # those of fine-tuning; a head on features has usual values of its own
    if row.kind == "control":
        settings.pop("transfer.frozen", None)
        if study.control.epochs is not None:
            settings = {name: value for name, value in settings.items() if name not in LENGTHS}
            settings["train.epochs"] = study.control.epochs
        settings |= study.control.set
    settings = {"train.precision": plan.machine.precision, **settings}  # a study may ask for its own
    settings |= {"train.seed": seed, "train.device": plan.machine.device}
    if row.draft is not None and "train.eval_every" not in settings:
        defaults = row.draft.transfer_defaults[bool(settings.get("transfer.frozen"))]
        batch = settings.get("train.batch_examples", defaults["batch_examples"])
        steps = settings.get("train.steps")
        if not any(name in settings for name in ("train.steps", "train.tokens", "train.flops")):
            steps = math.ceil(settings.get("train.epochs", defaults["epochs"]) * examples / batch)
        if steps is not None:
            settings["train.eval_every"] = max(1, math.ceil(steps / EVALUATIONS))
    # by default a checkpoint is saved every epoch, and with few labels that is every third step
    if "train.eval_every" in settings:
        settings.setdefault("train.save_every", settings["train.eval_every"])
    return settings


def _estimate_transfer(plan: Plan, row: Row, settings: Changes, train: Path, files: TaskFiles) -> tuple[float, float]:
    """Estimate (FLOPs, seconds) of a transfer: four bytes per token, half of a record being text."""
    if row.draft is None:
        return 0.0, 0.2
    frozen = bool(settings.get("transfer.frozen"))
    epochs = settings.get("train.epochs", row.draft.transfer_defaults[frozen]["epochs"])
    if "train.steps" in settings:
        examples = max(1, train.read_bytes().count(b"\n"))
        epochs = settings["train.steps"] * settings.get("train.batch_examples", 32) / examples
    train_tokens, dev_tokens, test_tokens = (path.stat().st_size / 8 for path in (train, files.dev, files.test))
    tokens = train_tokens * (1 if frozen else epochs)
    evaluated = (dev_tokens * (1 if frozen else EVALUATIONS) + test_tokens) / 3
    return tokens * row.draft.cost.flops_per_token, (tokens + evaluated) / plan.tokens_per_second(
        row.draft
    ) + TRANSFER_OVERHEAD


@cache
def _hash_file(path: Path, modified: int) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
