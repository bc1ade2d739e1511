"""The plan of a transfer, complete before it starts and saved with its run as `task.yaml`.

    kind, settings, facts   the task, and what is needed to build its head again
    transfer                fine-tuning of the whole model, frozen lower layers, or features
    train                   the loop's settings
    base, train file, dev   where it started, with fingerprints of the files

Training settings that are not given are the model's own defaults (`Model.transfer_defaults`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, NotRequired, Self, cast

import torch
import yaml
from typing_extensions import TypedDict  # that of Python 3.11 cannot be checked

from etude.chance import fold
from etude.errors import UserError, explain_no_file, quote_path
from etude.kinds import find_kind, list_kinds
from etude.models import transfer as model_transfer
from etude.models.base import Model
from etude.models.transfer_settings import TransferSettings
from etude.plain_yaml import Writer
from etude.recipes.datasets import DATASETS
from etude.recipes.document import Overrides, parse_file, parse_overrides
from etude.recipes.schema import Recipe, validate_settings
from etude.settings import check_values
from etude.tasks.base import RefusesUnused, Task, TaskKind
from etude.tasks.distilled_task import TaskDistillSettings
from etude.tasks.tag.network import HasNetwork
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.train import peak
from etude.train.checkpoint import hash_file
from etude.train.settings import BUDGETS
from etude.train.settings import Settings as Train

FILE = "task.yaml"
GROUPS = ("task", "transfer", "train", "distill")


@dataclass(frozen=True)
class ExampleFile:
    """A file of examples with its fingerprint."""

    path: str
    fingerprint: str
    encoding: str | None = None  # None: UTF-8

    @classmethod
    def from_path(cls, path: str | Path, encoding: str | None = None) -> Self:
        """Fingerprint a file; raise UserError where there is none."""
        file = Path(path)
        if not file.is_file():
            raise UserError(explain_no_file(file))
        return cls(str(file.resolve()), hash_file(file), encoding)

    def dump(self) -> dict[str, str]:
        """Return it as YAML has it."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def check(self) -> Path:
        """Return the path; raise UserError where the file is gone or has changed."""
        file = Path(self.path)
        if not file.is_file() or ExampleFile.from_path(file).fingerprint != self.fingerprint:
            raise UserError(f"{file} is not there any more, or not what the run was started on: put it back.")
        return file


class StoredFile(TypedDict):
    """An ExampleFile in `task.yaml`."""

    path: str
    fingerprint: str
    encoding: NotRequired[str]


class StoredPlan(TypedDict):
    """The content of `task.yaml`; settings are checked by their own classes."""

    kind: str
    settings: dict[str, Any]
    facts: dict[str, Any]
    columns: dict[str, str]
    base: str
    examples: StoredFile
    dev: StoredFile | None
    transfer: dict[str, Any]
    train: dict[str, Any]
    skip_bad: NotRequired[bool]
    score: NotRequired[str]
    scores: NotRequired[dict[str, Any]]
    distill: NotRequired[dict[str, Any]]
    teacher: NotRequired[str]
    temperature: NotRequired[float]


class StoredFacts(dict[str, Any]):
    """The facts of a `task.yaml`, which says so where a task asks for one that is not there."""

    def __init__(self, facts: dict[str, Any], path: Path) -> None:
        super().__init__(facts)
        self.path = path

    def __missing__(self, name: str) -> NoReturn:
        raise UserError(
            f"{self.path} is damaged: among its facts there is no '{name}'. Fine-tune again, or take it from a copy."
        )


