"""The first weights of a run that come from elsewhere: another model's, and the vectors of a graph's entities.

`etude pretrain ernie CORPUS --start runs/bert --entities runs/transe`: what the two models have in common by name and
shape is taken over, what is new starts at random, and a message says both (ERNIE begins as BERT, Zhang et al. 2019,
section 4.1). The entity vectors fill the model's frozen table; they must be of the graph that the text is linked to.
`origin.json` records where both came from; a checkpoint holds them all, so that a resume needs neither.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import nn

from etude.errors import UserError
from etude.graph.entity_links import EntityLinks
from etude.graph.entity_table import EntityTable, load_entity_table
from etude.hub.run_weights import fingerprint_tensors
from etude.models.base import Model
from etude.objectives.base import PretrainingObjective
from etude.pretraining.continued import StartWeights, check_tokenizers, read_start, start_file
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.runs.run import Run, corpus_origin
from etude.runs.source import ORIGIN, Source, read_origin
from etude.text.corpus.corpus import Corpus

# what a model may have otherwise than the one it starts from, without a word
SIZES = {"layers", "vocab", "pooler", "dropout", "attention_dropout", "embedding_dropout", "context"}
log = logging.getLogger("etude")


class FirstWeights:
    """Another model to start from, and entity vectors; either may be absent."""

    def __init__(self, start: StartWeights | None, table: EntityTable | None, source: str = "") -> None:
        """`source`: the path of the entity vectors."""
        self.start, self.table, self.source = start, table, source

    @classmethod
    def read(cls, start: str | Path | None, entities: str | Path | None) -> FirstWeights:
        table = None if entities is None else load_entity_table(entities)
        source = "" if entities is None else str(Path(entities).resolve())
        return cls(None if start is None else read_start(start), table, source)

    @property
    def is_empty(self) -> bool:
        """Whether no weight comes from elsewhere."""
        return self.start is None and self.table is None

    @property
    def fingerprint(self) -> str:
        """A hash of all weights that come from elsewhere; empty where none do."""
        start = "" if self.start is None else self.start.fingerprint
        return start + ("" if self.table is None else _fingerprint(self.table))

    def complete(self, recipe: Recipe, corpus: Source | None) -> Recipe:
        """The recipe with the size of the entity table; UserError where table, model and text do not fit."""
        table = self.table
        if table is None:
            return recipe
        if not recipe.reads_entities:
            raise UserError(f"The model of {recipe.name} reads no entities: leave --entities out, or take ernie.")
        if table.graph is None:
            raise UserError(
                f"{self.source} does not say which graph its rows belong to. Give a run that was trained on the graph: "
                "etude pretrain transe GRAPH -o RUN."
            )
        if isinstance(corpus, Corpus) and corpus.graph is not None and corpus.graph != table.graph:
            raise UserError(
                f"{corpus.location} is linked to another graph (fingerprint {corpus.graph[:16]}) than the vectors of "
                f"{self.source} belong to ({table.graph[:16]}). Link the text to the graph of the vectors."
            )
        width = recipe.model.model_dump()["entity_width"]
        if width != table.width:
            raise UserError(
                f"The vectors of {self.source} have {table.width} numbers, and model.entity_width={width}. "
                f"Set model.entity_width={table.width}, and model.entity_heads to a number that divides it."
            )
        return recipe.with_settings({"model.entities": len(table.vectors), "model.graph": table.graph})

    def build(self, recipe: Recipe, corpus: Source) -> tuple[Model, PretrainingObjective]:
        """Model and objective of a resolved recipe, filled."""
        if self.start is None:
            model, objective = build_learner(recipe, corpus.tokenizer)
        else:
            assert isinstance(corpus, Corpus)  # a start is a model of text
            model, objective = build_started(recipe, corpus, self.start)
        if self.table is not None:
            model.set_entity_vectors(self.table.vectors)
        return model, objective

    def files(self, corpus: Source) -> dict[str, str]:
        """The files of a run that say where its first weights came from, by name."""
        if self.start is not None:
            assert isinstance(corpus, Corpus)
            files = start_file(self.start, corpus, partial=True)
        else:
            files = {ORIGIN: corpus_origin(corpus)[ORIGIN]}
        if self.table is None:
            return files
        content = json.loads(files[ORIGIN])
        content["entities"] = {"source": self.source, "fingerprint": _fingerprint(self.table)}
        assert self.table.graph is not None  # `complete` looked
        links = EntityLinks(self.table.graph, self.table.names)
        return {ORIGIN: json.dumps(content, indent=1, ensure_ascii=False), **links.files()}


def build_started(recipe: Recipe, corpus: Corpus, start: StartWeights) -> tuple[Model, PretrainingObjective]:
    """Model and objective with the weights of another model, wherever name and shape are the same."""
    check_tokenizers(start, corpus)
    model, objective = build_learner(recipe, corpus.tokenizer)
    learner = nn.ModuleDict({"model": model, "objective": objective})
    initial = learner.state_dict()
    common = {
        name: tensor
        for name, tensor in start.weights.items()
        if name in initial and initial[name].shape == tensor.shape
    }
    if not any(name.startswith("model.") for name in common):
        raise UserError(
            f"{start.folder} has no weights in common with {recipe.name}, by name and shape. Is it another size? "
            "Take a start of the same width, or leave --start out."
        )
    new = [name for name in initial if name not in common and not name.endswith("entity_table")]
    unused = [name for name in start.weights if name not in common]
    message = "Starts from %s: %d tensors are taken over; new are %s; left out are %s."
    log.warning(message, start.folder, len(common), _summarize(new), _summarize(unused))
    for name, value in recipe.model.model_dump().items():
        former = start.recipe.model.model_dump().get(name, value)
        if former != value and name not in SIZES:
            log.warning("model.%s is %s, and was %s in %s.", name, value, former, start.folder)
    learner.load_state_dict({**initial, **common})
    return model, objective


def _summarize(names: Iterable[str]) -> str:
    """Names of modules with the numbers of layers left out, each once."""
    patterns = dict.fromkeys(re.sub(r"\.\d+\.", ".*.", name).rpartition(".")[0] for name in names)
    return ", ".join(patterns) or "none"


def _fingerprint(table: EntityTable) -> str:
    return fingerprint_tensors({"vectors": torch.from_numpy(table.vectors)})


def rebuild_started(run: Run, corpus: Source) -> tuple[Model, PretrainingObjective] | None:
    """Model and objective of a run with first weights from elsewhere; None where it has none, or goes on as itself."""
    origin = read_origin(run.folder)
    start, entities = origin.get("start"), origin.get("entities")
    is_partial = start is not None and start.get("partial", False)
    if not is_partial and entities is None:
        return None
    if run.steps:  # a checkpoint holds the weights and the table
        return build_learner(run.recipe, corpus.tokenizer)
    sources = [start["folder"] if start and is_partial else None, entities["source"] if entities else None]
    missing = next((source for source in sources if source is not None and not Path(source).exists()), None)
    if missing is not None:
        raise UserError(f"{run.folder} starts from {missing}, which is not there. Put it back, or start a new run.")
    first = FirstWeights.read(*sources)
    is_same = first.start is None or (start is not None and first.start.fingerprint == start["fingerprint"])
    if first.table is not None and is_same and entities is not None:
        is_same = _fingerprint(first.table) == entities["fingerprint"]
    if not is_same:
        raise UserError(f"{run.folder} started from other weights than those that are there now. Start a new run.")
    return first.build(run.recipe, corpus)
