"""A saved baseline for inference: predictions and scores, as a fine-tuned run has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, Self

from etude.baselines.base import Baseline
from etude.baselines.export import export_baseline
from etude.baselines.registry import load
from etude.errors import UserError
from etude.inference.lacking import BASELINE_USE, LackingMethodError, LacksGraph, LacksText
from etude.inference.predictor import Predictor
from etude.tasks.base import Answer, Scoring, TaskKind
from etude.tasks.data.examples import Examples


@dataclass(frozen=True, repr=False)
class BaselineModel(Predictor, LacksText, LacksGraph):
    """A baseline, opened from its folder."""

    folder: Path
    baseline: Baseline[Any]

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        return cls(Path(folder), load(folder))

    def refuse(self, method: str) -> NoReturn:
        raise LackingMethodError(
            f"{self.folder} is a baseline and has no hidden states, so it has no {method}: {BASELINE_USE}."
        )

    @property
    def kind(self) -> str:
        return self.baseline.task.kind

    @property
    def module(self) -> TaskKind:
        return self.baseline.task.module

    @property
    def columns(self) -> Mapping[str, str]:
        return self.baseline.task.columns

    @property
    def scoring(self) -> Scoring[Any]:
        return self.baseline.task.scoring

    def with_columns(self, columns: Mapping[str, str]) -> Self:
        return replace(self, baseline=self.baseline.with_columns(columns))

    def export(self, out: str | Path) -> Path:
        """Write a folder that predicts with numpy alone. See etude.baselines.export."""
        export_baseline(self.folder, out)
        return Path(out)

    def answer(self, examples: Examples[Any]) -> list[Answer]:
        return self.baseline.predict(examples)

    def admit(self, examples: Examples[Any]) -> Examples[Any]:
        try:
            self.scoring.check_gold(examples)
            return examples
        except UserError as error:
            first = error
        good, messages = [], []
        for number in range(len(examples)):
            try:
                self.scoring.check_gold(examples.part([number]))
                good.append(number)
            except UserError as error:
                messages.append(str(error))
        if not good:
            raise first
        admitted = examples.part(good)
        admitted.bad = [*examples.bad, *messages]
        return admitted