@dataclass(frozen=True)
class Plan:
    """The task, its settings and its files: the content of `task.yaml`."""

    kind: str
    settings: Any  # of the task
    transfer: TransferSettings
    train: Train
    facts: dict[str, Any]
    columns: dict[str, str]
    base: str  # the folder of the run it starts from
    examples: ExampleFile
    dev: ExampleFile | None = None
    skip_bad: bool = False
    score: str = ""  # the official one, by which the best weights were chosen
    scores: dict[str, Any] = field(default_factory=dict)  # of the finished run, on dev
    distill: TaskDistillSettings | None = None  # where it learns from a teacher
    teacher: str = ""  # the fingerprint of the teacher's weights
    temperature: float = 1.0  # that the logits were divided by after training, in the weights of the last layer

    @property
    def module(self) -> TaskKind:
        return task_module(self.kind)

    def build(self, model: Model, tokenizer: Tokenizer) -> tuple[Model, Task]:
        """Build the model as the task reads it, and the task with a new head, initialised by the plan's seed."""
        torch.manual_seed(fold(self.train.seed, "head") >> 1)
        model = model_transfer.prepare(model, self.transfer)
        task = self.module.build(self.settings, model, model.attach_tokenizer(tokenizer), self.facts)
        if model.mix is not None:
            task.mix = model.mix
        return model, task

    def dump(self) -> str:
        """Return the plan as YAML."""
        values: dict[str, Any] = {
            "kind": self.kind,
            "settings": self.settings.model_dump(mode="json"),
            "facts": dict(self.facts),
            "columns": self.columns,
            "base": self.base,
            "examples": self.examples.dump(),
            "dev": self.dev.dump() if self.dev else None,
            "skip_bad": self.skip_bad,
            "score": self.score,
            "scores": self.scores,
            "transfer": self.transfer.model_dump(mode="json"),
            "train": self.train.model_dump(mode="json"),
        }
        if self.distill is not None:
            values |= {"distill": self.distill.model_dump(mode="json"), "teacher": self.teacher}
        if self.temperature != 1.0:
            values["temperature"] = self.temperature
        return yaml.dump(values, Dumper=Writer, sort_keys=False, allow_unicode=True, width=110)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the plan of a fine-tuned run."""
        path = folder / FILE
        if not path.is_file():
            raise UserError(
                f"{folder} has no {FILE}: "
                f"it was not fine-tuned. 'etude finetune {quote_path(folder)} TASK --train FILE -o FOLDER' does that."
            )
        document = parse_file(path, str(path), f"{path} is missing.")
        check_values(document.values, StoredPlan, str(path), "Fine-tune again, or take it from a copy.")
        values: dict[str, Any] = document.values
        unknown = values.keys() - StoredPlan.__annotations__.keys()
        if unknown:
            raise UserError(f"{document.place((min(unknown),))}: '{min(unknown)}' is nothing that a plan holds.")
        kind, settings = values.pop("kind"), values.pop("settings")
        return cls(
            kind=kind,
            settings=validate_settings(task_module(kind).Settings, settings, document, "task"),
            transfer=validate_settings(TransferSettings, values.pop("transfer"), document, "transfer"),
            train=validate_settings(Train, values.pop("train"), document, "train"),
            examples=ExampleFile(**values.pop("examples")),
            dev=ExampleFile(**dev) if (dev := values.pop("dev")) else None,
            distill=validate_settings(TaskDistillSettings, distill, document, "distill")
            if (distill := values.pop("distill", None))
            else None,
            facts=StoredFacts(values.pop("facts"), path),
            **values,
        )

    def with_train(self, **changes: Any) -> Self:
        return replace(
            self,
            train=validate_settings(Train, self.train.model_dump(mode="json") | changes, parse_overrides({}), "train"),
        )


# --- tasks ------------------------------------------------------------------------------------------


def task_kinds() -> dict[str, TaskKind]:
    """Return every kind of task by name, those of other installed packages included."""
    return {name: cast(TaskKind, module) for name, module in list_kinds("tasks").items()}


def task_module(kind: str) -> TaskKind:
    return cast(TaskKind, find_kind("tasks", kind, also_known=DATASETS))


def check_columns(kind: str, columns: Mapping[str, str] | None) -> dict[str, str]:
    """Return columns by role; raise UserError where the kind has no such role."""
    column_names, roles = dict(columns or {}), task_module(kind).COLUMNS
    unknown = [role for role in column_names if role not in roles]
    if unknown:
        raise UserError(f"The task {kind} has no column of the role '{unknown[0]}': it reads {', '.join(roles)}.")
    return column_names


# --- settings ---------------------------------------------------------------------------------------


def resolve_settings(
    kind: str, overrides: Overrides, model: Model, recipe: Recipe
) -> tuple[Any, TransferSettings, Train]:
    """Return the complete settings of task, transfer and train; by default the budget is in epochs.

    `recipe` is that of the model: what its paper says of fine-tuning is the default here.
    `train.eval_every` is 0 where it is not given, and becomes one epoch once the number of rows is known.
    """
    auxiliary = recipe.finetune.language_model if model.causal else 0.0
    return _resolve_settings(kind, overrides, model.transfer_defaults, auxiliary)


def check_settings(kind: str, overrides: Overrides) -> None:
    """Raise UserError where settings of a transfer have an unknown name or a wrong value, before there is a model."""
    _, transfer, _ = _resolve_settings(kind, overrides, lambda frozen: {"epochs": 1})
    model_transfer.check_frozen(transfer)


def _resolve_settings(
    kind: str, overrides: Overrides, defaults: Callable[[bool], dict[str, Any]], auxiliary: float = 0.0
) -> tuple[Any, TransferSettings, Train]:
    """`defaults` gives the model's own settings of `train`, by whether it is frozen; `auxiliary`: of its recipe."""
    document = parse_overrides(overrides)
    for group in document.values:
        if group not in GROUPS:
            name = ".".join(next(path for path in document.places if path[0] == group))
            raise UserError(f"'{name}' is no setting of a transfer, which has the groups {', '.join(GROUPS)}.")
        if not isinstance(document.values[group], dict | None):
            raise UserError(f"'{group}' is a group of settings: write {group}.name=value.")
    values = {group: dict(document.values.get(group) or {}) for group in GROUPS}
    transfer = validate_settings(TransferSettings, values["transfer"], document, "transfer")
    task_settings = task_module(kind).Settings
    # a frozen model has nothing to learn from a second loss, and a teacher brings losses of its own
    if auxiliary and "language_model" in task_settings.model_fields and not transfer.frozen and not values["distill"]:
        values["task"].setdefault("language_model", auxiliary)
    task = validate_settings(task_settings, values["task"], document, "task")
    if isinstance(task, RefusesUnused):
        task.refuse_unused()
    if isinstance(task, HasNetwork) and task.network is not None:
        task.network.refuse_unused()
    train = dict(defaults(transfer.frozen))
    if any(values["train"].get(budget) is not None for budget in BUDGETS):
        train.pop("epochs")
    settings = validate_settings(Train, train | values["train"], document, "train")
    if settings.average > 1:
        raise UserError("train.average is of pre-training: a transfer ends with its best checkpoint. Leave it out.")
    if settings.layer_decay is not None and transfer.frozen:
        raise UserError(
            f"train.layer_decay={settings.layer_decay} lowers the learning rate layer by layer, and transfer.frozen "
            "lets none learn: drop one."
        )
    changes: dict[str, Any] = {}
    if settings.device is None:
        changes["device"] = "cuda" if torch.cuda.is_available() else "cpu"
    if settings.precision == "auto":
        changes["precision"] = peak.resolve_precision("auto", settings.device or changes["device"])
    return task, transfer, validate_settings(Train, settings.model_dump(mode="json") | changes, document, "train")


def distill_settings(overrides: Overrides) -> TaskDistillSettings | None:
    """Return the settings of distillation; None where no teacher is named."""
    document = parse_overrides(overrides)
    values = document.values.get("distill")
    if values is None:
        return None
    if not isinstance(values, dict) or not values.get("teacher"):
        raise UserError("distill.* says how a teacher teaches: name it with --teacher RUN (or distill.teacher=RUN).")
    return validate_settings(TaskDistillSettings, values, document, "distill")
