"""A published folder as a model of ours: the way back of `publishing.py`, through the same tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from etude.errors import UserError
from etude.hub import elmo_files as elmo
from etude.hub import mapping
from etude.hub import openai_gpt as openai
from etude.hub.checkpoint_writer import GENERATOR, read_generator, shapes_of, trimmed
from etude.hub.families import electra, of_config
from etude.hub.family import ACTIVATIONS, Family
from etude.hub.tokenizer_files import leading, open_tokenizer
from etude.hub.weights import locate, read_config, read_tensors
from etude.models.transformer import Settings
from etude.recipes.document import Document
from etude.recipes.schema import Recipe
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.train.checkpoint import load_strictly


@dataclass(frozen=True)
class Adopted:
    family: str
    architecture: str
    recipe: Recipe  # model and objective; its `train` says nothing of how the model was trained
    tensors: dict[str, Tensor]  # under our names
    untrained: frozenset[str]  # tensors of the recipe for which the folder has nothing: heads it came without
    tokenizer: Tokenizer
    notes: tuple[str, ...]  # what a person should know: rows that were left out, heads that are missing

    def fill(self, learner: nn.ModuleDict) -> None:
        """Copies the tensors into {"model": ..., "objective": ...}, strictly; what is untrained stays as it is."""
        kept = {name: one for name, one in learner.state_dict().items() if name in self.untrained}
        load_strictly(learner, {**self.tensors, **kept}, self.recipe.name)


def adopt(source: str | Path) -> Adopted:
    """Reads a folder of transformers, of OpenAI's GPT-1 or of ELMo; fetches it where it is a hub id."""
    folder = locate(source)
    if elmo.is_release(folder):
        return _adopt_elmo(folder)
    released = openai.is_release(folder)
    if released:
        config, tensors, tokenizer = openai.read(folder)
    else:
        config, tensors, tokenizer = read_config(folder), read_tensors(folder), open_tokenizer(folder)
    where = str(folder)
    if str(config.get("model_type", "")).startswith("etude-"):
        raise UserError(f"{folder} holds a model under etude's own names: open it as a run, with its recipe.yaml.")
    family = of_config(config, tensors, where)
    model = family.settings(config, where)
    if released:  # how its own code drops; transformers drops states
        model = model.model_copy(update={"embedding_dropout_on": "table"})
    parts = mapping.parts_of(family.table, model, tensors)
    if "pooler" in family.more:
        model = model.model_copy(update={"pooler": "pooler" in parts})
    objective = _objective(family, model, parts, config, folder, tokenizer)
    recipe = _recipe(folder.resolve().name, family, model, objective, tokenizer)
    shapes = shapes_of(recipe, tokenizer.special)
    tied = bool(config.get("tie_word_embeddings", family.tied))
    ours = mapping.read(family.table, model, tensors, shapes, where, tied)
    if family.objective == "replaced" and (folder / GENERATOR).is_dir():
        ours |= read_generator(recipe, shapes, ours, folder / GENERATOR)
    untrained = frozenset(set(shapes) - set(ours))
    notes = [f"has no weights for {', '.join(sorted(untrained))}: they start fresh"] if untrained else []
    assert model.vocab is not None
    if tokenizer.vocab > model.vocab:
        raise UserError(
            f"{folder}: the tokenizer has {tokenizer.vocab} tokens and the model rows for {model.vocab}. "
            "The two do not belong together: take the tokenizer that the model was trained with."
        )
    if tokenizer.vocab < model.vocab:
        ours, said = trimmed(ours, tokenizer.vocab)
        notes += said
        recipe = recipe.with_settings({"model.vocab": tokenizer.vocab})
    return Adopted(
        family=family.name,
        architecture=str((config.get("architectures") or [family.architectures[0][1]])[0]),
        recipe=recipe,
        tensors={name: one.contiguous() for name, one in ours.items()},
        untrained=untrained,
        tokenizer=tokenizer,
        notes=tuple(notes),
    )


def _adopt_elmo(folder: Path) -> Adopted:
    recipe, tensors, tokenizer = elmo.read(folder)
    untrained = frozenset(set(shapes_of(recipe, tokenizer.special)) - set(tensors))
    notes = ("has no output layer: it gives states, and one for training on starts fresh",)
    return Adopted("elmo", "biLM", recipe, tensors, untrained, tokenizer, notes)


def _objective(
    family: Family,
    model: Settings,
    parts: set[str],
    config: Mapping[str, Any],
    folder: Path,
    tokenizer: Tokenizer,
) -> dict[str, Any]:
    """The values of the recipe's objective."""
    if family.objective == "replaced":
        beside = folder / GENERATOR
        generator = electra.GENERATOR.settings(read_config(beside), str(beside)) if beside.is_dir() else None
        return electra.objective_for(model, generator)
    if family.objective == "causal":
        return {"kind": "causal", **_begin(tokenizer)}
    own = config.get("etude") or {}
    sentence = own.get("sentence", family.sentence) if "sentence" in parts else "none"
    activation = family.head_activation
    if family.head_key is not None:
        activation = ACTIVATIONS.get(config.get(family.head_key, "gelu"))
    return {"kind": "masked", "sentence": sentence, "activation": activation}


def _begin(tokenizer: Tokenizer) -> dict[str, Any]:
    """How a causal model's texts begin, as its tokenizer says: with a start token, end-of-text, or nothing."""
    first, special = leading(tokenizer), tokenizer.special
    if first == [special.end]:
        return {"documents": "split"}
    if first == [special.start]:
        return {"start": True}
    if first:
        raise UserError(
            f"The tokenizer puts {' '.join(map(tokenizer.token, first))} before every text, which is neither a start "
            "token nor end-of-text here. Take that step out of its tokenizer.json (post_processor) to go without."
        )
    return {}


def _recipe(name: str, family: Family, model: Settings, objective: dict[str, Any], tokenizer: Tokenizer) -> Recipe:
    return Recipe.of(
        Document(
            {
                "name": name,
                "system": family.system,
                "note": "Imported. Its weights were trained elsewhere: the group train says nothing of how.",
                "tokenizer": f"{tokenizer.kind}:{tokenizer.vocab}",
                "model": {"kind": "transformer", **model.model_dump(mode="json")},
                "objective": objective,
                "train": {"steps": 1},
            }
        )
    )
