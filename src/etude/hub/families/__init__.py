"""The model families with a class in `transformers`, and the search for that of a recipe or a config.json."""

from __future__ import annotations

from collections.abc import Iterable

from etude.errors import UserError, suggest_name
from etude.hub.families import albert, bert, distilbert, electra, gpt, marian, modern
from etude.hub.family import Config, Family
from etude.models import transformer
from etude.recipes.schema import Recipe

# In order of preference: where a model fits two families, the simpler class is written.
FAMILIES: tuple[Family, ...] = (
    bert.FAMILY,
    distilbert.FAMILY,
    electra.GENERATOR,
    albert.FAMILY,
    electra.DISCRIMINATOR,
    gpt.GPT1,
    gpt.GPT2,
    modern.MODERNBERT,
    modern.LLAMA,
)


def match_recipe(recipe: Recipe) -> tuple[Family | None, str]:
    """Return the family of a recipe's model; or None, and the reason."""
    candidates = [family for family in FAMILIES if recipe.has_objective(family.objective)]
    if recipe.model_kind != "transformer" or not candidates:
        return None, f"{recipe.model_kind} models with the objective {recipe.objective_kind} have no class there"
    matches = [
        (
            family.find_mismatches(recipe.model_settings(transformer.Settings))
            + _find_objective_mismatches(family, recipe),
            family,
        )
        for family in candidates
    ]
    mismatches, best = min(matches, key=lambda match: len(match[0]))  # the first of equals
    if not mismatches:
        return best, ""
    return None, f"the nearest class is {best.architectures[0][1]}, and it has no place for {'; '.join(mismatches)}"


def match_encoder(recipe: Recipe) -> tuple[Family | None, str]:
    """Return the family of a recipe's model without what its objective adds, for heads of other tasks; or the reason.

    So a model with ModernBERT's layers is one whichever objective trained it.
    """
    family, reason = match_recipe(recipe)
    if family is not None or recipe.model_kind != "transformer":
        return family, reason
    settings = recipe.model_settings(transformer.Settings)
    return next((each for each in FAMILIES if not each.find_mismatches(settings)), None), reason


def _find_objective_mismatches(family: Family, recipe: Recipe) -> list[str]:
    mismatches = []
    if recipe.has_objective("causal") and recipe.objective.bias:
        mismatches.append("objective.bias=true (a bias on the logits)")
    if recipe.has_objective("masked") or recipe.has_objective("replaced"):
        settings = recipe.model_settings(transformer.Settings)
        expected = family.head_activation or settings.activation
        activation = recipe.objective.activation or settings.activation
        if activation != expected and family.head_activation_key is None:
            mismatches.append(f"objective.activation={activation} (the head of {family.system} has {expected})")
    sentence = getattr(recipe.objective, "sentence", "none")
    if sentence != "none" and family.sentence == "none":
        mismatches.append(f"objective.sentence={sentence} (a sentence task)")
    if recipe.has_objective("replaced"):
        for name, expected in (("variant", "electra"), ("tie", "embeddings")):
            if getattr(recipe.objective, name) != expected:
                mismatches.append(f"objective.{name}={getattr(recipe.objective, name)} (ELECTRA has {expected})")
    return mismatches


def match_config(config: Config, tensors: Iterable[str], source: str) -> Family:
    """Return the family of a published config.json; the names in `tensors` tell ELECTRA's two parts apart."""
    model_type = config.get("model_type")
    candidates = [family for family in FAMILIES if family.model_type == model_type]
    if not candidates:
        types = {family.model_type for family in FAMILIES} | {family.model_type for family in marian.FAMILIES}
        hint = suggest_name(str(model_type), types) if model_type else f" Known: {', '.join(sorted(types))}."
        raise UserError(f"{source}: models of the type {model_type!r} are not supported.{hint}")
    is_discriminator = any(name.startswith("discriminator_predictions.") for name in tensors)
    return next(
        (family for family in candidates if (family.objective == "replaced") == is_discriminator), candidates[0]
    )
