"""What a fine-tuning leaves: a run that does a task, or the runs of a suite."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from etude.inference.predictor import Inputs
from etude.inference.task_model import TaskModel
from etude.notebook import render_card, render_facts
from etude.runs.run import Run
from etude.runs.task_plan import Plan
from etude.tasks.bootstrap import Score
from etude.transfer.trials import SearchResult, Trial, read_result


@dataclass(frozen=True)
class TaskRun(Run):
    """A fine-tuned run. Its model is opened when it is first used, and once."""

    @cached_property
    def model(self) -> TaskModel:
        return TaskModel.open(self.folder)

    @property
    def scores(self) -> dict[str, dict[str, Any]]:
        """Official scores on dev, with intervals; of several seeds those of the best one. None without a dev file."""
        return Plan.read(self.folder).scores

    @cached_property
    def search(self) -> SearchResult | None:
        """The trials of several seeds or values, with mean and deviation of the best setting; None of a single run."""
        return read_result(self.folder)

    @property
    def trials(self) -> list[Trial]:
        """Each trial with its settings, its seed and its official score on dev; none of a single run."""
        return [] if self.search is None else self.search.trials

    @property
    def mean(self) -> float | None:
        """The official score on dev, the mean over the seeds of the best setting; None of a single run."""
        return None if self.search is None else self.search.mean

    @property
    def deviation(self) -> float | None:
        """The standard deviation over those seeds; None where there was one."""
        return None if self.search is None else self.search.deviation

    def _repr_html_(self) -> str:
        """The run in a notebook: the task, its scores on dev, its loss."""
        plan = Plan.read(self.folder)
        scores = [(name, str(Score(**score))) for name, score in plan.scores.items()]
        facts = [*self.describe(), ("task", plan.kind), ("learnt from", plan.examples.path)]
        if self.search is not None and self.deviation is not None:
            facts.append((f"{self.search.score}, all seeds", f"{self.mean:.4f} ± {self.deviation:.4f}"))
        return render_card(str(self.folder), render_facts(facts), render_facts(scores), self.render_loss())

    def predict(self, inputs: Inputs) -> list[dict[str, Any]]:
        """One answer an input, in their order: texts, records, rows of a table, or examples that were read."""
        return self.model.predict(inputs)

    def evaluate(self, examples: str | Path | Inputs, intervals: bool = True) -> dict[str, Score]:
        """The official scores on a file of labelled examples, or on records of them or a table."""
        return self.model.evaluate(examples, intervals)


@dataclass(frozen=True)
class SuiteRun:
    """The runs of a suite, each in a folder of its own."""

    folder: Path
    results: dict[str, Any] | None  # None: stopped before the end

    @property
    def finished(self) -> bool:
        return self.results is not None
