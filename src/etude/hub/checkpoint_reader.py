"""Reader of published checkpoints: the inverse of `checkpoint_writer.py`, through the same tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from etude.errors import UserError
from etude.graph.entity_links import EntityLinks
from etude.hub import elmo_files as elmo
from etude.hub import ernie_files as ernie
from etude.hub import mapping
from etude.hub import openai_gpt as openai
from etude.hub.checkpoint_writer import GENERATOR, compute_shapes, read_generator, trim_vocab
from etude.hub.families import electra, marian, match_config
from etude.hub.family import Family, read_activation
from etude.hub.tokenizer_files import find_prefix_tokens, open_tokenizer
from etude.hub.translator_files import read_translator
from etude.hub.weights import locate_folder, read_config, read_tensors
from etude.models.transformer import Settings
from etude.recipes.document import Document
from etude.recipes.schema import Recipe
from etude.runs.model_folder import HUB
from etude.text.run_checksums import verify_checksums
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.train.checkpoint import load_strictly

TASK_ENDINGS = (
    "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice",
)  # fmt: skip
OWN_CLASSES = ("etude_run", "etude_readout")  # of what `etude export` writes where transformers has no class
TASK_ADVICE = "Heads of tasks are not read: take the run it was exported from, or the model it was fine-tuned from."


@dataclass(frozen=True)
class ImportedModel:
    """A published model under our names."""

    family: str
    architecture: str
    recipe: Recipe  # model and objective; its group `train` does not describe how the model was trained
    tensors: dict[str, Tensor]  # under our names
    untrained: frozenset[str]  # tensors of the recipe that the folder lacks: heads it came without
    tokenizer: Tokenizer
    notes: tuple[str, ...]  # for the user: rows that were left out, heads that are missing
    links: EntityLinks | None = None  # the names of its entities, where it reads entities

    def load_into(self, learner: nn.ModuleDict) -> None:
        """Copy the tensors into {"model": ..., "objective": ...}, strictly; untrained ones stay as they are."""
        fresh = {name: tensor for name, tensor in learner.state_dict().items() if name in self.untrained}
        load_strictly(learner, {**self.tensors, **fresh}, self.recipe.name)


def read_checkpoint(source: str | Path) -> ImportedModel:
    """Read a folder of transformers, of OpenAI's GPT-1 or of ELMo; a hub id is downloaded first."""
    imported = _read_folder(locate_folder(source))
    if str(source).startswith(HUB):  # the folder of a download is named by its commit
        recipe = imported.recipe.with_settings({"name": str(source).removeprefix(HUB).rpartition("/")[2]})
        imported = replace(imported, recipe=recipe)
    return imported


def _read_folder(folder: Path) -> ImportedModel:
    verify_checksums(folder)  # of one that `etude export` wrote
    if elmo.is_release(folder):
        return _read_elmo(folder)
    if ernie.is_release(folder):
        release = ernie.read_release(folder)
        return ImportedModel(
            "ernie", "BertForPreTraining", release.recipe, release.tensors, release.untrained, release.tokenizer,
            release.notes, release.links,
        )  # fmt: skip
    is_openai_release = openai.is_release(folder)
    source_name = str(folder)
    if is_openai_release:
        config, tensors, tokenizer = openai.read_release(folder)
    else:
        config = read_config(folder)
        if config.get("model_type") in OWN_CLASSES:
            raise UserError(f"{folder} is a fine-tuned model with a class of its own, for transformers. {TASK_ADVICE}")
        translator = marian.find_family(config, source_name)
        tensors, tokenizer = read_tensors(folder), open_tokenizer(folder)
        if translator is not None:
            return _read_translator(translator, config, tensors, tokenizer, folder)
    if str(config.get("model_type", "")).startswith("etude-"):
        raise UserError(f"{folder} holds a model under etude's own names: open it as a run, with its recipe.yaml.")
    family = match_config(config, tensors, source_name)
    model = family.parse_config(config, source_name)
    if is_openai_release:  # dropout as in its own code; transformers drops states
        model = model.model_copy(update={"embedding_dropout_on": "table"})
    parts = mapping.find_parts(family.table, model, tensors)
    if "pooler" in family.extra_settings:
        model = model.model_copy(update={"pooler": "pooler" in parts})
    objective = _make_objective(family, model, parts, config, folder, tokenizer)
    recipe = _make_recipe(folder.resolve().name, family, model, objective, tokenizer)
    shapes = compute_shapes(recipe, tokenizer.special)
    tied = bool(config.get("tie_word_embeddings", family.tied))
    names = config.get("architectures")
    architecture = str(names[0]) if isinstance(names, list) and names else family.architectures[0][1]
    try:
        own = mapping.to_own_names(family.table, model, tensors, shapes, source_name, tied)
    except UserError as error:
        if not architecture.endswith(TASK_ENDINGS):
            raise
        raise UserError(f"{error.message} It is of the class {architecture}. {TASK_ADVICE}") from None
    if family.objective == "replaced" and (folder / GENERATOR).is_dir():
        own |= read_generator(recipe, shapes, own, folder / GENERATOR)
    untrained = frozenset(set(shapes) - set(own))
    notes = [f"has no weights for {', '.join(sorted(untrained))}: they start fresh"] if untrained else []
    if family.objective == "causal":
        notes += _find_other_end(config, tokenizer)
    assert model.vocab is not None
    _check_vocab(tokenizer, model.vocab, folder)
    if tokenizer.vocab < model.vocab:
        own, trim_notes = trim_vocab(own, tokenizer.vocab)
        notes += trim_notes
        recipe = recipe.with_settings({"model.vocab": tokenizer.vocab})
    return ImportedModel(
        family=family.name,
        architecture=architecture,
        recipe=recipe,
        tensors={name: tensor.contiguous() for name, tensor in own.items()},
        untrained=untrained,
        tokenizer=tokenizer,
        notes=tuple(notes),
    )


