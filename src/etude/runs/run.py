"""A Run: a folder, and the only thing passed between steps.

    recipe.yaml         the resolved recipe: complete, and enough to repeat the run
    tokenizer.json
    origin.json         the corpus it learns from: where, and its fingerprint
    distill.yaml        where it learns from a teacher: which
    metrics.jsonl       one line an entry: step tokens flops seconds loss ...
    checkpoints/        step-000000001000/ ...: under our own names
    model.safetensors   the final weights, under the published names where the family has any
    config.json
    README.md           the model card

The folder appears by rename once its recipe is inside, so a folder that exists can always be resumed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from etude import hub
from etude.chance import fold
from etude.errors import UserError
from etude.objectives.base import Objective
from etude.objectives.distillation.matching import MATCHING
from etude.recipes.schema import Recipe
from etude.text.corpus.corpus import MANIFEST, Corpus
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.train import checkpoint
from etude.train.metrics_log import read_metrics

TEACHER = "distill.yaml"


@dataclass(frozen=True)
class Run:
    folder: Path

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        folder = Path(folder)
        if not (folder / "recipe.yaml").is_file():
            raise UserError(
                f"{folder} is not a run: it holds no recipe.yaml. 'etude pretrain RECIPE CORPUS -o {folder}' makes one."
            )
        return cls(folder)

    @classmethod
    def create(cls, folder: str | Path, recipe: Recipe, corpus: Corpus, files: Mapping[str, str] | None = None) -> Run:
        """The folder with everything a resume needs, there at once or not at all; `files`: further texts by name."""
        folder = Path(folder)
        refuse_existing(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        writing = folder.with_name(f".{folder.name}.creating-{os.getpid()}")
        shutil.rmtree(writing, ignore_errors=True)
        writing.mkdir()
        checkpoint.write_text(writing / "recipe.yaml", recipe.dump())
        origin = {"corpus": str(corpus.folder.resolve()), "fingerprint": corpus.fingerprint}
        checkpoint.write_text(writing / "origin.json", json.dumps(origin, indent=1))
        for name, text in (files or {}).items():
            checkpoint.write_text(writing / name, text)
        corpus.tokenizer.save(writing)
        checkpoint.flush(writing)
        if folder.is_dir():  # empty: checked above
            folder.rmdir()
        os.rename(writing, folder)
        checkpoint.flush(folder.parent)
        return cls(folder)

    @cached_property
    def recipe(self) -> Recipe:
        path = self.folder / "recipe.yaml"
        return Recipe.parse(path.read_text(encoding="utf-8"), str(path))

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.open(self.folder)

    @property
    def finished(self) -> bool:
        return (self.folder / "model.safetensors").is_file()

    @property
    def taught(self) -> bool:
        """Whether it learns from a teacher."""
        return (self.folder / TEACHER).is_file()

    @property
    def steps(self) -> list[int]:
        """Steps of the complete checkpoints."""
        return checkpoint.list_steps(self.folder / "checkpoints")

    def metrics(self, split: str | None = None) -> list[dict[str, Any]]:
        lines = read_metrics(self.folder / "metrics.jsonl")
        return [line for line in lines if split is None or line.get("split") == split]

    def corpus(self, folder: str | Path | None = None) -> Corpus:
        """Its corpus, after checking that it is still the same one."""
        origin = json.loads((self.folder / "origin.json").read_text(encoding="utf-8"))
        place = Path(folder or origin["corpus"])
        if not (place / MANIFEST).is_file():
            raise UserError(f"The corpus of {self.folder} is not at {place}. Say where it is now with --corpus FOLDER.")
        corpus = Corpus.open(place)
        if corpus.fingerprint != origin["fingerprint"]:
            raise UserError(
                f"{place} is not the corpus {self.folder} was started on (its fingerprint differs). "
                "Point --corpus to the original, or start a new run."
            )
        return corpus

    def build(self) -> tuple[nn.Module, Objective]:
        """Model and objective with their final weights; before the end, with those of the last checkpoint."""
        model, objective, _ = self.learnt()
        return model, objective

    def learnt(self) -> tuple[nn.Module, Objective, frozenset[str]]:
        """The same, and the names of tensors that were never trained: heads that an imported model came without."""
        if (self.folder / "task.yaml").is_file():  # fine-tuned: the objective is its task
            from etude.inference.task_model import Tuned

            tuned = Tuned.open(self.folder, device="cpu")
            return getattr(tuned.model, "wrapped", tuned.model), tuned.task, frozenset()
        untrained: set[str] = set()
        model, objective = fresh(self.recipe, self.tokenizer)
        learner = nn.ModuleDict({"model": model, "objective": objective})
        if self.finished:
            final, untrained = self._final()
            kept = {name: tensor for name, tensor in learner.state_dict().items() if name in untrained}
            checkpoint.load_strictly(learner, {**final, **kept}, str(self.folder / "model.safetensors"))
        elif self.steps:
            groups, _ = checkpoint.load(self.folder / "checkpoints", self.steps[-1])
            own = {
                name: one for name, one in groups["weights"].items() if not name.startswith(f"objective.{MATCHING}.")
            }
            checkpoint.load_strictly(learner, own, f"checkpoint {self.steps[-1]} of {self.folder}")
            if self.taught and not self.recipe.distill.speaks:
                untrained = {name for name in own if name.startswith("objective.head.")}
        else:
            raise UserError(f"{self.folder} has no weights yet. 'etude pretrain --resume {self.folder}' trains it.")
        return model.eval(), objective.eval(), frozenset(untrained)

    def _final(self) -> tuple[Mapping[str, Tensor], set[str]]:
        """The final weights under our names, and the names of those that the folder has nothing for."""
        return hub.reread(self.recipe, self.tokenizer.special, self.folder)

    def finish(self, model: nn.Module, objective: Objective, card: str) -> None:
        """Writes the final weights and the card; the weights last, since they say that the run is done.

        Under the published names where the family has a class in transformers, else under our own.
        """
        checkpoint.write_text(self.folder / "README.md", card)
        weights = {f"model.{name}": one for name, one in model.state_dict().items()}
        weights |= {f"objective.{name}": one for name, one in objective.lasting().items()}
        published = hub.publish(self.recipe, weights, self.tokenizer)
        if published is not None:
            hub.write(published, self.folder)
            return
        config = {"model_type": f"etude-{self.recipe.model_kind}", "etude": self.recipe.model.model_dump(mode="json")}
        every = {f"objective.{name}" for name in objective.state_dict() if not name.startswith(f"{MATCHING}.")}
        if every - weights.keys():
            config["untrained"] = sorted(every - weights.keys())
        checkpoint.write_text(self.folder / "config.json", json.dumps(config, indent=1))
        hub.write_tensors(weights, self.folder / "model.safetensors")


def refuse_existing(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        known = (folder / "recipe.yaml").is_file()
        verb = "finetune" if (folder / "task.yaml").is_file() else "pretrain"
        way = f"Resume it with 'etude {verb} --resume {folder}', or choose" if known else "Choose"
        raise UserError(f"{folder} exists already. {way} another folder with -o.")


def fresh(recipe: Recipe, tokenizer: Tokenizer) -> tuple[nn.Module, Objective]:
    """Model and objective with initial weights: a function of the recipe and its seed alone."""
    torch.manual_seed(fold(recipe.train.seed, "weights") >> 1)
    model = recipe.build_model()
    return model, recipe.build_objective(model, tokenizer.special)
