"""From a recipe to a learner: the model and the objective with their initial weights."""

from __future__ import annotations

import torch

from etude.chance import fold
from etude.models.base import Model
from etude.objectives.base import PretrainingObjective
from etude.recipes.schema import Recipe
from etude.text.tokenizer.special_tokens import Specials
from etude.text.tokenizer.tokenizer import Tokenizer


def build_learner(recipe: Recipe, tokenizer: Tokenizer | None) -> tuple[Model, PretrainingObjective]:
    """Return model and objective with initial weights: a function of the recipe and its seed alone.

    A graph has no tokenizer, and so no special tokens.
    """
    torch.manual_seed(fold(recipe.train.seed, "weights") >> 1)
    model = recipe.build_model()
    return model, recipe.build_objective(model, Specials() if tokenizer is None else tokenizer.special)
