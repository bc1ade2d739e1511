"""Preparation of a pre-training: the complete recipe, its rows, the held-out text."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from etude.errors import UserError
from etude.pretraining.student import with_teacher, without_teacher
from etude.recipes.document import Overrides, parse_overrides
from etude.recipes.schema import PARTS, Recipe
from etude.runs.source import Source, resolve_for
from etude.train import peak
from etude.train.device import default_device

log = logging.getLogger("etude")


def load_recipe(recipe: str | Path | Recipe, overrides: Overrides, distilled: bool = False) -> Recipe:
    """Return a recipe with some settings changed; `distilled`: a teacher will be attached."""
    if not distilled and "distill" in parse_overrides(overrides).values:
        raise UserError("distill.* are settings of a distillation: use 'etude distill', or leave them out.")
    loaded = recipe.with_settings(overrides) if isinstance(recipe, Recipe) else Recipe.load(recipe, overrides)
    for group, values in parse_overrides(overrides).values.items():
        if group in PARTS and "kind" in values:
            _tell_dropped(recipe if isinstance(recipe, Recipe) else Recipe.load(recipe), loaded, group, values)
    return with_teacher(loaded) if distilled else without_teacher(loaded)


def _tell_dropped(before: Recipe, after: Recipe, group: str, named: Mapping[str, object]) -> None:
    """Warn of settings of a recipe that another kind of model or objective does not keep, though it has them, too."""
    old, new = getattr(before, group).model_dump(), getattr(after, group).model_dump()
    common = sorted(new.keys() & old.keys() - named.keys())
    dropped = [f"{group}.{name}={old[name]}" for name in common if new[name] != old[name]]
    if dropped:
        log.warning(
            "%s.kind=%s begins with its own settings: %s of %s are dropped. Give those that are to stay.",
            group, named["kind"], ", ".join(dropped), before.name,
        )  # fmt: skip


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
