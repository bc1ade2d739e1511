"""The run folder: everything that is known about a training run, and the only thing passed between steps.

    recipe.yaml         the resolved recipe: complete, and enough to repeat the run
    tokenizer.json
    origin.json         the corpus it learns from: its path and its fingerprint
    task.yaml           of a fine-tuned run: the task, its settings and files (runs/task_plan.py)
    distill.yaml        of a distilled run: its teacher (pretraining/distill.py)
    metrics.jsonl       one line an entry: step tokens flops seconds loss ...
    checkpoints/        step-000000001000/ ...: under our own names
    model.safetensors   the final weights, under the published names where the family has any
    config.json
    README.md           the model card

The folder appears by rename once its recipe is inside, so a folder that exists can always be resumed. Its weights are
read and written by `etude.hub.run_weights` and `etude.inference`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from etude.errors import UserError
from etude.recipes.schema import Recipe
from etude.runs.staging import staged_folder
from etude.text.checked_files import MANIFEST
from etude.text.corpus.corpus import Corpus
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.train import checkpoint
from etude.train.metrics_log import read_metrics

RECIPE, ORIGIN, TASK = "recipe.yaml", "origin.json", "task.yaml"
WEIGHTS, METRICS, MODEL_CARD = "model.safetensors", "metrics.jsonl", "README.md"


@dataclass(frozen=True)
class Run:
    """A run by its folder."""

    folder: Path

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        """Open a run; raise UserError where the folder is none."""
        folder = Path(folder)
        if not (folder / RECIPE).is_file():
            raise UserError(
                f"{folder} is not a run: it holds no {RECIPE}. 'etude pretrain RECIPE CORPUS -o {folder}' makes one."
            )
        return cls(folder)

    @classmethod
    def create(cls, folder: str | Path, recipe: Recipe, tokenizer: Tokenizer, files: Mapping[str, str]) -> Run:
        """Create the folder with everything a resume needs, all at once; `files`: further texts by name."""
        with staged_folder(Path(folder)) as staging:
            write_run_files(staging, recipe, tokenizer, files)
        return cls(Path(folder))

    # --- content ------------------------------------------------------------------------------------

    @cached_property
    def recipe(self) -> Recipe:
        path = self.folder / RECIPE
        return Recipe.parse(path.read_text(encoding="utf-8"), str(path))

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.open(self.folder)

    @property
    def finished(self) -> bool:
        return (self.folder / WEIGHTS).is_file()

    @property
    def is_fine_tuned(self) -> bool:
        return (self.folder / TASK).is_file()

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def steps(self) -> list[int]:
        """Steps of the complete checkpoints."""
        return checkpoint.list_steps(self.checkpoints)

    def metrics(self, split: str | None = None) -> list[dict[str, Any]]:
        lines = read_metrics(self.folder / METRICS)
        return [line for line in lines if split is None or line.get("split") == split]

    @property
    def pairs(self) -> tuple[str, str] | None:
        """The names of source and target in the pairs it learnt from; None where it learnt from none."""
        path = self.folder / ORIGIN
        names = json.loads(path.read_text(encoding="utf-8")).get("pairs") if path.is_file() else None
        return None if names is None else (str(names[0]), str(names[1]))

    def corpus(self, folder: str | Path | None = None) -> Corpus:
        """Open its corpus, from `folder` where that moved, after checking that it is still the same one."""
        origin = json.loads((self.folder / ORIGIN).read_text(encoding="utf-8"))
        path = Path(folder or origin["corpus"])
        if not (path / MANIFEST).is_file():
            raise UserError(f"The corpus of {self.folder} is not at {path}. Say where it is now with --corpus FOLDER.")
        corpus = Corpus.open(path)
        if corpus.fingerprint != origin["fingerprint"]:
            raise UserError(
                f"{path} is not the corpus {self.folder} was started on (its fingerprint differs). "
                "Point --corpus to the original, or start a new run."
            )
        return corpus


def write_run_files(folder: Path, recipe: Recipe, tokenizer: Tokenizer, files: Mapping[str, str]) -> None:
    """Write what every run starts with into a folder."""
    checkpoint.write_text(folder / RECIPE, recipe.dump())
    for name, text in files.items():
        checkpoint.write_text(folder / name, text)
    tokenizer.save(folder)


def corpus_origin(corpus: Corpus) -> dict[str, str]:
    """The origin file of a run that learns from a corpus, by name."""
    content: dict[str, Any] = {"corpus": str(corpus.folder.resolve()), "fingerprint": corpus.fingerprint}
    if corpus.pairs is not None:  # what a file of pairs to be translated calls its columns
        content["pairs"] = list(corpus.pairs)
    return {ORIGIN: json.dumps(content, indent=1, ensure_ascii=False)}


def import_origin(source: str) -> dict[str, str]:
    """The origin file of a run whose weights were trained elsewhere, by name."""
    content = {"corpus": "(imported, without a corpus)", "fingerprint": None, "imported": source}
    return {ORIGIN: json.dumps(content, indent=1, ensure_ascii=False)}
