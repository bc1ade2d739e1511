"""Writer of published checkpoints: a recipe and its tensors in the form that `transformers` opens."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from etude.errors import UserError, explain_write_failure
from etude.hub import mapping
from etude.hub.families import electra, match_encoder, match_recipe
from etude.hub.family import Family, published_activation
from etude.hub.tokenizer_files import make_tokenizer_configs
from etude.hub.weights import read_config, read_tensors
from etude.models import transformer
from etude.recipes.model_memory import explain_oversize, shapes_only
from etude.recipes.schema import Recipe
from etude.text.tokenizer.special_tokens import Specials
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.train import checkpoint

# tensors with a row for each token of the vocabulary
VOCAB_TENSORS = ("model.embedding.tokens.weight", "objective.head.bias", "objective.generator_head.bias")
AUTO_CLASSES = {
    "ForPreTraining": "AutoModelForPreTraining",
    "ForMaskedLM": "AutoModelForMaskedLM",
    "ForCausalLM": "AutoModelForCausalLM",
    "LMHeadModel": "AutoModelForCausalLM",
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "ForTokenClassification": "AutoModelForTokenClassification",
    "ForQuestionAnswering": "AutoModelForQuestionAnswering",
    "ForMultipleChoice": "AutoModelForMultipleChoice",
    "MTModel": "AutoModelForSeq2SeqLM",
    "ForConditionalGeneration": "AutoModelForSeq2SeqLM",
    "Model": "AutoModel",
}  # the suffix of an architecture -> the class that opens it
GENERATOR = "generator"  # the folder, and the prefix of our names: objective.generator.*


@dataclass(frozen=True)
class PublishedModel:
    """A model in its published form, ready to be written."""

    config: dict[str, Any]  # config.json
    tensors: dict[str, Tensor]  # model.safetensors, under the published names
    files: dict[str, str] = field(default_factory=dict)  # of the tokenizer
    submodels: dict[str, PublishedModel] = field(default_factory=dict)  # in subfolders: ELECTRA's generator
    notes: tuple[str, ...] = ()  # for the user: rows that were left out
    binary_files: dict[str, bytes] = field(default_factory=dict)  # of the tokenizer: SentencePiece models
    usage: tuple[str, ...] = ()  # how to open the folder, where not by a class of transformers

    @property
    def architecture(self) -> str:
        """The class of transformers named in config.json."""
        return str(self.config["architectures"][0])

    @property
    def auto_class(self) -> str:
        """The auto class of transformers that opens it with all of its heads."""
        return next(name for suffix, name in AUTO_CLASSES.items() if self.architecture.endswith(suffix))


def to_published(
    recipe: Recipe, tensors: Mapping[str, Tensor], tokenizer: Tokenizer, *, trim: bool = False
) -> PublishedModel | None:
    """Return a model in its published form; None where transformers has no class for it (see `describe_mismatch`).

    `tensors` are those of a run: `model.*` and `objective.*`; heads may be absent as a whole. `trim` removes the rows
    of the vocabulary for which the tokenizer has no token.
    """
    family, _ = match_recipe(recipe)
    if family is None or describe_mismatch(recipe, tensors):
        return None
    settings = recipe.model_settings(transformer.Settings)
    notes: tuple[str, ...] = ()
    if trim:
        settings, tensors, notes = _trim_to_tokenizer(settings, tensors, tokenizer)
    source = f"recipe {recipe.name} as {family.system}"
    generator = {name: tensor for name, tensor in tensors.items() if name.startswith(f"objective.{GENERATOR}")}
    own = {name: tensor for name, tensor in tensors.items() if name not in generator}
    published = _publish_part(family, family.table, settings, own, tokenizer, source)
    has_start = recipe.objective_kind == "causal" and recipe.objective.start
    start = tokenizer.special.start if has_start else None
    if start is not None:
        published.config["bos_token_id"] = start
    files = make_tokenizer_configs(tokenizer, settings.context, segments=settings.segments > 1, start=start)
    if family.head_activation_key is not None:
        activation = recipe.objective.activation or settings.activation
        published.config[family.head_activation_key] = published_activation(activation)
    sentence = getattr(recipe.objective, "sentence", "none")
    if sentence not in ("none", family.sentence):
        published.config["etude"] = {"sentence": sentence}  # the class has one name for either task
    submodels = {}
    if generator:
        embedding = {
            name: tensor
            for name, tensor in own.items()
            if name.startswith("model.embedding.") and "project" not in name
        }
        submodel = _publish_part(
            electra.GENERATOR,
            electra.GENERATOR_TABLE,
            electra.generator_settings(recipe).model_copy(update={"vocab": settings.vocab}),
            {**embedding, **generator},
            tokenizer,
            f"{source}, generator",
        )
        submodels[GENERATOR] = replace(submodel, files=files)
    return replace(published, files=files, submodels=submodels, notes=notes)


def to_published_encoder(recipe: Recipe, tensors: Mapping[str, Tensor], tokenizer: Tokenizer) -> PublishedModel | None:
    """Return the encoder of a discriminator that has no class with its head: that is of no use after pre-training.

    None where there is no class for the encoder either, or where the objective is another, whose head is what the model
    predicts by. `tensors` are those of `to_published`; rows without a token are left out.
    """
    family, _ = match_encoder(recipe)
    if family is None or not recipe.has_objective("replaced"):
        return None
    settings = recipe.model_settings(transformer.Settings)
    encoder = {name: tensor for name, tensor in tensors.items() if name.startswith("model.")}
    settings, own, notes = _trim_to_tokenizer(settings, encoder, tokenizer)
    published = _publish_part(family, family.table, settings, own, tokenizer, f"recipe {recipe.name}'s encoder")
    files = make_tokenizer_configs(tokenizer, settings.context, segments=settings.segments > 1)
    left_out = (
        f"left out the head of the objective {recipe.objective_kind}: {published.architecture} has no place for it"
    )
    return replace(published, files=files, notes=(*notes, left_out))


def describe_mismatch(recipe: Recipe, tensors: Iterable[str] = ()) -> str:
    """Say why `to_published` returns None for a recipe and the names of its tensors; empty where it does not."""
    family, reason = match_recipe(recipe)
    if family is None:
        return reason
    known = {name for rule in family.table.expand(recipe.model_settings(transformer.Settings)) for name in rule.own}
    if family.objective == "replaced":
        generator_rules = electra.GENERATOR_TABLE.expand(electra.generator_settings(recipe))
        known |= {name for rule in generator_rules for name in rule.own}
    unknown = sorted(set(tensors) - known)
    return f"{family.architectures[0][1]} has no place for {', '.join(unknown)}" if unknown else ""


def _publish_part(
    family: Family,
    table: mapping.Table,
    settings: transformer.Settings,
    tensors: Mapping[str, Tensor],
    tokenizer: Tokenizer,
    source: str,
) -> PublishedModel:
    published = mapping.to_published_names(table, settings, tensors, source)
    parts = mapping.find_parts(table, settings, published)
    config = family.make_config(settings, parts) | special_token_ids(tokenizer.special, family.objective == "causal")
    return PublishedModel(config, {name: tensor.detach().cpu() for name, tensor in published.items()})


def special_token_ids(special: Specials, causal: bool) -> dict[str, int | None]:
    """Return the ids that config.json repeats from the tokenizer; without them transformers uses its own defaults."""
    if causal:
        return {"pad_token_id": special.pad, "bos_token_id": special.end, "eos_token_id": special.end}
    ends = {"bos_token_id": special.start, "eos_token_id": special.separator}
    return {"pad_token_id": special.pad, **ends, "cls_token_id": special.start, "sep_token_id": special.separator}


def _trim_to_tokenizer(
    settings: transformer.Settings, tensors: Mapping[str, Tensor], tokenizer: Tokenizer
) -> tuple[transformer.Settings, Mapping[str, Tensor], tuple[str, ...]]:
    """Leave out the rows of the vocabulary for which the tokenizer has no token, with a note where there were any."""
    if tokenizer.vocab >= (settings.vocab or 0):
        return settings, tensors, ()
    trimmed, notes = trim_vocab(tensors, tokenizer.vocab)
    return settings.model_copy(update={"vocab": tokenizer.vocab}), trimmed, notes


def trim_vocab(tensors: Mapping[str, Tensor], vocab: int) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return the tensors without the rows beyond a vocabulary, and a note that says so."""
    trimmed = {name: tensor[:vocab] if name in VOCAB_TENSORS else tensor for name, tensor in tensors.items()}
    rows = tensors[VOCAB_TENSORS[0]].shape[0]
    return trimmed, (
        f"left out {rows - vocab} rows of the vocabulary ({rows} to {vocab}): the tokenizer has no such tokens",
    )


