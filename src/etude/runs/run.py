"""The run folder: everything that is known about a training run, and the only thing passed between steps.

    recipe.yaml         the resolved recipe: complete, and enough to repeat the run
    tokenizer.json      of a run on a graph entities.json: the names of its entities and relations; of a translation
                        run with a tokenizer for each side also target_tokenizer.json
    origin.json         the corpus or the graph it learns from: its path and its fingerprint
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

from etude.errors import UserError, quote_path
from etude.graph.entity_links import EntityLinks
from etude.models.base import Model
from etude.notebook import render_card, render_curve, render_facts
from etude.recipes.schema import Recipe
from etude.runs.folder_kinds import explain_other_folder
from etude.runs.source import ORIGIN, Source, read_origin, reopen_source, source_files
from etude.runs.staging import staged_folder
from etude.settings import read_json
from etude.text.corpus.corpus import Corpus
from etude.text.tokenizer.pair_tokenizer import open_tokenizers
from etude.text.tokenizer.special_tokens import Specials
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.train import checkpoint
from etude.train.metrics_log import read_metrics

RECIPE, TASK = "recipe.yaml", "task.yaml"
TRIALS = "trials.json"  # of a comparison of several fine-tunings (transfer/search.py)
COUNTERS = frozenset({"split", "step", "tokens", "flops", "seconds"})  # of a line of metrics
WEIGHTS, METRICS, MODEL_CARD = "model.safetensors", "metrics.jsonl", "README.md"


@dataclass(frozen=True)
class Run:
    """A run by its folder."""

    folder: Path

    def __fspath__(self) -> str:
        """Its folder: a run may be given wherever the path of one is asked for."""
        return str(self.folder)

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        """Open a run; raise UserError where the folder is none."""
        folder = Path(folder)
        refuse_unfinished_search(folder)
        if not (folder / RECIPE).is_file():
            missing = f"it holds no {RECIPE}. 'etude pretrain RECIPE CORPUS -o {quote_path(folder)}' makes one."
            raise UserError(explain_other_folder(folder) or f"{folder} is not a run: {missing}")
        return cls(folder)

    @classmethod
    def create(
        cls,
        folder: str | Path,
        recipe: Recipe,
        tokenizer: Tokenizer | None,
        files: Mapping[str, str],
        links: EntityLinks | None = None,
    ) -> Run:
        """Create the folder with everything a resume needs, all at once; `files`: further texts by name.

        A run on a graph has no tokenizer. `links`: what finds the entities of a text, of a model that reads them.
        """
        with staged_folder(Path(folder)) as staging:
            write_run_files(staging, recipe, tokenizer, files, links)
        return cls(Path(folder))

    # --- content ------------------------------------------------------------------------------------

    @cached_property
    def recipe(self) -> Recipe:
        path = self.folder / RECIPE
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{path} is damaged: it is not UTF-8 at byte {error.start}.") from None
        return Recipe.parse(text, str(path))

    @cached_property
    def tokenizer(self) -> Tokenizer:
        if self.recipe.reads_graph:
            raise UserError(
                f"{self.folder} holds vectors of a graph's entities and reads no text. It can be evaluated on triples, "
                "exported as a file of vectors, and given to a recipe that reads entities."
            )
        return open_tokenizers(self.folder)

    @property
    def special(self) -> Specials:
        """The special tokens of its tokenizer; none of a run on a graph."""
        return Specials() if self.recipe.reads_graph else self.tokenizer.special

    def attach_links(self, model: Model) -> Model:
        """The model, with what the run keeps to find the entities of a text where it reads them."""
        if model.reads_entities:
            links = EntityLinks.load(self.folder)
            if links is not None:
                model.attach_links(links)
        return model

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

    def _logged(self, split: str) -> list[dict[str, Any]]:
        """The lines of a split; none of a run that was trained elsewhere and has no log."""
        return self.metrics(split) if (self.folder / METRICS).is_file() else []

    def _repr_html_(self) -> str:
        """The run in a notebook: what it is, where it stands, its loss."""
        return render_card(str(self.folder), render_facts(self.describe()), self.render_loss())

    def describe(self) -> list[tuple[str, object]]:
        """Facts of the run by name, for a reader."""
        recipe, lines, valid = self.recipe, self._logged("train"), self._logged("valid")
        step = int(lines[-1]["step"]) if lines else 0
        planned = "" if recipe.train.steps is None else f" of {recipe.train.steps:,}"
        scores = {} if not valid else {name: value for name, value in valid[-1].items() if name not in COUNTERS}
        return [
            ("system", recipe.system),
            ("recipe", recipe.name),
            ("state", "finished" if self.finished else "not finished"),
            ("step", f"{step:,}{planned}" if step else None),
            ("tokens", f"{int(lines[-1]['tokens']):,}" if lines else None),
            ("held out", ", ".join(f"{name} {value:.4f}" for name, value in scores.items() if is_number(value))),
        ]

    def render_loss(self) -> str:
        """The training loss as HTML: a curve of at most 200 points; empty where there is none."""
        losses = [float(line["loss"]) for line in self._logged("train") if is_number(line.get("loss"))]
        return render_curve(losses[:: max(1, len(losses) // 200)], "training loss")

    @property
    def pairs(self) -> tuple[str, str] | None:
        """The names of source and target in the pairs it learnt from; None where it learnt from none."""
        names = read_origin(self.folder).get("pairs") if (self.folder / ORIGIN).is_file() else None
        return None if names is None else (str(names[0]), str(names[1]))

    def source(self, folder: str | Path | None = None) -> Source:
        """Open its corpus or graph, from `folder` where that moved, after checking that it is still the same one."""
        return reopen_source(self.folder, self.recipe, folder)

    def corpus(self, folder: str | Path | None = None) -> Corpus:
        """Open its corpus; UserError where it learnt from a graph."""
        source = self.source(folder)
        if not isinstance(source, Corpus):
            raise UserError(f"{self.folder} learnt from a graph: it has no corpus.")
        return source


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def refuse_unfinished_search(folder: Path) -> None:
    """Raise UserError where a comparison of several fine-tunings has not chosen one of them, or dropped this one."""
    if (folder / TRIALS).is_file() and not (folder / RECIPE).is_file():
        finished = sorted(path.parent for path in (folder / "trials").glob(f"*/{WEIGHTS}"))
        use = f" Its finished trials are runs of their own, such as {finished[0]}." if finished else ""
        raise UserError(
            f"{folder} compares several fine-tunings and was stopped before one of them was chosen.{use} "
            f"Go on with: etude finetune --resume {quote_path(folder)}"
        )
    comparison = folder.parent.parent
    if folder.parent.name == "trials" and (folder / RECIPE).is_file() and not (folder / WEIGHTS).is_file():
        file = comparison / TRIALS
        if file.is_file() and "chosen" in read_json(file, dict[str, Any], "Take it from a copy, or compare again."):
            raise UserError(f"{folder} is a trial whose weights were removed in the end. Use {comparison}, the best.")


def write_run_files(
    folder: Path,
    recipe: Recipe,
    tokenizer: Tokenizer | None,
    files: Mapping[str, str],
    links: EntityLinks | None = None,
) -> None:
    """Write what every run starts with into a folder."""
    checkpoint.write_text(folder / RECIPE, recipe.dump())
    for name, text in files.items():
        checkpoint.write_text(folder / name, text)
    if tokenizer is not None:
        tokenizer.save(folder)
    if links is not None:
        links.save(folder)


def corpus_origin(corpus: Source) -> dict[str, str]:
    """The files that say what a run learns from, by name."""
    return source_files(corpus)


def import_origin(source: str) -> dict[str, str]:
    """The origin file of a run whose weights were trained elsewhere, by name."""
    content = {"corpus": "(imported, without a corpus)", "fingerprint": None, "imported": source}
    return {ORIGIN: json.dumps(content, indent=1, ensure_ascii=False)}
