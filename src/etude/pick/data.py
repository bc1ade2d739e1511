"""The labelled examples of a pick: which are chosen on, which are only scored on, which the final model learns from.

Examples that a score is reported from are set aside first: the user's test file, or a stratified share of the labels.
Contenders are compared on the rest, by cross-validation or on the user's dev file. The final model learns from all
labels; only a test file that the user gave is never learnt from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from etude.errors import UserError
from etude.pick.labels import Labelled
from etude.pick.splits import REPEATS, Fold, hold_out, make_folds, plan_folds
from etude.runs.task_plan import task_module
from etude.tasks.base import Answers, Scoring
from etude.tasks.data.examples import Examples
from etude.tasks.data.single_labels import RIGHT_COLUMN
from etude.tasks.outcomes import Outcome

HELD_OUT = 0.2  # of the labels, where no test file is given


@dataclass(frozen=True)
class PickData:
    labelled: Labelled  # all examples: those of train, then dev, then test
    chosen_on: np.ndarray  # numbers of the examples that contenders learn from and are compared on
    scored_on: np.ndarray  # set aside: nothing is chosen on them
    refit_on: np.ndarray  # all that the final model learns from
    folds: list[Fold]  # repeat after repeat
    repeat: int  # folds in which every example is validated once
    planned: int  # folds that every cheap contender is given; the others settle ties, where there is time
    settings: Any  # of the task
    has_test: bool  # whether the examples set aside are the user's test file
    dev_examples: int = 0  # of the user's dev file, on which contenders are compared where there is one

    @classmethod
    def build(
        cls, train: Labelled, dev: Labelled | None, test: Labelled | None, settings: Any, share: float, seed: int
    ) -> PickData:
        joined, count = train, len(train)
        dev_numbers = test_numbers = np.zeros(0, np.int64)
        if dev is not None:
            dev_numbers = np.arange(len(joined), len(joined) + len(dev))
            joined = joined.join(dev)
        if test is not None:
            test_numbers = np.arange(len(joined), len(joined) + len(test))
            joined = joined.join(test)
            chosen_on = np.arange(count)
        else:
            chosen_on, test_numbers = hold_out(train, share, seed)
        if dev is not None:
            folds, count_folds, planned = [Fold(chosen_on, dev_numbers)], 1, 1
        else:
            inner = train.take(chosen_on)
            most_folds, repeats = plan_folds(len(inner), len(inner.classes))
            parts = _make_filled_folds(inner, most_folds, seed)
            count_folds = len(parts) // (REPEATS if most_folds > 1 else 1)
            folds = [Fold(chosen_on[fold.train], chosen_on[fold.valid]) for fold in parts]
            planned = count_folds * repeats
        if not len(test_numbers) or not folds:
            raise UserError(
                f"{train.examples.source}: too few labels have two examples or more, and what stands once cannot be "
                f"scored: give more examples of each label. {RIGHT_COLUMN}"
            )
        learnt = np.concatenate([chosen_on, dev_numbers])
        refit_on = learnt if test is not None else np.sort(np.concatenate([learnt, test_numbers]))
        return cls(
            joined, learnt, test_numbers, refit_on, folds, count_folds, planned, settings, test is not None,
            len(dev_numbers),
        )  # fmt: skip

    def examples(self, numbers: Iterable[int]) -> Examples[Any]:
        return self.labelled.examples.part(numbers)

    def write(self, numbers: np.ndarray, folder: Path) -> Path:
        """Write some of the records as a file that fine-tuning reads; returns its path."""
        return self.labelled.take(numbers).write(folder / "examples.jsonl")

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the examples in their order, and of how they are read."""
        content = hashlib.blake2b(digest_size=16)
        content.update(json.dumps([self.labelled.kind, self.labelled.columns]).encode())
        content.update(self.settings.model_dump_json().encode())
        content.update(json.dumps(sorted(self.settings.model_fields_set)).encode())  # given ones win over a recipe's
        for record in self.labelled.records:
            content.update(json.dumps(record, sort_keys=True, default=str).encode())
        return content.hexdigest()

    @cached_property
    def gold(self) -> list[str | None]:
        """The one class of each example; None where a task has no classes, or several an example."""
        return [next(iter(classes)) if len(classes) == 1 else None for classes in self.labelled.strata]

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What models know of the labels they learn from (their names), the same for every fold.

        Nothing of a test file: its mean of values or the tags that only it has are not for a model to know.
        """
        return task_module(self.labelled.kind).learn(self.examples(self.refit_on), self.settings)

    @cached_property
    def scoring(self) -> Scoring[Any]:
        kind = task_module(self.labelled.kind)
        return kind.scoring(self.settings, kind.learn(self.labelled.examples, self.settings))

    def outcome(self, numbers: np.ndarray, answers: Answers) -> Outcome:
        """Per-example numbers of answers, whose sums give the official score."""
        return self.scoring.outcome(self.examples(numbers), answers)


def _make_filled_folds(labelled: Labelled, count: int, seed: int) -> list[Fold]:
    """Folds that all have something to validate on: fewer where most labels stand once; [] where there are none."""
    for number in range(count, min(count, 2) - 1, -1):
        folds = make_folds(labelled, number, REPEATS if number > 1 else 1, seed)
        if all(len(fold.valid) for fold in folds):
            return folds
    return []
