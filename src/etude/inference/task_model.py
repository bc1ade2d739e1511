"""Fine-tuned models for inference: predictions and scores, whatever the task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from etude.errors import UserError, quote_path
from etude.hub.run_weights import refuse_other_tokenizer
from etude.hub.weights import read_safetensors
from etude.inference.predictor import Predictor
from etude.models.base import Model, require
from etude.models.layer_features import LayerFeatures
from etude.runs.run import Run
from etude.runs.task_plan import Plan
from etude.tasks.base import Answer, Answers, ErrorExample, Scoring, Task, TaskKind
from etude.tasks.data.examples import Examples
from etude.tasks.distilled_task import task_weights
from etude.tasks.example_filter import admit_examples
from etude.text.run_checksums import verify_checksums
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.train import checkpoint


@dataclass(frozen=True, repr=False)
class TaskModel(Predictor):
    """A fine-tuned model with its task, opened from a run."""

    folder: Path
    plan: Plan
    model: Model
    task: Task
    tokenizer: Tokenizer

    @classmethod
    def open(cls, folder: str | Path, device: str | None = None) -> TaskModel:
        """Open a finished run, or the last checkpoint of an unfinished one."""
        run = Run.open(folder)
        if run.finished:
            verify_checksums(run.folder)
        plan = Plan.read(run.folder)
        model, task = plan.build(run.attach_links(run.recipe.build_model()), run.tokenizer)
        refuse_other_tokenizer(run, model)
        _stop_caching(model)
        learner = nn.ModuleDict({"model": model, "objective": task})
        if run.finished:
            path = run.folder / "model.safetensors"
            checkpoint.load_strictly(learner, read_safetensors(path), str(path))
        elif run.steps:
            groups, _ = checkpoint.load(run.folder / "checkpoints", run.steps[-1])
            own = groups["weights"] if plan.distill is None else task_weights(groups["weights"])
            checkpoint.load_strictly(learner, own, f"checkpoint {run.steps[-1]} of {run.folder}")
        else:
            raise UserError(
                f"{run.folder} has no weights yet. 'etude finetune --resume {quote_path(run.folder)}' trains it."
            )
        learner.eval().to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        return cls(run.folder, plan, model, task, run.tokenizer)

    def with_columns(self, columns: Mapping[str, str]) -> Self:
        """Return the same model, reading other columns."""
        return replace(self, plan=replace(self.plan, columns=self.plan.columns | dict(columns)))

    @property
    def kind(self) -> str:
        return self.plan.kind

    @property
    def module(self) -> TaskKind:
        return self.plan.module

    @property
    def columns(self) -> Mapping[str, str]:
        return self.plan.columns

    @property
    def scoring(self) -> Scoring[Any]:
        return self.task.scoring

    def answer(self, examples: Examples[Any]) -> list[Answer]:
        return self.task.predict(self.model, examples)

    def admit(self, examples: Examples[Any]) -> Examples[Any]:
        return admit_examples(self.task, examples, True)[0]

    def judge(self, examples: Examples[Any], answers: Answers) -> list[ErrorExample]:
        return self.task.judge(examples, answers)

    def confusion(self, examples: Examples[Any], answers: Answers) -> tuple[str, Counter[tuple[str, str]]] | None:
        return self.task.confusion(examples, answers)

    def official_files(self, answers: Answers) -> dict[str, Any]:
        return self.task.official_files(answers)

    def require_trained_head(self) -> None:
        """Raise UserError where the task head was never trained."""
        if self.plan.distill is not None and not self.plan.distill.answers:
            raise UserError(
                f"{self.folder} has learnt what is inside its teacher, and its head nothing yet. Go on with: "
                f"etude finetune {quote_path(self.folder)} {self.plan.kind} --teacher TEACHER --train FILE -o ANOTHER"
            )


def _stop_caching(model: Model) -> None:
    """Keep no states of frozen layers: that pays in training, where texts come again; in use memory would only grow."""
    with suppress(UserError):  # a model without frozen layers
        require(model, LayerFeatures, "This model was trained as a whole.").free_bytes = -1
