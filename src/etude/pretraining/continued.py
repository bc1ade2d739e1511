"""Continued pre-training: an existing model goes on learning from other text, as in Gururangan et al. 2020.

`etude pretrain RUN CORPUS`: where a folder with a model stands in the place of a recipe, model, tokenizer and objective
are its own, and so are the first weights. What the folder has no weights for (the masked-LM head of a published
sentence encoder) starts anew, and a message names it. The text must be prepared with the model's tokenizer.

How it was trained before says little about going on, and of a published model it is not known: a budget must be given,
and the peak rate is half of that of a run of ours, or 1e-4 at BERT's width of 768 (their rate for adapting to a task's
own text), more for narrower models in proportion. `origin.json` records where the weights came from.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from torch import Tensor, nn

from etude.errors import UserError, quote_path
from etude.hub import read_checkpoint
from etude.hub.run_weights import fingerprint_tensors, load_learner
from etude.inference.task_model import TaskModel
from etude.models.base import Model
from etude.objectives.base import PretrainingObjective
from etude.recipes.document import Overrides, parse_overrides
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.runs.run import RECIPE, Run, corpus_origin
from etude.runs.source import ORIGIN, read_origin
from etude.text.corpus.corpus import Corpus
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.train import checkpoint
from etude.train.settings import BUDGETS

LARGEST_LR = 1e-3
IMPORTED_BATCH_TOKENS = 8192  # a step of a model whose own batch is not known
log = logging.getLogger("etude")


@dataclass(frozen=True)
class StartWeights:
    """A model to go on from: its recipe, and its weights under our names."""

    folder: Path
    recipe: Recipe
    tokenizer: Tokenizer
    weights: Mapping[str, Tensor]  # "model." and "objective.", of what was trained
    imported: bool  # trained elsewhere: the group `train` of its recipe says nothing

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint_tensors(self.weights)


def holds_model(source: str | Path) -> bool:
    """Whether what stands in the place of a recipe is a folder with a model: a run, or a folder of transformers."""
    return any((Path(source) / name).is_file() for name in (RECIPE, "config.json"))


def read_start(folder: str | Path) -> StartWeights:
    """Read what a folder holds; of a fine-tuned run the model alone."""
    folder = Path(folder)
    if not (folder / RECIPE).is_file():
        imported = read_checkpoint(folder)
        return StartWeights(folder, imported.recipe, imported.tokenizer, imported.tensors, imported=True)
    run = Run.open(folder)
    weights: dict[str, Tensor] = {}
    if run.is_fine_tuned:
        model: Model = TaskModel.open(run.folder, device="cpu").model.base
    else:
        model, objective, untrained = load_learner(run)
        state = {f"objective.{name}": tensor for name, tensor in objective.state_dict().items()}
        weights = {name: tensor for name, tensor in state.items() if name not in untrained}
    weights |= {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    origin = folder / ORIGIN
    imported_run = origin.is_file() and "imported" in read_origin(folder)
    return StartWeights(folder, run.recipe, run.tokenizer, weights, imported_run)


def continued_recipe(start: StartWeights, overrides: Overrides) -> Recipe:
    """The recipe of going on: the start's own, with a budget that must be given and a lower rate."""
    given = parse_overrides(overrides).values.get("train") or {}
    if all(given.get(budget) is None for budget in BUDGETS):
        raise UserError(
            f"How long should {start.folder} go on? Give a budget, such as train.minutes=10 or train.tokens=1e7."
        )
    model = start.recipe.build_model()
    changes: dict[str, object] = {"train.device": None, "train.precision": "auto"}
    if start.imported:
        lr = min(LARGEST_LR, 1e-4 * 768 / model.width)
        changes |= {"train.lr": lr, "train.batch_tokens": IMPORTED_BATCH_TOKENS, "train.warmup": 0.06}
    else:
        changes |= {"train.lr": start.recipe.train.lr / 2}
    recipe = start.recipe.with_settings(changes).with_settings(overrides)
    note = f"Goes on from {start.folder.name} (fingerprint {start.fingerprint[:16]})."
    return replace(recipe, note=note)


def check_tokenizers(start: StartWeights, corpus: Corpus) -> None:
    """Raise UserError where the text was not prepared with the tokenizer of the model to start from."""
    if start.tokenizer.fingerprint != corpus.tokenizer.fingerprint:
        raise UserError(
            f"{start.folder} and {corpus.location} have different tokenizers: a token would mean two things. "
            f"Prepare the text with the model's: etude prepare ... --tokenizer {quote_path(start.folder)}"
        )


def build_continued(recipe: Recipe, corpus: Corpus, start: StartWeights) -> tuple[Model, PretrainingObjective]:
    """Model and objective with the weights of the start; UserError where the model or the tokenizer is another."""
    check_tokenizers(start, corpus)
    model, objective = build_learner(recipe, corpus.tokenizer)
    learner = nn.ModuleDict({"model": model, "objective": objective})
    initial = learner.state_dict()
    weights = {
        name: tensor
        for name, tensor in start.weights.items()
        if name.startswith("model.") or (name in initial and initial[name].shape == tensor.shape)
    }
    new = sorted(name for name in initial.keys() - weights.keys() if not name.startswith("model."))
    if new:
        log.warning("%s has no weights for %s: they start anew.", start.folder, ", ".join(new))
    checkpoint.load_strictly(learner, {**{name: initial[name] for name in new}, **weights}, str(start.folder))
    return model, objective


# --- where a run came from ----------------------------------------------------------------------------


def start_file(start: StartWeights, corpus: Corpus, partial: bool = False) -> dict[str, str]:
    """The origin file of a run that goes on, by name; `partial`: it is another model, with some of the weights."""
    content = json.loads(corpus_origin(corpus)[ORIGIN])
    content["start"] = {"folder": str(start.folder.resolve()), "fingerprint": start.fingerprint}
    if partial:
        content["start"]["partial"] = True
    return {ORIGIN: json.dumps(content, indent=1, ensure_ascii=False)}


def read_start_file(run: Run) -> tuple[Path, str] | None:
    """The folder and the fingerprint that a run goes on from; None where it began with new weights."""
    origin = run.folder / ORIGIN
    if not origin.is_file():
        return None
    start = read_origin(run.folder).get("start")
    return None if start is None else (Path(start["folder"]), start["fingerprint"])


def describe_start(run: Run) -> str | None:
    """What a run goes on from, without paths; None where it began with new weights."""
    start = read_start_file(run)
    return None if start is None else f"{start[0].name}, fingerprint `{start[1][:16]}`"


def rebuild_continued(run: Run, corpus: Corpus, folder: Path, fingerprint: str) -> tuple[Model, PretrainingObjective]:
    """Model and objective of a run that goes on: from its checkpoint, or from its start while it has none."""
    if run.steps:
        return build_learner(run.recipe, corpus.tokenizer)
    if not folder.is_dir():
        raise UserError(f"{run.folder} goes on from {folder}, which is not there. Put it back, or start a new run.")
    start = read_start(folder)
    if start.fingerprint != fingerprint:
        raise UserError(f"{folder} is not the model that {run.folder} began with: its weights differ.")
    return build_continued(run.recipe, corpus, start)
