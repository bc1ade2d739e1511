"""Translators in the folders that `transformers` reads, both ways (families/marian.py has the tables).

A run keeps its weights under our names; export writes a published class, import reads one. An exported folder carries
our tokenizer as a PreTrainedTokenizerFast whose post-processor ends a source as training did, in the place of Marian's
pair of SentencePiece files, and a generation_config.json, so that `generate` takes 4 beams. A model that came with such
a pair (OPUS-MT) leaves with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from etude.errors import UserError
from etude.hub import mapping, sentencepiece_files
from etude.hub.checkpoint_writer import PublishedModel, compute_shapes
from etude.hub.families import marian
from etude.hub.family import Config
from etude.hub.tokenizer_files import add_framing, make_tokenizer_configs
from etude.models import encoder_decoder
from etude.models.framing import Framing
from etude.objectives import translate
from etude.recipes.document import Document
from etude.recipes.schema import Recipe
from etude.text.tokenizer.pair_tokenizer import PairTokenizer
from etude.text.tokenizer.tokenizer import Tokenizer

BEAMS = 4
# rows of the vocabulary, which a tokenizer with fewer tokens does not need
VOCAB_TENSORS = (
    "model.embedding.tokens.weight",
    "model.target_embedding.tokens.weight",
    "objective.output",
    "objective.bias",
)


# --- out --------------------------------------------------------------------------------------------


def describe_mismatch(recipe: Recipe, tokenizer: Tokenizer) -> str:
    """Say why a recipe has no class in transformers; empty where it has one."""
    special = tokenizer.special
    if recipe.model_kind != "encoder_decoder" or recipe.objective_kind != "translate":
        return f"{recipe.model_kind} models with the objective {recipe.objective_kind} have no class there"
    if recipe.model_settings(encoder_decoder.Settings).target_vocab is not None:
        return "it has a vocabulary for each side, and a tokenizer there has one for both"
    if tokenizer.target is not tokenizer and not sentencepiece_files.is_sentencepiece(tokenizer):
        return "it has a tokenizer for each side, and those there are two SentencePiece models, as an import has them"
    if special.pad is None:
        return "its tokenizer has no padding token, which batches there need"
    return marian.describe_mismatch(recipe.model_settings(encoder_decoder.Settings), _objective_settings(recipe))


def to_published(recipe: Recipe, tensors: Mapping[str, Tensor], tokenizer: Tokenizer) -> PublishedModel:
    """Return a translator in its published form, with its tokenizer."""
    settings, objective = recipe.model_settings(encoder_decoder.Settings), _objective_settings(recipe)
    family, special = marian.match_settings(settings), tokenizer.special
    assert special.pad is not None and special.end is not None  # as describe_mismatch is empty
    notes: tuple[str, ...] = ()
    if tokenizer.vocab < (settings.vocab or 0):
        notes = (f"left out the rows of the vocabulary beyond {tokenizer.vocab}: the tokenizer has no such tokens",)
        rows = tokenizer.vocab
        tensors = {name: value[:rows] if name in VOCAB_TENSORS else value for name, value in tensors.items()}
        settings = settings.model_copy(update={"vocab": tokenizer.vocab})
    own = marian.reorder_stream(tensors, settings.width, published=True)
    if settings.tables == "shared" and not objective.tied:  # there, an output layer of its own goes with two tables
        settings = settings.model_copy(update={"tables": "separate"})
        own["model.target_embedding.tokens.weight"] = own["model.embedding.tokens.weight"].clone()
    table = marian.make_table(family, settings, objective)
    published = mapping.rename_to_published(table, own, f"recipe {recipe.name} as {family.system}")
    bias = published.get(marian.BIAS)
    published[marian.BIAS] = torch.zeros(1, settings.vocab or 0) if bias is None else bias[None]
    if family.saves_positions:
        published |= {name: marian.make_positions((settings.context, settings.width)) for name in marian.POSITIONS}
    start = translate.find_start(objective.start, special)
    config = marian.make_config(family, settings, objective, start=start, end=special.end, pad=special.pad)
    files, binary_files = _tokenizer_files(tokenizer, settings.context)
    files["generation_config.json"] = json.dumps(_generation_config(config), indent=1) + "\n"
    detached = {name: value.detach().cpu().contiguous() for name, value in published.items()}
    return PublishedModel(config, detached, files, notes=notes, binary_files=binary_files)


def _tokenizer_files(tokenizer: Tokenizer, context: int) -> tuple[dict[str, str], dict[str, bytes]]:
    """The files of a tokenizer that ends a source as training did: texts, and others."""
    if isinstance(tokenizer, PairTokenizer):  # MarianTokenizer ends it by itself
        config = {
            "tokenizer_class": "MarianTokenizer", "model_max_length": context, "separate_vocabs": False,
            "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>",
        }  # fmt: skip
        return {"tokenizer_config.json": json.dumps(config, indent=1) + "\n"}, sentencepiece_files.make_files(tokenizer)
    end = tokenizer.special.end
    assert end is not None
    framed = add_framing(tokenizer, Framing([], [end], [end], pooling="mean", separate=True))
    return make_tokenizer_configs(framed, context, segments=False) | {"tokenizer.json": framed.content}, {}


def _generation_config(config: Config) -> dict[str, Any]:
    """Beam search of whole targets, without padding among their tokens."""
    keys = ("pad_token_id", "eos_token_id", "decoder_start_token_id")
    length = {"max_length": config["max_position_embeddings"]}
    search = {"num_beams": BEAMS, "bad_words_ids": [[config["pad_token_id"]]]}
    return {key: config[key] for key in keys} | length | search


def _objective_settings(recipe: Recipe) -> translate.Settings:
    settings = recipe.objective
    assert isinstance(settings, translate.Settings)
    return settings


# --- in ---------------------------------------------------------------------------------------------


def read_translator(
    family: marian.Seq2SeqFamily, config: Config, tensors: Mapping[str, Tensor], tokenizer: Tokenizer, folder: Path
) -> tuple[Recipe, dict[str, Tensor]]:
    """Return the recipe of a published translator, and its tensors under our names."""
    source = str(folder)
    settings, is_tied = marian.parse_config(family, config, source)
    published = dict(tensors)
    bias = published.pop(marian.BIAS, None)
    has_bias = bias is not None and bool(bias.any())
    if bias is not None and has_bias:
        published[marian.BIAS] = bias.reshape(-1)
    start = _start_role(config, tokenizer, source)
    objective = {"kind": "translate", "tied": is_tied, "bias": has_bias, "start": start}
    recipe = _make_recipe(folder.resolve().name, family, settings, objective, tokenizer)
    shapes = compute_shapes(recipe, tokenizer.special)
    table = marian.make_table(family, settings, _objective_settings(recipe))
    own = mapping.rename_to_own(table, published, shapes, source, tied=is_tied)
    return recipe, marian.reorder_stream(own, settings.width, published=False)


def _start_role(config: Config, tokenizer: Tokenizer, source: str) -> str:
    """Which special token stands before a target; UserError where the two files do not agree."""
    special = tokenizer.special
    end = config.get("eos_token_id")
    if special.end is None or end != special.end:
        raise UserError(f"{source}: eos_token_id={end}, and the end token of its tokenizer is {special.end}.")
    start = config.get("decoder_start_token_id", config.get("pad_token_id"))
    roles = {"start": special.start, "end": special.end, "pad": special.pad}
    for role, token in roles.items():
        if token is not None and token == start:
            return role
    names = ", ".join(f"{role} {token}" for role, token in roles.items() if token is not None)
    raise UserError(f"{source}: decoder_start_token_id={start} is no special token of its tokenizer ({names}).")


def _make_recipe(
    name: str,
    family: marian.Seq2SeqFamily,
    settings: encoder_decoder.Settings,
    objective: dict[str, Any],
    tokenizer: Tokenizer,
) -> Recipe:
    return Recipe.from_document(
        Document(
            {
                "name": name,
                "system": family.system,
                "note": "Imported. Its weights were trained elsewhere: the group train says nothing of how.",
                "tokenizer": f"{tokenizer.kind}:{tokenizer.vocab}",
                "model": {"kind": "encoder_decoder", **settings.model_dump(mode="json")},
                "objective": objective,
                "train": {"steps": 1, "compile": False},
            }
        )
    )
