"""The families that have a class in `transformers`, and which of them a recipe or a config.json belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from etude.errors import UserError, suggest_name
from etude.hub.families import albert, bert, distilbert, electra, gpt, modern
from etude.hub.family import Family
from etude.recipes.schema import Recipe

# In the order of preference: where a model is of two families, the plainer class is written.
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
    """The family of a recipe's model; or None, and why there is none, by name."""
    candidates = [family for family in FAMILIES if family.objective == recipe.objective_kind]
    if recipe.model_kind != "transformer" or not candidates:
        return None, f"{recipe.model_kind} models with the objective {recipe.objective_kind} have no class there"
    judged = [(family.misfits(recipe.model) + _objective_misfits(family, recipe), family) for family in candidates]
    faults, best = min(judged, key=lambda one: len(one[0]))  # the first of equals
    if not faults:
        return best, ""
    return None, f"the nearest class is {best.architectures[0][1]}, and it has no place for {'; '.join(faults)}"


def _objective_misfits(family: Family, recipe: Recipe) -> list[str]:
    faults = []
    if recipe.objective_kind == "causal" and recipe.objective.bias:
        faults.append("objective.bias=true (a bias on the logits)")
    if recipe.objective_kind in ("masked", "replaced"):
        wanted = family.head_activation or recipe.model.activation
        has = recipe.objective.activation or recipe.model.activation
        if has != wanted and family.head_key is None:
            faults.append(f"objective.activation={has} (the head of {family.system} has {wanted})")
    sentence = getattr(recipe.objective, "sentence", "none")
    if sentence != "none" and family.sentence == "none":
        faults.append(f"objective.sentence={sentence} (a sentence task)")
    if recipe.objective_kind == "replaced":
        for name, wanted in (("variant", "electra"), ("tie", "embeddings")):
            if getattr(recipe.objective, name) != wanted:
                faults.append(f"objective.{name}={getattr(recipe.objective, name)} (ELECTRA has {wanted})")
    return faults


def match_config(config: Mapping[str, Any], tensors: Iterable[str], where: str) -> Family:
    """The family of a published config.json; `tensors` tell the two parts of ELECTRA apart."""
    kind = config.get("model_type")
    known = [family for family in FAMILIES if family.model_type == kind]
    if not known:
        types = {family.model_type for family in FAMILIES}
        hint = suggest_name(str(kind), types) if kind else f" Known: {', '.join(sorted(types))}."
        raise UserError(f"{where}: models of the type {kind!r} cannot be read here.{hint}")
    judges = any(name.startswith("discriminator_predictions.") for name in tensors)
    return next((family for family in known if (family.objective == "replaced") == judges), known[0])
