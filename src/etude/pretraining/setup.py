"""Preparation of a pre-training: the complete recipe, its rows, the held-out text."""

from __future__ import annotations

from pathlib import Path

from etude.errors import UserError
from etude.pretraining.student import with_teacher, without_teacher
from etude.recipes.document import Overrides, parse_overrides
from etude.recipes.schema import Recipe
from etude.text.corpus.corpus import Corpus
from etude.train import peak
from etude.train.device import default_device


def resolve_recipe(
    recipe: str | Path | Recipe, corpus: Corpus, overrides: Overrides, distilled: bool = False
) -> Recipe:
    """Return the complete recipe for this corpus and this machine; `distilled`: a teacher will be attached."""
    if not distilled and "distill" in parse_overrides(overrides).values:
        raise UserError("distill.* are settings of a distillation: use 'etude distill', or leave them out.")
    loaded = recipe.with_settings(overrides) if isinstance(recipe, Recipe) else Recipe.load(recipe, overrides)
    loaded = with_teacher(loaded) if distilled else without_teacher(loaded)
    resolved = loaded.resolve(vocab=corpus.tokenizer.vocab)
    device = resolved.train.device or default_device()
    changes: dict[str, object] = {}
    if resolved.train.device is None:
        changes["train.device"] = device
    if resolved.train.precision == "auto":
        changes["train.precision"] = peak.resolve_precision("auto", device)
    return resolved.with_settings(changes) if changes else resolved
