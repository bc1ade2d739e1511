"""The loop of a pre-training: a learner over the rows of a corpus, scored on its held-out part."""

from __future__ import annotations

from pathlib import Path

import torch

from etude.errors import UserError
from etude.models.base import Model
from etude.nn.deferred_weights import DeferredWeights
from etude.objectives.base import PretrainingObjective, Rows
from etude.recipes.schema import Recipe
from etude.runs.source import Source, held_out
from etude.text.corpus.bigram_baseline import unigram_entropy
from etude.text.corpus.corpus import Corpus
from etude.train.loop import Loop
from etude.train.parallel import Ranks
from etude.train.plateau import Plateau
from etude.train.progress import Progress

Learner = tuple[Model, PretrainingObjective]


def build_loop(
    folder: Path,
    recipe: Recipe,
    corpus: Source,
    learner: Learner,
    device: torch.device,
    ranks: Ranks,
    progress: Progress,
    deferred: DeferredWeights | None = None,
) -> Loop:
    """Return the loop that trains a learner in the folder of a run; its budget is a number of steps by now.

    `deferred` fills a learner that was built on the meta device.
    """
    model, objective = learner
    settings, valid = recipe.train, held_out(corpus)
    assert settings.steps is not None  # fix_budget stored it
    plateau = None
    if isinstance(corpus, Corpus) and objective.token_loss is not None:
        plateau = Plateau(unigram_entropy(corpus.token_counts()))
    loop = Loop(
        folder,
        model,
        objective,
        build_rows(recipe, corpus, objective),
        settings,
        total=settings.steps,
        valid_rows=objective.rows(valid, settings.seed) if valid else None,
        tokens_per_byte=objective.tokens_per_byte(valid) if valid else None,
        device=device,
        ranks=ranks,
        progress=progress,
        deferred=deferred,
    )
    loop.plateau = plateau
    return loop


def check_held_out(recipe: Recipe, corpus: Source, objective: PretrainingObjective) -> None:
    """Raise UserError where an objective cannot be evaluated on the held-out part, before anything is measured."""
    if (valid := held_out(corpus)) is not None:
        objective.rows(valid, recipe.train.seed)


def build_rows(recipe: Recipe, corpus: Source, objective: PretrainingObjective) -> Rows:
    """Return the rows of a source; UserError where it does not fill one."""
    rows = objective.rows(corpus, recipe.train.seed)
    if len(rows) == 0 and isinstance(corpus, Corpus):
        raise UserError(
            f"{corpus.location} holds {corpus.total:,} tokens: not enough for one row of {rows.row_tokens} tokens. "
            "Prepare more text, or choose a smaller model.context and objective.row_tokens."
        )
    return rows
