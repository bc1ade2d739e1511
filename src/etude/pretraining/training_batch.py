"""The batch of a training step, to be looked at: what `etude show batch` prints.

Rows and chance are functions of (seed, step), so these are the very sequences that a run of this recipe learns from in
that step. A few rows of it are built, whatever the size of a step. Weights are needed where the model itself makes a
part of the batch, as ELECTRA's generator draws tokens: a run shows what its own would draw, a recipe what one draws
before its first step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from etude.chance import Chance
from etude.errors import UserError, quote_path
from etude.graph.graph import Graph
from etude.graph.graph_split import GraphSplit
from etude.hub.run_weights import load_learner
from etude.models.base import Model
from etude.objectives.base import PretrainingObjective, rows_of
from etude.objectives.batch_view import BatchView, Words, cut_view
from etude.pretraining.continued import holds_model
from etude.pretraining.first_weights import FirstWeights
from etude.pretraining.loop import build_rows
from etude.pretraining.setup import load_recipe, resolve_recipe
from etude.recipes.document import Overrides, parse_overrides
from etude.recipes.learner import build_learner
from etude.recipes.model_memory import shapes_only
from etude.recipes.schema import Recipe
from etude.runs.run import RECIPE, Run
from etude.runs.source import Source, open_source
from etude.text.corpus.corpus import Corpus
from etude.train import schedule
from etude.train.loader import Loader
from etude.view.batch import Names, name_tokens

MOST_WEIGHTS = 300_000_000  # parameters; a larger model is not allocated for a look at its text


@dataclass(frozen=True)
class TrainingBatch:
    """Some sequences of a training step."""

    recipe: Recipe
    source: Source
    step: int
    rows: int  # of the whole step
    row_tokens: int | None  # of each
    view: BatchView
    entity_names: list[str] | None = None  # of a model that reads entities

    @property
    def names(self) -> Names:
        """What the numbers of the view are called."""
        if isinstance(self.source, GraphSplit):
            graph = self.source.graph
            return Names(lambda entity: graph.entities[entity], relations=graph.relations)
        return name_tokens(self.source.tokenizer, self.entity_names)

    def describe(self) -> Words:
        """Recipe, objective and size of the step, in English and Korean."""
        kind, unit = (
            self.recipe.objective_kind,
            ("triples", "삼중항") if self.recipe.reads_graph else ("tokens", "토큰"),
        )
        tokens = None if self.row_tokens is None else self.rows * self.row_tokens
        if tokens is None:
            return f"objective {kind}; a step has {self.rows:,} rows", f"목적 함수 {kind}, 한 스텝에 {self.rows:,}행"
        return (
            f"objective {kind}; a step has {tokens:,} {unit[0]} in {self.rows:,} rows of {self.row_tokens:,}",
            f"목적 함수 {kind}, 한 스텝에 {unit[1]} {tokens:,}개({self.row_tokens:,}개씩 {self.rows:,}행)",
        )


def build_training_batch(
    recipe: str | Path | Recipe,
    corpus: str | Path | Source | Graph,
    *,
    step: int = 0,
    sequences: int = 4,
    entities: str | Path | None = None,
    overrides: Overrides = (),
) -> TrainingBatch:
    """Build the first sequences of a step; `recipe` may be a run, whose recipe and weights are taken."""
    if isinstance(recipe, (str, Path)) and holds_model(recipe):
        resolved, source, model, objective = _open_run(Path(recipe), corpus, overrides)
        names = None if model.links is None else list(model.links.names)
    else:
        loaded = load_recipe(recipe, overrides)
        source = open_source(corpus, loaded)
        first = FirstWeights.read(None, entities)
        resolved = resolve_recipe(first.complete(loaded, source), source, ())
        model, objective = _build_learner(resolved, source, first)
        names = None if first.table is None else list(first.table.names)
    rows = build_rows(resolved, source, objective)
    settings, size = resolved.train, rows.row_tokens
    loader = Loader(
        objective,
        rows,
        seed=settings.seed,
        batch_rows=lambda number: schedule.batch_rows(settings, size, number),
        rows_before=lambda number: schedule.rows_before(settings, size, number),
        micro_tokens=None,
        workers=0,
    )
    numbers = loader.row_numbers(step)
    group = [replace(row, slot=slot) for slot, row in enumerate(rows_of(rows, numbers[:sequences]))]
    model.eval()
    objective.eval()
    view = objective.view_batch(model, objective.batch(group, Chance(settings.seed, step)))
    kinds = max(1, len({sequence.name for sequence in view.sequences}))  # a source and its target are shown together
    return TrainingBatch(
        resolved, source, step, len(numbers), rows.row_tokens, cut_view(view, sequences * kinds), names
    )


def _open_run(
    folder: Path, corpus: str | Path | Source | Graph, overrides: Overrides
) -> tuple[Recipe, Source, Model, PretrainingObjective]:
    if not (folder / RECIPE).is_file():
        raise UserError(
            f"{folder} is a model of another format: "
            f"make it a run first, with etude import {quote_path(folder)} -o RUN."
        )
    if parse_overrides(overrides).values:
        raise UserError(f"{folder} is a run with settings of its own: leave out those given, or name a recipe.")
    run = Run.open(folder)
    if run.is_fine_tuned:
        raise UserError(f"{folder} was fine-tuned on labelled examples: name the run it started from, or a recipe.")
    source = open_source(corpus, run.recipe)
    if isinstance(source, Corpus) and source.tokenizer.fingerprint != run.tokenizer.fingerprint:
        raise UserError(
            f"{folder} and {source.location} have different tokenizers. Prepare the text with the run's: "
            f"etude prepare ... --tokenizer {quote_path(folder)}"
        )
    model, objective, _ = load_learner(run)
    return run.recipe, source, model, objective


def _build_learner(recipe: Recipe, source: Source, first: FirstWeights) -> tuple[Model, PretrainingObjective]:
    """Model and objective; without weights where none are needed, or there would be too many."""
    with shapes_only():
        model, objective = build_learner(recipe, source.tokenizer)
    learner = [*model.parameters(), *objective.parameters()]
    if not objective.views_by_weights or sum(parameter.numel() for parameter in learner) > MOST_WEIGHTS:
        return model, objective
    return first.build(recipe, source)
