"""What a transfer is made of, settled before it starts and saved with its run as `task.yaml`.

    kind, settings, facts   the task, and what is needed to build its head again
    transfer                the way: whole fine-tuning, frozen lower layers, features
    train                   the loop's settings
    base, train file, dev   where it started, with fingerprints of the files

Rates nobody gives follow the papers and the width of the model: 5e-5 at BERT's 768 (BERT, appendix A.3), more for
narrower ones in proportion (the small BERTs of Turc et al. 2019 took 3e-4 at 128), 1e-3 at most.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import torch
import yaml
from pydantic import Field, model_validator
from torch import nn

from etude.chance import fold
from etude.errors import UserError
from etude.kinds import find_kind, list_kinds
from etude.models.layer_features import Combine, Features, Layers
from etude.models.recurrent import Recurrent
from etude.models.static import Static
from etude.models.two_tower import TwoTower
from etude.nn.char_embedding import spell_with
from etude.nn.combiner import Mask
from etude.nn.layer_mix import Norm
from etude.recipes.datasets import NAMED
from etude.recipes.document import Overrides, Writer, from_overrides
from etude.recipes.schema import checked
from etude.settings import Strict
from etude.tasks.base import Task
from etude.tasks.distilled_task import TaskWays
from etude.tasks.framing import inner
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.train import peak
from etude.train.settings import BUDGETS
from etude.train.settings import Settings as Train
from etude.transfer import towers
from etude.transfer.freezing import check_gradual, freeze, refresh

FILE = "task.yaml"
GROUPS = ("task", "transfer", "train", "distill")


class Settings(Strict):
    frozen: bool = Field(default=False, description="features: the model is read, not trained")
    layers: Layers = Field(default="last", description="which layers the task reads: last, last4, all or [numbers]")
    combine: Combine = Field(default="concat", description="of several layers: side by side, or a learned mix")
    mix_norm: Norm = Field(
        default="none", description="each layer to deviation 1 before the mix: by token, or by batch as released"
    )
    freeze: int | None = Field(default=None, ge=0, description="layers from below that stay, the embedding with them")
    gradual: float = Field(default=0.0, ge=0, description="epochs until one layer more thaws, from above; 0: all learn")
    fresh: int = Field(default=0, ge=0, description="layers from above that start from new values, for small data")
    cache_mb: int = Field(default=2048, ge=0, description="memory for frozen states")
    mask: Mask | None = Field(
        default=None, description="of a two-tower model's combiner; if None, none in fine-tuning and full when frozen"
    )
    dropout: float | None = Field(
        default=None, ge=0, lt=1, description="inside the model; as in pre-training if None, 0 in a two-tower model"
    )
    letters: bool | None = Field(
        default=None, description="whether character layers learn; if None, not in a two-tower model"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name in ("gradual", "fresh", "freeze"):
            if self.frozen and getattr(self, name):
                raise ValueError(
                    f"transfer.{name} says which layers learn, and transfer.frozen that none does: drop one"
                )
        return self


@dataclass(frozen=True)
class Source:
    """A file of examples."""

    path: str
    fingerprint: str

    @classmethod
    def of(cls, path: str | Path) -> Self:
        file = Path(path)
        if not file.is_file():
            raise UserError(f"There is no file {file}.")
        return cls(str(file.resolve()), hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest())

    def check(self) -> Path:
        file = Path(self.path)
        if not file.is_file() or Source.of(file).fingerprint != self.fingerprint:
            raise UserError(f"{file} is not there any more, or not what the run was started on: put it back.")
        return file


@dataclass(frozen=True)
class Plan:
    kind: str
    settings: Any  # of the task
    transfer: Settings
    train: Train
    facts: dict[str, Any]
    columns: dict[str, str]
    base: str  # the folder of the run it starts from
    examples: Source
    dev: Source | None = None
    skip_bad: bool = False
    score: str = ""  # the official one, by which the best weights were chosen
    scores: dict[str, Any] = field(default_factory=dict)  # of the finished run, on dev
    distill: TaskWays | None = None  # where it learns from a teacher
    teacher: str = ""  # the fingerprint of that one's weights

    @property
    def module(self) -> Any:
        return task_module(self.kind)

    def build(self, model: nn.Module, tokenizer: Tokenizer) -> tuple[nn.Module, Task]:
        """The model as the task reads it, and the task with a fresh head: a function of the plan and its seed."""
        torch.manual_seed(fold(self.train.seed, "head") >> 1)
        way = self.transfer
        refresh(model, way.fresh)
        towers.ready(model, frozen=way.frozen, mask=way.mask, dropout=way.dropout, letters=way.letters)
        if way.frozen or way.layers != "last":
            model = Features(model, way.layers, way.combine, way.frozen, way.cache_mb << 20, way.mix_norm)
        freeze(model, way.freeze)
        check_gradual(model, way.gradual)
        task = self.module.build(self.settings, model, spell_with(model, tokenizer), self.facts)
        if isinstance(model, Features) and model.mix is not None:
            task.mix = model.mix
        return model, task

    def dump(self) -> str:
        values: dict[str, Any] = {
            "kind": self.kind,
            "settings": self.settings.model_dump(mode="json"),
            "facts": self.facts,
            "columns": self.columns,
            "base": self.base,
            "examples": vars(self.examples),
            "dev": vars(self.dev) if self.dev else None,
            "skip_bad": self.skip_bad,
            "score": self.score,
            "scores": self.scores,
            "transfer": self.transfer.model_dump(mode="json"),
            "train": self.train.model_dump(mode="json"),
        }
        if self.distill is not None:
            values |= {"distill": self.distill.model_dump(mode="json"), "teacher": self.teacher}
        return yaml.dump(values, Dumper=Writer, sort_keys=False, allow_unicode=True, width=110)

    @classmethod
    def read(cls, folder: Path) -> Self:
        path = folder / FILE
        if not path.is_file():
            raise UserError(
                f"{folder} has no {FILE}: it was not fine-tuned. 'etude finetune {folder} TASK --train FILE' does it."
            )
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        document = from_overrides({})
        kind, settings = values.pop("kind"), values.pop("settings")
        return cls(
            kind=kind,
            settings=checked(task_module(kind).Settings, settings, document, "task"),
            transfer=checked(Settings, values.pop("transfer"), document, "transfer"),
            train=checked(Train, values.pop("train"), document, "train"),
            examples=Source(**values.pop("examples")),
            dev=Source(**dev) if (dev := values.pop("dev")) else None,
            distill=checked(TaskWays, ways, document, "distill") if (ways := values.pop("distill", None)) else None,
            **values,
        )

    def with_train(self, **changes: Any) -> Self:
        return replace(
            self, train=checked(Train, self.train.model_dump(mode="json") | changes, from_overrides({}), "train")
        )


# --- tasks ------------------------------------------------------------------------------------------


def task_kinds() -> dict[str, ModuleType]:
    """Every kind of task by name, those of other installed packages included."""
    return list_kinds("tasks")


def task_module(kind: str) -> Any:
    return find_kind("tasks", kind, also_known=NAMED)


# --- settings ---------------------------------------------------------------------------------------


def settle(kind: str, overrides: Overrides, model: Any) -> tuple[Any, Settings, Train]:
    """The complete settings of the three groups; the budget of `train` still in epochs where nobody said otherwise.

    Where nobody gave `train.eval_every`, it is 0: it becomes one epoch once the number of rows is known.
    """
    document = from_overrides(overrides)
    for group in document.values:
        if group not in GROUPS:
            name = ".".join(next(path for path in document.places if path[0] == group))
            raise UserError(f"'{name}' is no setting of a transfer, which has the groups {', '.join(GROUPS)}.")
    values = {group: dict(document.values.get(group) or {}) for group in GROUPS}
    task = checked(task_module(kind).Settings, values["task"], document, "task")
    way = checked(Settings, values["transfer"], document, "transfer")
    train = usual(inner(model), way)
    if any(values["train"].get(budget) is not None for budget in BUDGETS):
        train.pop("epochs")
    settings = checked(Train, train | values["train"], document, "train")
    changes: dict[str, Any] = {}
    if settings.device is None:
        changes["device"] = "cuda" if torch.cuda.is_available() else "cpu"
    if settings.precision == "auto":
        changes["precision"] = peak.resolve_precision("auto", settings.device or changes["device"])
    return task, way, checked(Train, settings.model_dump(mode="json") | changes, document, "train")


def ways_of(overrides: Overrides) -> TaskWays | None:
    """How a teacher teaches, where one is named."""
    document = from_overrides(overrides)
    values = document.values.get("distill")
    if values is None:
        return None
    if not isinstance(values, dict) or not values.get("teacher"):
        raise UserError("distill.* says how a teacher teaches: name it with --teacher RUN (or distill.teacher=RUN).")
    return checked(TaskWays, values, document, "distill")


def usual(model: Any, way: Settings) -> dict[str, Any]:
    """What a transfer does unless told otherwise."""
    shared: dict[str, Any] = {
        "batch_examples": 32,
        "compile": False,  # examples have lengths of their own: every step would compile anew
        "keep": 1,  # beside the best
        "eval_every": 0,
        "save_every": 0,
        "workers": 0,
    }
    if way.frozen:
        return shared | {"epochs": 20, "lr": 1e-3, "warmup": 0.0, "weight_decay": 0.0}
    if isinstance(model, (Static, Recurrent)):
        return shared | {"epochs": 10, "lr": 1e-3, "warmup": 0.05}
    rate = min(1e-3, 5e-5 * 768 / model.width)
    if isinstance(model, TwoTower):  # its paper: 3e-5 to 1e-4 at a width of 1024, down to 1e-6 on a cosine
        rate = min(1e-3, 5e-5 * 1024 / model.settings.width)
        return shared | {
            "epochs": 3, "batch_examples": 16, "lr": rate, "warmup": 0.1, "lr_schedule": "cosine", "final_lr": 0.02,
        }  # fmt: skip
    if model.settings.direction == "causal":  # GPT-1's code: 6.25e-5, a short warm-up times a linear decay
        return shared | {"epochs": 3, "lr": 1.25 * rate, "warmup": 0.002, "warmup_shape": "multiply"}
    return shared | {"epochs": 3, "lr": rate, "warmup": 0.1}
