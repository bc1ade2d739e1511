"""The Baseline contract: a model that reads plain text without pre-training, with the answers of a task.

A baseline is fitted by `fit(name, kind, settings, examples)` in seconds and answers what the same kind of task answers
(tasks/base.py), so its scores come from the same `Scoring`. `baselines/registry.py` knows which baselines a kind has.

    baseline.json        its name, the task with its settings, facts and columns, and the features with their vocabulary
    model.safetensors    weights

Prediction needs numpy alone, and loading is strict.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from etude.errors import UserError, explain_write_failure
from etude.recipes.document import Document
from etude.recipes.schema import validate_settings
from etude.runs.checksums import remove_checksums, write_checksums
from etude.runs.run import WEIGHTS
from etude.runs.task_plan import task_module
from etude.settings import Strict
from etude.tasks.base import Answer, Facts, Scoring, TaskKind
from etude.tasks.data.examples import Examples
from etude.text.run_checksums import verify_checksums
from etude.train import checkpoint

FILE = "baseline.json"
FORMAT = 1  # of baseline.json
KEYS = {"format", "name", "kind", "settings", "facts", "columns", "model"}
E = TypeVar("E")


@dataclass(frozen=True)
class BaselineTask:
    """The task of a baseline: what it was fitted for."""

    kind: str
    settings: Strict
    facts: Facts
    columns: Mapping[str, str]

    @property
    def module(self) -> TaskKind:
        return task_module(self.kind)

    @property
    def scoring(self) -> Scoring[Any]:
        return self.module.scoring(self.settings, self.facts)


class Baseline(ABC, Generic[E]):
    """A fitted baseline."""

    def __init__(self, name: str, task: BaselineTask) -> None:
        self.name, self.task = name, task

    @abstractmethod
    def predict(self, examples: Examples[E]) -> list[Answer]:
        """One answer an example, as `Task.predict` of the same kind has them; examples need no labels."""

    @abstractmethod
    def scale_logits(self, temperature: float) -> None:
        """Divide the logits by a temperature (Guo et al. 2017), in the weights; no effect where there are none."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """JSON-ready: what `restore` needs beside the arrays."""

    @abstractmethod
    def arrays(self) -> dict[str, np.ndarray]:
        """The weights by name."""

    @classmethod
    @abstractmethod
    def restore(
        cls, name: str, task: BaselineTask, description: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
    ) -> Self:
        """The baseline that `describe` and `arrays` came from; ValueError or KeyError where they do not fit."""

    @abstractmethod
    def standalone(self) -> dict[str, str]:
        """Source files by name that predict without Etude, from `model.json` and `weights.npz`; `predict.py` is run."""

    def with_columns(self, columns: Mapping[str, str]) -> Self:
        """The same baseline, reading other columns of a file."""
        other = copy(self)
        other.task = replace(self.task, columns={**self.task.columns, **columns})
        return other

    def save(self, folder: str | Path) -> Path:
        """Write the two files into a folder, which is made where there is none."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        content = {
            "format": FORMAT,
            "name": self.name,
            "kind": self.task.kind,
            "settings": self.task.settings.model_dump(mode="json"),
            "facts": self.task.facts,
            "columns": dict(self.task.columns),
            "model": self.describe(),
        }
        remove_checksums(folder)
        aside = folder / f".{WEIGHTS}.writing"
        with explain_write_failure(folder / WEIGHTS):
            save_file({name: np.ascontiguousarray(array) for name, array in self.arrays().items()}, aside)
            checkpoint.allow_reading(aside)
            checkpoint.flush(aside)
            aside.replace(folder / WEIGHTS)
        # last: a folder that has it is complete
        checkpoint.write_text(folder / FILE, json.dumps(content, ensure_ascii=False, allow_nan=False))
        write_checksums(folder)
        return folder


def is_baseline(folder: str | Path) -> bool:
    """Whether a folder holds a saved baseline."""
    return (Path(folder) / FILE).is_file()


@dataclass(frozen=True)
class SavedBaseline:
    """The content of a folder."""

    name: str
    task: BaselineTask
    description: dict[str, Any]
    arrays: dict[str, np.ndarray]


def read_saved(folder: str | Path) -> SavedBaseline:
    """Read the two files of a folder; UserError where one is missing or damaged."""
    path, weights = Path(folder) / FILE, Path(folder) / WEIGHTS
    for file in (path, weights):
        if not file.is_file():
            raise UserError(f"{folder} is no saved baseline: it holds no {file.name}.")
    verify_checksums(Path(folder))
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        arrays = load_file(weights)
    except (ValueError, RecursionError, SafetensorError) as problem:
        raise UserError(f"{folder} cannot be read as a baseline: {problem}.") from None
    if not isinstance(content, dict) or set(content) != KEYS or content["format"] != FORMAT:
        raise UserError(f"{path} is not a baseline of this version of Etude. Make it again.")
    settings = validate_settings(task_module(content["kind"]).Settings, content["settings"], Document(), "task")
    task = BaselineTask(content["kind"], settings, content["facts"], content["columns"])
    return SavedBaseline(content["name"], task, content["model"], arrays)


def take_arrays(arrays: Mapping[str, np.ndarray], expected: Mapping[str, tuple[int, ...]]) -> None:
    """Raise ValueError, naming it, where an array is missing, unexpected or of another shape."""
    problems = [f"no {name}" for name in sorted(expected.keys() - arrays.keys())]
    problems += [f"an unexpected {name}" for name in sorted(arrays.keys() - expected.keys())]
    problems += [
        f"{name} {arrays[name].shape} where {shape} is expected"
        for name, shape in expected.items()
        if name in arrays and arrays[name].shape != shape
    ]
    if problems:
        raise ValueError("its weights have " + "; ".join(problems))
