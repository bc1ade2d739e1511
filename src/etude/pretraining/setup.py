"""Preparation of a pre-training: the complete recipe, its rows, the held-out text."""

from __future__ import annotations

from pathlib import Path

from etude.errors import UserError
from etude.pretraining.student import with_teacher, without_teacher
from etude.recipes.document import Overrides, parse_overrides
from etude.recipes.schema import Recipe
from etude.runs.source import Source, resolve_for
from etude.train import peak
from etude.train.device import default_device


def load_recipe(recipe: str | Path | Recipe, overrides: Overrides, distilled: bool = False) -> Recipe:
    """Return a recipe with some settings changed; `distilled`: a teacher will be attached."""
    if not distilled and "distill" in parse_overrides(overrides).values:
        raise UserError("distill.* are settings of a distillation: use 'etude distill', or leave them out.")
    loaded = recipe.with_settings(overrides) if isinstance(recipe, Recipe) else Recipe.load(recipe, overrides)
    return with_teacher(loaded) if distilled else without_teacher(loaded)


def resolve_recipe(
    recipe: str | Path | Recipe, corpus: Source, overrides: Overrides, distilled: bool = False
) -> Recipe:
    """Return the complete recipe for this source and this machine; `distilled`: a teacher will be attached."""
    resolved = resolve_for(load_recipe(recipe, overrides, distilled), corpus)
    device = resolved.train.device or default_device()
    changes: dict[str, object] = {}
    if resolved.train.device is None:
        changes["train.device"] = device
    if resolved.train.precision == "auto":
        changes["train.precision"] = peak.resolve_precision("auto", device)
    return resolved.with_settings(changes) if changes else resolved