def _check_vocab(tokenizer: Tokenizer, vocab: int, folder: Path) -> None:
    """Raise UserError where a tokenizer has more tokens than the model has rows."""
    if tokenizer.vocab > vocab:
        raise UserError(
            f"{folder}: the tokenizer has {tokenizer.vocab} tokens, and the model has rows for {vocab}. "
            "The two do not belong together: use the tokenizer that the model was trained with."
        )


def _read_translator(
    family: marian.Seq2SeqFamily,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    tokenizer: Tokenizer,
    folder: Path,
) -> ImportedModel:
    recipe, own = read_translator(family, config, tensors, tokenizer, folder)
    assert recipe.model.vocab is not None
    _check_vocab(tokenizer, recipe.model.vocab, folder)
    own = {name: tensor.contiguous() for name, tensor in own.items()}
    return ImportedModel(family.model_type, family.architecture, recipe, own, frozenset(), tokenizer, ())


def _read_elmo(folder: Path) -> ImportedModel:
    recipe, tensors, tokenizer = elmo.read_release(folder)
    untrained = frozenset(set(compute_shapes(recipe, tokenizer.special)) - set(tensors))
    notes = ("has no output layer: it gives states, and one for training on starts fresh",)
    return ImportedModel("elmo", "biLM", recipe, tensors, untrained, tokenizer, notes)


def _make_objective(
    family: Family,
    model: Settings,
    parts: set[str],
    config: Mapping[str, Any],
    folder: Path,
    tokenizer: Tokenizer,
) -> dict[str, Any]:
    """Return the values of the recipe's objective."""
    if family.objective == "replaced":
        path = folder / GENERATOR
        generator = electra.GENERATOR.parse_config(read_config(path), str(path)) if path.is_dir() else None
        return electra.objective_for(model, generator)
    if family.objective == "causal":
        return {"kind": "causal", **_text_start(tokenizer)}
    extra = config.get("etude")
    named = extra.get("sentence", family.sentence) if isinstance(extra, dict) else family.sentence
    sentence = named if "sentence" in parts else "none"
    activation = family.head_activation
    if family.head_activation_key is not None:
        activation = read_activation(config, family.head_activation_key, "gelu", str(folder))
    return {"kind": "masked", "sentence": sentence, "activation": activation}


def _text_start(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the settings for how a causal model's texts start: with a start token, end-of-text, or nothing."""
    prefix, special = find_prefix_tokens(tokenizer), tokenizer.special
    if prefix == [special.end]:
        return {"documents": "split"}
    if prefix == [special.start]:
        return {"start": True}
    if prefix:
        raise UserError(
            f"The tokenizer puts {' '.join(map(tokenizer.token, prefix))} before every text, which is neither a start "
            "token nor end-of-text here. Remove that step from its tokenizer.json (post_processor) to go without."
        )
    return {}


def _find_other_end(config: Mapping[str, Any], tokenizer: Tokenizer) -> list[str]:
    """Return a note where a causal model ends its texts with a token that is not end-of-text here."""
    ids, end = config.get("eos_token_id"), tokenizer.special.end
    ids = [id for id in (ids if isinstance(ids, list) else [ids]) if type(id) is int and 0 <= id < tokenizer.vocab]
    if not ids or end in ids:
        return []
    name = tokenizer.backend.id_to_token(ids[0])
    ours = "no token" if end is None else tokenizer.token(end)
    return [
        f"ends its texts with {name} (eos_token_id={ids[0]}), and here {ours} ends one: generation goes on behind it"
    ]


def _make_recipe(name: str, family: Family, model: Settings, objective: dict[str, Any], tokenizer: Tokenizer) -> Recipe:
    return Recipe.from_document(
        Document(
            {
                "name": name,
                "system": family.system,
                "note": "Imported. Its weights were trained elsewhere: the group train says nothing of how.",
                "tokenizer": f"{tokenizer.kind}:{tokenizer.vocab}",
                "model": {"kind": "transformer", **model.model_dump(mode="json")},
                "objective": objective,
                "train": {"steps": 1},
                **({"finetune": dict(family.finetune)} if family.finetune else {}),
            }
        )
    )
