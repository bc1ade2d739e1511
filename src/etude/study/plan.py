"""Plan of a study: its rows, columns and cells, and which of them are cached.

Rows are contenders (at each budget) and baselines; columns are tasks with a number of labels. Every row is evaluated on
every column once per unit, a pair of pre-training seed and transfer seed. The baselines are always included:

    no pre-training   the same model from initial weights, trained on the labels alone, for longer
    random frozen     its initial weights, frozen, under the same head: what a head alone can do
    majority          no model: the most frequent answer

and, where a study asks for them, linear models of plain text (tf-idf, n-grams), which need no pre-training.

How a plan is made: planner.py. Its cells: plan_cells.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from etude.pretraining.continued import StartWeights
from etude.pretraining.first_weights import FirstWeights
from etude.recipes.model_memory import shapes_only
from etude.recipes.schema import Recipe
from etude.study.budget import GPU_FLOPS, Cost, Machine, TrainingLength
from etude.study.cells import Cell, CellStore
from etude.study.label_splits import TaskFiles, prepare_labels
from etude.study.sections import Changes, Localized
from etude.study.settings import Entry, Study
from etude.study.text_source import TextSource
from etude.text.corpus.corpus import Corpus

RowKind = Literal["contender", "start", "control", "frozen", "baseline", "majority", "trial"]
Unit = tuple[int, int]


@dataclass(frozen=True)
class Draft:
    """A contender before its budget is turned into steps."""

    entry: Entry
    recipe: Recipe
    corpus: Corpus | None
    cost: Cost
    corpus_folder: Path | str  # a URL of a corpus in a store
    start: StartWeights | None = None  # where it comes with its weights
    first: FirstWeights | None = None  # where its pre-training begins with weights from elsewhere
    teacher: Draft | None = None  # where it learns from another contender

    @property
    def fingerprint(self) -> str:
        return f"not prepared yet: {Path(self.corpus_folder).name}" if self.corpus is None else self.corpus.fingerprint

    @cached_property
    def transfer_defaults(self) -> dict[bool, dict[str, Any]]:
        """Default settings of a transfer, by whether the model is frozen."""
        with shapes_only():
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
    teacher: Row | None = None  # the contender that it learns from, at its full length


@dataclass(frozen=True)
class Column:
    task: str
    labels: int | None

    @property
    def name(self) -> str:
        return self.task if self.labels is None else f"{self.task}@{self.labels}"


@dataclass(frozen=True)
class Trial:
    """One value of one setting of a pre-training: the cells it is judged by (tuning.py)."""

    setting: str
    value: Any
    is_own: bool  # the recipe's own value
    bases: tuple[str, ...]  # keys of cells, one a seed
    transfers: tuple[str, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        return self.bases + self.transfers


@dataclass(frozen=True)
class FullRuns:
    """The study's own pre-trainings of a contender at one rate (stability.py)."""

    rate: float
    keys: tuple[str, ...]  # one a seed of the first look


@dataclass
class Tuning:
    """The trials of one contender so far, setting by setting, and what they chose."""

    entry: str
    trials: list[Trial] = field(default_factory=list)
    chosen: Changes = field(default_factory=dict)
    at_end: list[str] = field(default_factory=list)  # settings whose chosen value is the first or last of its list
    is_uncorrected: bool = False  # Adam without bias correction: the shorter a run, the longer are its steps
    is_pending: bool = False
    waits: bool = False  # for the trials of its teacher
    tried: list[FullRuns] = field(default_factory=list)  # rates of whole runs, from the chosen one down (stability.py)
    chosen_index: int = 0  # of those tried: the runs that the study has
    has_lower: bool = False  # a lower one was tried in trials
    ended: int = 0  # whole runs that had ended when the plan was made

    @property
    def rejected(self) -> list[FullRuns]:
        """Whole runs that the study does not have: what they cost is counted with the trials."""
        return [runs for index, runs in enumerate(self.tried) if index != self.chosen_index]

    @property
    def given_up(self) -> list[FullRuns]:
        """Those at rates above the one that the study has."""
        return self.tried[: self.chosen_index]


@dataclass
class Plan:
    study: Study
    folder: Path
    machine: Machine
    source: TextSource
    keep: bool = False  # the weights of transfers too
    dry: bool = False
    exact: bool = True  # False in a dry run without corpora: costs are estimates on a made-up text
    # settings_key -> finished cell of whichever version; empty where only this version counts
    done_before: dict[str, str] = field(default_factory=dict)
    speeds: dict[str, float] = field(default_factory=dict)  # tokens a second, by entry
    rows: list[Row] = field(default_factory=list)
    cells: dict[str, Cell] = field(default_factory=dict)
    bases: dict[tuple[str, int], str] = field(default_factory=dict)  # (row, pre-training seed) -> cell
    trials: dict[tuple[str, str, int, Unit], str] = field(default_factory=dict)  # (row, column, tuned, unit) -> cell
    tuning_cells: dict[str, Cell] = field(default_factory=dict)  # of trials of pre-training (tuning.py)
    tunings: dict[str, Tuning] = field(default_factory=dict)  # by entry

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
        return {name: prepare_labels(self.study, name, self.source, first) for name in self.study.tasks}

    def tokens_per_second(self, draft: Draft) -> float:
        """Return tokens per second; of a GPU a guess by FLOPs, since a trial would first compile."""
        if self.machine.device.startswith("cuda"):
            return GPU_FLOPS / draft.cost.flops_per_token if draft.cost.flops_per_token else math.inf
        if draft.teacher is not None:  # a trial knows no teacher: at the teacher's speed in FLOPs
            speed = self.tokens_per_second(draft.teacher)
            return speed * draft.teacher.cost.flops_per_token / draft.cost.flops_per_token
        if draft.entry.name not in self.speeds:
            self.speeds[draft.entry.name] = self.machine.tokens_per_second(draft.recipe, draft.corpus)
        return self.speeds[draft.entry.name]

    def tune_grid(self, row: Row) -> list[Changes]:
        """List the settings of its transfers that are tried on dev; [{}] where nothing is to be tried."""
        has_settings = row.kind not in ("majority", "baseline")
        return self.study.tune_grid(row.kind == "control") if has_settings else [{}]

    def pending_cells(self) -> list[Cell]:
        """List the cells that are not done."""
        return [cell for cell in self.cells.values() if self.store.state(cell.key) != "done"]

    @property
    def untuned(self) -> list[str]:
        """The contenders whose trials are not all done."""
        return [name for name, tuning in self.tunings.items() if tuning.is_pending]

    def is_waiting(self, row: Row) -> bool:
        """Whether the settings of a row are not chosen yet."""
        return row.kind != "trial" and row.draft is not None and row.draft.entry.name in self.untuned

    def ready_cells(self) -> list[Cell]:
        """List the cells that may run: while trials are left to run, only theirs."""
        return list((self.tuning_cells if self.untuned else self.cells).values())


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
