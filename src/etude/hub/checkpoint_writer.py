"""A model of ours in the published form: what `transformers` opens, from a recipe and its tensors.

PublishedModel.config      config.json
PublishedModel.tensors     model.safetensors, under the published names
PublishedModel.files       what makes the tokenizer open beside them
PublishedModel.beside      further models in folders of their own (ELECTRA's generator)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from etude.errors import UserError
from etude.hub import mapping
from etude.hub.families import electra, match_recipe
from etude.hub.family import Family, activation_name
from etude.hub.tokenizer_files import make_tokenizer_configs
from etude.models import transformer
from etude.recipes.schema import Recipe
from etude.text.tokenizer.special_tokens import Specials
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.train import checkpoint

VOCABULARY = ("model.embedding.tokens.weight", "objective.head.bias", "objective.generator_head.bias")  # a row a token
AUTO_CLASSES = {
    "ForPreTraining": "AutoModelForPreTraining",
    "ForMaskedLM": "AutoModelForMaskedLM",
    "ForCausalLM": "AutoModelForCausalLM",
    "LMHeadModel": "AutoModelForCausalLM",
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "ForTokenClassification": "AutoModelForTokenClassification",
    "ForQuestionAnswering": "AutoModelForQuestionAnswering",
    "ForMultipleChoice": "AutoModelForMultipleChoice",
    "Model": "AutoModel",
}  # the ending of an architecture -> what opens it
GENERATOR = "generator"  # the folder, and the start of the names: objective.generator.*


@dataclass(frozen=True)
class PublishedModel:
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    files: dict[str, str] = field(default_factory=dict)
    beside: dict[str, PublishedModel] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # what a person should know: rows that were left out
    usage: tuple[str, ...] = ()  # how the folder is opened, where not by a class of transformers

    @property
    def architecture(self) -> str:
        return str(self.config["architectures"][0])

    @property
    def auto_class(self) -> str:
        """The class of transformers that opens it with all of its heads."""
        return next(opener for ending, opener in AUTO_CLASSES.items() if self.architecture.endswith(ending))


def to_published(
    recipe: Recipe, tensors: Mapping[str, Tensor], tokenizer: Tokenizer, *, trim: bool = False
) -> PublishedModel | None:
    """The published form of a model; None where its family has no class in transformers (`describe_mismatch` says why).

    `tensors` are those of a run: `model.*` and `objective.*`; heads may be absent as a whole. `trim` leaves out the
    rows of the vocabulary for which the tokenizer has no token.
    """
    family, _ = match_recipe(recipe)
    if family is None or describe_mismatch(recipe, tensors):
        return None
    settings = recipe.model
    notes: tuple[str, ...] = ()
    if trim and tokenizer.vocab < settings.vocab:
        tensors, notes = trim_vocab(tensors, tokenizer.vocab)
        settings = settings.model_copy(update={"vocab": tokenizer.vocab})
    where = f"recipe {recipe.name} as {family.system}"
    apart = {name: one for name, one in tensors.items() if name.startswith(f"objective.{GENERATOR}")}
    own = {name: one for name, one in tensors.items() if name not in apart}
    published = _form(family, family.table, settings, own, tokenizer, where)
    start = tokenizer.special.start if getattr(recipe.objective, "start", False) else None
    if start is not None:
        published.config["bos_token_id"] = start
    files = make_tokenizer_configs(tokenizer, settings.context, segments=settings.segments > 0, start=start)
    if family.head_key is not None:
        published.config[family.head_key] = activation_name(recipe.objective.activation or settings.activation)
    sentence = getattr(recipe.objective, "sentence", "none")
    if sentence not in ("none", family.sentence):
        published.config["etude"] = {"sentence": sentence}  # the class has one name for either task
    beside = {}
    if apart:
        shared = {
            name: one for name, one in own.items() if name.startswith("model.embedding.") and "project" not in name
        }
        smaller = electra.generator_settings(recipe).model_copy(update={"vocab": settings.vocab})
        generator = _form(
            electra.GENERATOR, electra.BESIDE, smaller, {**shared, **apart}, tokenizer, f"{where}, generator"
        )
        beside[GENERATOR] = replace(generator, files=files)
    return replace(published, files=files, beside=beside, notes=notes)


def describe_mismatch(recipe: Recipe, tensors: Iterable[str] = ()) -> str:
    """Why `publish` gives None for a recipe and the names of its tensors; empty where it does not."""
    family, why = match_recipe(recipe)
    if family is None:
        return why
    known = {name for rule in family.table.expand(recipe.model) for name in rule.ours}
    if family.objective == "replaced":
        known |= {name for rule in electra.BESIDE.expand(electra.generator_settings(recipe)) for name in rule.ours}
    strange = sorted(set(tensors) - known)
    return f"{family.architectures[0][1]} has no place for {', '.join(strange)}" if strange else ""


def _form(
    family: Family,
    table: mapping.Table,
    settings: transformer.Settings,
    tensors: Mapping[str, Tensor],
    tokenizer: Tokenizer,
    where: str,
) -> PublishedModel:
    theirs = mapping.to_published_names(table, settings, tensors, where)
    parts = mapping.find_parts(table, settings, theirs)
    config = family.config(settings, parts) | special_token_ids(tokenizer.special, family.objective == "causal")
    return PublishedModel(config, {name: one.detach().cpu() for name, one in theirs.items()})


def special_token_ids(special: Specials, causal: bool) -> dict[str, int | None]:
    """The ids that config.json repeats from the tokenizer; without them transformers takes those of its own models."""
    if causal:
        return {"pad_token_id": special.pad, "bos_token_id": special.end, "eos_token_id": special.end}
    around = {"bos_token_id": special.start, "eos_token_id": special.separator}
    return {"pad_token_id": special.pad, **around, "cls_token_id": special.start, "sep_token_id": special.separator}


def trim_vocab(tensors: Mapping[str, Tensor], vocab: int) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """The tensors without the rows beyond a vocabulary, and what was done, in words."""
    cut = {name: one[:vocab] if name in VOCABULARY else one for name, one in tensors.items()}
    rows = tensors[VOCABULARY[0]].shape[0]
    return cut, (
        f"left out {rows - vocab} rows of the vocabulary ({rows} to {vocab}): the tokenizer has no such tokens",
    )


def compute_shapes(recipe: Recipe, special: Specials) -> dict[str, tuple[int, ...]]:
    """The names and shapes of all tensors of a recipe, without making them."""
    with torch.device("meta"):
        model = recipe.build_model()
        learner = nn.ModuleDict({"model": model, "objective": recipe.build_objective(model, special)})
    return {name: tuple(one.shape) for name, one in learner.state_dict().items()}


def write_published(published: PublishedModel, folder: Path) -> None:
    """Writes everything into an existing folder; model.safetensors last, since it says that all is there."""
    for name, part in published.beside.items():
        (folder / name).mkdir(exist_ok=True)
        write_published(part, folder / name)
    for name, text in published.files.items():
        checkpoint.write_text(folder / name, text)
    checkpoint.write_text(folder / "config.json", json.dumps(published.config, indent=1) + "\n")
    write_tensors(published.tensors, folder / "model.safetensors")


def write_tensors(tensors: Mapping[str, Tensor], file: Path) -> None:
    """safetensors, written aside and renamed into place."""
    writing = file.with_name(f".{file.name}.writing")
    save_file(
        {name: one.detach().cpu().contiguous() for name, one in tensors.items()}, writing, metadata={"format": "pt"}
    )
    checkpoint.flush(writing)
    writing.replace(file)
    checkpoint.flush(file.parent)


def read_run_tensors(recipe: Recipe, special: Specials, folder: Path) -> tuple[dict[str, Tensor], set[str]]:
    """The weights of a run under our names, from the form that `publish` or plain saving gave them.

    The second value names the tensors for which the folder has nothing: heads of an encoder that came without.
    """
    from etude.hub.weights import read_config, read_tensors

    config, tensors = read_config(folder), read_tensors(folder)
    if str(config.get("model_type", "")).startswith("etude-"):
        return tensors, set(config.get("untrained", ()))
    family, why = match_recipe(recipe)
    if family is None:
        raise UserError(f"{folder}: config.json says {config.get('model_type')!r}, yet {why}. Was recipe.yaml changed?")
    shapes = compute_shapes(recipe, special)
    ours = mapping.to_own_names(family.table, recipe.model, tensors, shapes, str(folder / "model.safetensors"))
    if (folder / GENERATOR).is_dir():
        ours |= read_generator(recipe, shapes, ours, folder / GENERATOR)
    return ours, set(shapes) - set(ours)


def read_generator(
    recipe: Recipe, shapes: mapping.Shapes, shared: Mapping[str, Tensor], folder: Path
) -> dict[str, Tensor]:
    """The tensors of ELECTRA's generator; its tables must be those of the discriminator."""
    from etude.hub.weights import read_tensors

    settings = electra.generator_settings(recipe).model_copy(update={"vocab": recipe.model.vocab})
    found = mapping.to_own_names(electra.BESIDE, settings, read_tensors(folder), shapes, str(folder))
    for name in [name for name in found if name.startswith("model.")]:
        if not torch.equal(found.pop(name), shared[name]):
            raise UserError(
                f"{folder}: the generator's {name.removeprefix('model.')} differs from the discriminator's. Only a "
                "pair that was trained with one embedding can be read together; import the generator alone."
            )
    return found
