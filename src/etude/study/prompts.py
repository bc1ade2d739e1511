"""Tasks of a study that are asked as prompts, without learning: `tasks: {topic: {kind: classify, prompt: {...}}}`.

    prompt:
      template: "{text} This article is about"
      answers: {World: world, Sports: sports}
      shots: 8
      over: 0          # the score is what 8 examples add to none, example by example

The model answers as `etude prompt` has it (transfer/prompt.py); examples are shown from the task's training examples,
drawn by the seed. With `over`, the outcome of an example is whether it is right with `shots` less whether it is right
with `over`: a gain has an interval and is compared between contenders like any score, and the majority's is zero.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import yaml
from pydantic import Field, model_validator

from etude.errors import UserError
from etude.inference.likelihood import Rule
from etude.inference.model import load as load_model
from etude.plain_yaml import Writer
from etude.runs.task_plan import task_module
from etude.settings import Strict
from etude.tasks.base import Scoring
from etude.tasks.data.examples import Examples
from etude.tasks.outcomes import Outcome, mean_outcome
from etude.tasks.prompt_form import ChoicePrompt, LabelPrompt
from etude.train import checkpoint
from etude.transfer.prompt import prompt
from etude.transfer.prompt_file import PromptFile

PROMPT_FILE = "prompt.yaml"  # of a cell: `etude prompt` takes it
log = logging.getLogger("etude")


class TaskPrompt(Strict):
    """How the examples of a task are put in words, and how many are shown."""

    template: str = Field(description="one example up to its answer, with the fields of the task in braces")
    answers: dict[str, str] = Field(
        default_factory=dict, description="label -> its words; the label itself if left out"
    )
    shots: int = Field(default=0, ge=0, description="examples shown before each question")
    over: int | None = Field(default=None, ge=0, description="shots whose score is subtracted: the gain of the others")
    instruction: str = Field(default="", description="stands once, before everything")
    delimiter: str = Field(default=" ", description="before an answer, and part of what is predicted")
    separator: str = Field(default="\n\n", description="between examples")
    compared: Rule = Field(default="tokens", description="what of the likelihood of answers is compared")
    answer_context: str = Field(default="Answer:", description="what stands before an answer without its question")

    @model_validator(mode="after")
    def _check_shots(self) -> Self:
        if self.over is not None and self.over >= self.shots:
            raise ValueError(f"over={self.over} is no fewer than shots={self.shots}: there is no gain to measure")
        return self

    @property
    def all_shots(self) -> list[int]:
        return [self.shots] if self.over is None else [self.over, self.shots]

    def file(self, kind: str, columns: Mapping[str, str]) -> dict[str, Any]:
        """Return the content of a prompt file for examples of this kind."""
        own = self.model_dump(mode="json", exclude={"shots", "over"})
        return {"kind": kind, "train": "train.jsonl", "test": "test.jsonl", "columns": dict(columns), **own}

    def check(self, kind: str, columns: Mapping[str, str]) -> None:
        """Raise UserError where the examples of this kind cannot be asked, or not be answered by choosing."""
        try:
            form = PromptFile.model_validate(self.file(kind, columns)).form
        except ValueError as error:
            message = str(error).splitlines()
            raise UserError(message[-2].strip().removeprefix("Value error, ").split(" [type=")[0]) from None
        if not isinstance(form, (LabelPrompt, ChoicePrompt)):
            raise UserError(f"answers of a {kind} task are written, and a study compares those that are chosen.")


@dataclass(frozen=True)
class PromptedAnswers:
    """What a run answered: the outcome of the test examples, and what the result of the cell says besides."""

    outcome: Outcome
    score: str
    scoring: Scoring[Any]
    examples: Examples[Any]
    values: dict[str, Any]


def answer_prompts(arguments: Mapping[str, Any], task_settings: Any, run: Path, work: Path) -> PromptedAnswers:
    """Ask a run the test and dev examples of a cell."""
    settings = TaskPrompt.model_validate(arguments["prompt"])
    module = task_module(arguments["task"])
    train, test, dev = (module.read(arguments[part], arguments["columns"]) for part in ("train", "test", "dev"))
    scoring = module.scoring(task_settings, module.learn(train, task_settings))
    file = work / PROMPT_FILE
    content = settings.file(arguments["task"], arguments["columns"])
    checkpoint.write_text(file, yaml.dump(content, Dumper=Writer, sort_keys=False, allow_unicode=True))
    loaded = load_model(run, arguments["settings"]["train.device"])
    started = time.perf_counter()
    outcomes: dict[str, Outcome] = {}
    by_shots: dict[str, float] = {}
    for part, examples in (("test", test), ("dev", dev)):
        results = prompt(
            loaded, file, settings.all_shots, train=arguments["train"], test=arguments[part],
            seed=arguments["settings"]["train.seed"],
        ).results  # fmt: skip
        single = [
            scoring.outcome(examples, [{**answer, "answer": answer.get("choice")} for answer in result.answers])
            for result in results
        ]
        outcomes[part] = single[0] if settings.over is None else _subtract(single[1], single[0])
        if part == "test":
            by_shots = {str(result.shots): float(each.score()) for result, each in zip(results, single, strict=True)}
            if (mean_shots := results[-1].mean_shots) < settings.shots:
                log.warning("Of %d examples in a prompt %.1f fitted into the context.", settings.shots, mean_shots)
    values = {
        "dev": float(outcomes["dev"].score()), "by_shots": by_shots,
        "step": 0, "tokens": 0, "flops": 0, "seconds": time.perf_counter() - started,
    }  # fmt: skip
    score = scoring.score if settings.over is None else f"{scoring.score} gained"
    return PromptedAnswers(outcomes["test"], score, scoring, test, values)


def _subtract(more: Outcome, fewer: Outcome) -> Outcome:
    """Return the gain of each example; only of scores that are means over examples."""
    if more.statistic != "mean":
        raise UserError("A gain of shots is that of a mean over examples: set task.score=accuracy, or leave out over.")
    gains: np.ndarray = more.parts[:, 0] - fewer.parts[:, 0]
    return mean_outcome(gains.tolist())
