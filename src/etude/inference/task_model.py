"""Fine-tuned models for inference: predictions and scores, whatever the task."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from etude.errors import UserError
from etude.models.base import Model
from etude.runs.run import Run
from etude.runs.task_plan import Plan
from etude.tasks.base import Answers, Task
from etude.tasks.bootstrap import Score
from etude.tasks.data.examples import Examples
from etude.tasks.data.records import COMPRESSED, FILES, json_record
from etude.tasks.distilled_task import task_weights
from etude.tasks.example_filter import admit_examples
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.train import checkpoint

LARGEST_CHUNK = 1024  # lines of a pipe that are answered together at most


@dataclass(frozen=True)
class TaskModel:
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
        plan = Plan.read(run.folder)
        model, task = plan.build(run.recipe.build_model(), run.tokenizer)
        learner = nn.ModuleDict({"model": model, "objective": task})
        if run.finished:
            path = run.folder / "model.safetensors"
            checkpoint.load_strictly(learner, load_file(path), str(path))
        elif run.steps:
            groups, _ = checkpoint.load(run.folder / "checkpoints", run.steps[-1])
            own = groups["weights"] if plan.distill is None else task_weights(groups["weights"])
            checkpoint.load_strictly(learner, own, f"checkpoint {run.steps[-1]} of {run.folder}")
        else:
            raise UserError(f"{run.folder} has no weights yet. 'etude finetune --resume {run.folder}' trains it.")
        learner.eval().to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        return cls(run.folder, plan, model, task, run.tokenizer)

    def with_columns(self, columns: Mapping[str, str]) -> TaskModel:
        """Return the same model, reading other columns."""
        return replace(self, plan=replace(self.plan, columns=self.plan.columns | dict(columns)))

    # --- scores -------------------------------------------------------------------------------------

    def read(
        self, path: str | Path, columns: Mapping[str, str] | None = None, skip_bad: bool = False, labelled: bool = True
    ) -> Examples[Any]:
        """Read a file of examples; columns are those of training unless others are named."""
        examples = self.plan.module.read(path, self.plan.columns | dict(columns or {}), skip_bad, labelled)
        return admit_examples(self.task, examples, True)[0] if skip_bad and labelled else examples

    def require_trained_head(self) -> None:
        """Raise UserError where the task head was never trained."""
        if self.plan.distill is not None and not self.plan.distill.answers:
            raise UserError(
                f"{self.folder} has learnt what is inside its teacher, and its head nothing yet. Go on with: "
                f"etude finetune {self.folder} {self.plan.kind} --teacher TEACHER --train FILE -o ANOTHER"
            )

    def evaluate(self, examples: str | Path | Examples[Any], intervals: bool = True) -> dict[str, Score]:
        """Score the model on examples, or on a file of them, with bootstrap intervals."""
        self.require_trained_head()
        dataset = examples if isinstance(examples, Examples) else self.read(examples)
        return self.task.evaluate(self.model, dataset, intervals)

    # --- predictions --------------------------------------------------------------------------------

    def predict(self, inputs: Sequence[str | Mapping[str, Any]] | Examples[Any]) -> list[dict[str, Any]]:
        """Return one answer an input, in order; inputs are texts, mappings of fields, or examples."""
        self.require_trained_head()
        if isinstance(inputs, str):
            raise UserError("predict takes a list of inputs: write predict([text]).")
        if isinstance(inputs, Examples):
            return self.task.predict(self.model, inputs)
        items, places = [], []
        for number, value in enumerate(inputs, 1):
            where = f"input {number}"
            record = self._record(value) if isinstance(value, str) else dict(value)
            items.append(self.plan.module.parse(record, self.plan.columns, where, False))
            places.append(where)
        return self.task.predict(self.model, Examples(items, "the inputs", places)) if items else []

    def write(self, answers: Answers, path: str | Path) -> None:
        """Write answers of `predict` as JSON lines, or as .json in the format of the task's official scorer."""
        path = Path(path)
        files = self.task.official_files(answers) if path.suffix == ".json" else {}
        if files:
            for ending, content in files.items():  # the first is the requested file
                text = json.dumps(content, ensure_ascii=False)
                checkpoint.write_text(path.with_name(f"{path.stem}{ending}.json"), text)
        else:
            lines = "".join(json.dumps(answer, ensure_ascii=False) + "\n" for answer in answers)
            checkpoint.write_text(path, lines)

    def stream(self, lines: Iterable[str], source: str = "input", skip_bad: bool = False) -> Iterator[dict[str, Any]]:
        """Yield answers to lines as they arrive: texts, or JSON objects with the fields of an example.

        Lines that have arrived are answered as one batch, so a person who types gets each answer at once and a long
        pipe is fast. With `skip_bad`, a bad line is answered by {"error": ...} and keeps its place.
        """
        self.require_trained_head()
        for chunk in batch_arriving_lines(lines):
            answers: list[dict[str, Any] | None] = []
            items, places = [], []
            error: UserError | None = None
            for number, line in chunk:
                where = f"{source}:{number}"
                try:
                    items.append(self._parse(line, where))
                    places.append(where)
                    answers.append(None)
                except UserError as problem:
                    error = problem
                    if not skip_bad:  # raised after the answers to the lines before it
                        break
                    answers.append({"error": str(problem)})
            predictions = iter(self.task.predict(self.model, Examples(items, source, places)) if items else [])
            yield from (next(predictions) if answer is None else answer for answer in answers)
            if error is not None and not skip_bad:
                raise error

    def _parse(self, line: str, where: str) -> Any:
        line = line.removesuffix("\n").removesuffix("\r")
        if line.lstrip().startswith("{"):
            record = json_record(line, where)
            if isinstance(record, UserError):
                raise record
        else:
            record = self._record(line)
        return self.plan.module.parse(record, self.plan.columns, where, False)

    @property
    def inputs(self) -> dict[str, str]:
        """The parts of a plain line by role, with their columns; empty where a line must be JSON."""
        module = self.plan.module
        return {role: self.plan.columns.get(role, module.COLUMNS[role][0]) for role in module.INPUTS}

    def _record(self, line: str) -> dict[str, Any]:
        """Split a plain line into the fields of an example: one text, or several with tabs between them."""
        module, names = self.plan.module, list(self.inputs.values())
        if not names:
            example = json.dumps({names[0]: "…" for names in list(module.COLUMNS.values())[:2]}, ensure_ascii=False)
            raise UserError(
                f"An input of the task {self.plan.kind} is a JSON object such as {example}, not a plain line."
            )
        parts = line.split("\t", len(names) - 1)
        if len(parts) < len(names):
            raise UserError(
                f"A line of the task {self.plan.kind} holds {' <tab> '.join(self.inputs)}; this one has {len(parts)}."
            )
        return dict(zip(names, parts, strict=True))


def holds_lines(path: Path) -> bool:
    """Whether a file is answered line by line as it is read; tables and compressed files are read whole."""
    return path.suffix == ".jsonl" or path.suffix not in {*COMPRESSED, *FILES, ".conll", ".conllu"}


def batch_arriving_lines(lines: Iterable[str]) -> Iterator[list[tuple[int, str]]]:
    """Yield numbered lines in groups as they arrive, without waiting to fill a group; re-raise errors of reading."""
    waiting: queue.Queue[tuple[int, str] | BaseException | None] = queue.Queue(2 * LARGEST_CHUNK)

    def read() -> None:
        try:
            for numbered in enumerate(lines, 1):
                waiting.put(numbered)
            waiting.put(None)
        except BaseException as problem:
            waiting.put(problem)

    threading.Thread(target=read, daemon=True, name="etude-reader").start()
    end: BaseException | bool | None = False
    while end is False:
        group: list[tuple[int, str]] = []
        while len(group) < LARGEST_CHUNK and (not group or not waiting.empty()):
            entry = waiting.get()
            if not isinstance(entry, tuple):
                end = entry
                break
            group.append(entry)
        if group:
            yield group
    if isinstance(end, BaseException):
        raise end