def compute_shapes(recipe: Recipe, special: Specials) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of all tensors of a recipe, without allocating them."""
    with shapes_only(), explain_oversize(recipe.name):
        model = recipe.build_model()
        learner = nn.ModuleDict({"model": model, "objective": recipe.build_objective(model, special)})
    return {name: tuple(tensor.shape) for name, tensor in learner.state_dict().items()}


def write_published(published: PublishedModel, folder: Path) -> None:
    """Write all files into an existing folder; model.safetensors last, as its presence means that all are there."""
    for name, submodel in published.submodels.items():
        (folder / name).mkdir(exist_ok=True)
        write_published(submodel, folder / name)
    for name, text in published.files.items():
        checkpoint.write_text(folder / name, text)
    for name, content in published.binary_files.items():
        with explain_write_failure(folder / name):
            (folder / name).write_bytes(content)
            checkpoint.flush(folder / name)
    checkpoint.write_text(folder / "config.json", json.dumps(published.config, indent=1) + "\n")
    write_tensors(published.tensors, folder / "model.safetensors")


def write_tensors(tensors: Mapping[str, Tensor], file: Path) -> None:
    """Write a safetensors file, aside first and then renamed into place."""
    writing = file.with_name(f".{file.name}.writing")
    try:
        with explain_write_failure(file):
            save_file(
                {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()},
                writing,
                metadata={"format": "pt"},
            )
            checkpoint.allow_reading(writing)
            checkpoint.flush(writing)
            writing.replace(file)
            checkpoint.flush(file.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            writing.unlink(missing_ok=True)
        raise


def read_run_tensors(recipe: Recipe, special: Specials, folder: Path) -> tuple[dict[str, Tensor], set[str]]:
    """Read the weights of a run under our names, whether they were saved in published form or under our names.

    The second value names the tensors that the folder lacks: heads of an imported encoder that came without.
    """
    config, tensors = read_config(folder), read_tensors(folder)
    if str(config.get("model_type", "")).startswith("etude-"):
        return tensors, set(config.get("untrained", ()))
    family, reason = match_recipe(recipe)
    if family is None:
        raise UserError(
            f"{folder}: config.json has the type {config.get('model_type')!r}, yet {reason}. Was recipe.yaml changed?"
        )
    shapes = compute_shapes(recipe, special)
    settings = recipe.model_settings(transformer.Settings)
    own = mapping.to_own_names(family.table, settings, tensors, shapes, str(folder / "model.safetensors"))
    if (folder / GENERATOR).is_dir():
        own |= read_generator(recipe, shapes, own, folder / GENERATOR)
    return own, set(shapes) - set(own)


def read_generator(
    recipe: Recipe, shapes: mapping.Shapes, shared: Mapping[str, Tensor], folder: Path
) -> dict[str, Tensor]:
    """Read the tensors of ELECTRA's generator; its embedding must equal the discriminator's."""
    settings = electra.generator_settings(recipe).model_copy(update={"vocab": recipe.model.vocab})
    tensors = mapping.to_own_names(electra.GENERATOR_TABLE, settings, read_tensors(folder), shapes, str(folder))
    for name in [name for name in tensors if name.startswith("model.")]:
        if not torch.equal(tensors.pop(name), shared[name]):
            raise UserError(
                f"{folder}: the generator's {name.removeprefix('model.')} differs from the discriminator's. Only a "
                "pair that was trained with one embedding can be read together; import the generator alone."
            )
    return tensors
