"""Files of ERNIE's release (thunlp/ERNIE), read and written: BERT's layout under a config of its own.

    ernie_config.json     BERT's keys, and layer_types: the kind of each layer, sim, mix or norm; the rest are sim
    pytorch_model.bin     tensors under the names of hub/families/ernie.py; model.safetensors is read as well
    vocab.txt             of a WordPiece tokenizer; written beside it, tokenizer.json says how text is normalised
    entity2vec.vec, entity2id.txt   the entity vectors and their names, as OpenKE writes them (in kg_embed/ there)

The entity vectors lie beside the checkpoint there; in a folder that holds them they are read along, else the model is
imported without and reads plain text. Sizes of the entity stream are fixed in that code (100 and 4 heads); where ours
are others, where all pieces of a mention carry its entity, and where the sentence task is another than the next one,
ernie_config.json says so under keys that its code passes over. What nothing reads, the entity output of
the last layer that fuses, is left aside on reading and written as it starts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

from etude.errors import UserError, explain_write_failure
from etude.graph.entity_links import EntityLinks
from etude.graph.entity_table import load_entity_table
from etude.hub import mapping
from etude.hub.checkpoint_writer import compute_shapes
from etude.hub.families import bert
from etude.hub.families.ernie import make_table, unused_names
from etude.hub.tokenizer_files import open_tokenizer
from etude.hub.weights import read_tensors
from etude.models import transformer
from etude.models.ernie import Settings
from etude.recipes.document import Document
from etude.recipes.schema import Recipe
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.train import checkpoint

CONFIG, WEIGHTS, VOCABULARY, VECTORS = "ernie_config.json", "pytorch_model.bin", "vocab.txt", "entity2vec.vec"
SYSTEM = "ERNIE"
# keys of ours -> the setting, and its value where there is no such key
ENTITY_KEYS: dict[str, tuple[str, object]] = {
    "entity_hidden_size": ("entity_width", 100),
    "entity_attention_heads": ("entity_heads", 4),
    "entity_alignment": ("alignment", "first"),
}
TABLE = "model.entity_table"


def is_release(folder: Path) -> bool:
    """Whether a folder holds ERNIE's config."""
    return (folder / CONFIG).is_file()


# --- reading ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Release:
    """What a folder of the release holds, under our names."""

    recipe: Recipe
    tensors: dict[str, Tensor]
    tokenizer: Tokenizer
    links: EntityLinks | None  # the names of the entity vectors, where the folder has them
    untrained: frozenset[str]  # tensors of the recipe that it lacks
    notes: tuple[str, ...]  # what a person should know


def read_release(folder: Path) -> Release:
    """Read a folder; UserError where its files do not fit each other."""
    path = folder / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: {error}.") from None
    if not isinstance(config, dict):
        raise UserError(f"{path} is not the description of a model: expected an object of keys and values.")
    settings, tokenizer, tensors = _read_settings(config, str(path)), open_tokenizer(folder), read_tensors(folder)
    notes: list[str] = []
    table = load_entity_table(folder) if (folder / VECTORS).is_file() else None
    if table is None:
        notes.append("has no entity vectors (entity2vec.vec, entity2id.txt): it reads plain text, without entities")
    elif table.width != settings.entity_width:
        raise UserError(
            f"{folder}: entity2vec.vec has {table.width} numbers a line, the model {settings.entity_width}."
        )
    else:
        settings = settings.model_copy(update={"entities": len(table.vectors)})
    parts = mapping.find_parts(make_table(settings), settings, tensors)
    settings = settings.model_copy(update={"pooler": "pooler" in parts})
    sentence = _read_sentence(config) if "sentence" in parts else "none"
    recipe = _make_recipe(folder.resolve().name, settings, sentence, tokenizer)
    shapes = compute_shapes(recipe, tokenizer.special)
    rules, unused = make_table(settings), set(unused_names(settings))
    for old, now in rules.old_suffixes.items():  # files of the first years call a weight gamma
        unused |= {name.removesuffix(now) + old for name in unused if name.endswith(now)}
    tensors = {name: tensor for name, tensor in tensors.items() if name not in unused}
    own = mapping.to_own_names(rules, settings, tensors, shapes, str(folder))
    own[TABLE] = torch.zeros(shapes[TABLE])
    if table is not None:
        own[TABLE][1:] = torch.from_numpy(table.vectors)
    if tokenizer.vocab != settings.vocab:
        raise UserError(
            f"{folder}: the tokenizer has {tokenizer.vocab} tokens, and the model has rows for {settings.vocab}. "
            "The two do not belong together: use the tokenizer that the model was trained with."
        )
    untrained = frozenset(set(shapes) - set(own))
    if untrained:
        notes.append(f"has no weights for {', '.join(sorted(untrained))}: they start fresh")
    contiguous = {name: tensor.contiguous() for name, tensor in own.items()}
    links = None if table is None else EntityLinks("", table.names)  # the files do not say of which graph
    return Release(recipe, contiguous, tokenizer, links, untrained, tuple(notes))


def _read_settings(config: Mapping[str, Any], source: str) -> Settings:
    values: dict[str, Any] = {**bert.FAMILY.fixed, "pooler": True}
    for entry in bert.FIELDS:
        values |= entry.read(config, source)
    kinds = config.get("layer_types") or []
    if not isinstance(kinds, list):
        raise UserError(f"{source}: layer_types={str(kinds)[:40]} is no list of sim, mix and norm.")
    values["layer_kinds"] = tuple(kinds)
    values |= {name: config.get(key, default) for key, (name, default) in ENTITY_KEYS.items()}
    try:
        return Settings(**values)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{source} describes no ERNIE: {'.'.join(map(str, first['loc']))}: {first['msg']}.") from None


def _read_sentence(config: Mapping[str, Any]) -> str:
    """The sentence task of a head: the next one, unless an export of ours says another."""
    extra = config.get("etude")
    return "order" if isinstance(extra, dict) and extra.get("sentence") == "order" else bert.FAMILY.sentence


def _make_recipe(name: str, settings: Settings, sentence: str, tokenizer: Tokenizer) -> Recipe:
    return Recipe.from_document(
        Document(
            {
                "name": name,
                "system": SYSTEM,
                "note": "Imported. Its weights were trained elsewhere: the group train says nothing of how.",
                "tokenizer": f"{tokenizer.kind}:{tokenizer.vocab}",
                "model": {"kind": "ernie", **settings.model_dump(mode="json")},
                "objective": {"kind": "entity_alignment", "sentence": sentence},
                "train": {"steps": 1},
            }
        )
    )


# --- writing ------------------------------------------------------------------------------------------


def describe_mismatch(recipe: Recipe, tokenizer: Tokenizer) -> str:
    """Say why a recipe and its tokenizer have no place in the release's format; empty where they have."""
    settings = recipe.model_settings(Settings)
    plain = transformer.Settings(**settings.model_dump(include=set(transformer.Settings.model_fields)))
    mismatches = bert.FAMILY.find_mismatches(plain)
    activation = recipe.objective.activation
    if activation not in (None, settings.activation):
        mismatches.append(f"objective.activation={activation} (its heads have that of the model)")
    if settings.epsilon != 1e-12:
        mismatches.append(f"model.epsilon={settings.epsilon} (its norms have 1e-12)")
    if tokenizer.kind != "wordpiece":  # a vocab.txt of other tokens would be read as word pieces
        mismatches.append(f"a tokenizer of the kind {tokenizer.kind} (it has word pieces)")
    return "; ".join(mismatches)


def make_config(settings: Settings) -> dict[str, Any]:
    """The content of ernie_config.json."""
    config = {entry.key: entry.write(settings) for entry in bert.FIELDS}
    config["layer_types"] = [settings.kind_of(layer) for layer in range(settings.layers)]
    values = {key: getattr(settings, name) for key, (name, _) in ENTITY_KEYS.items()}
    return config | {key: value for key, value in values.items() if value != ENTITY_KEYS[key][1]}


def write_release(
    recipe: Recipe, tensors: Mapping[str, Tensor], tokenizer: Tokenizer, names: list[str] | None, folder: Path
) -> None:
    """Write the files of the release; entity vectors too, where `names` of their rows are given."""
    settings = recipe.model_settings(Settings)
    own = {name: tensor for name, tensor in tensors.items() if name != TABLE}
    published = mapping.to_published_names(make_table(settings), settings, own, f"recipe {recipe.name} as {SYSTEM}")
    unused = {
        name: torch.ones(shape) if name.endswith("LayerNorm_ent.weight") else torch.zeros(shape)
        for name, shape in unused_names(settings).items()
    }
    decoder = {"cls.predictions.decoder.weight": published["bert.embeddings.word_embeddings.weight"]}
    config = make_config(settings)
    if recipe.objective.sentence not in ("none", bert.FAMILY.sentence):
        config["etude"] = {"sentence": recipe.objective.sentence}  # the class has one name for either task
    checkpoint.write_text(folder / CONFIG, json.dumps(config, indent=1) + "\n")
    vocabulary = [tokenizer.token(number) for number in range(tokenizer.vocab)]
    checkpoint.write_text(folder / VOCABULARY, "\n".join(vocabulary) + "\n")
    checkpoint.write_text(folder / "tokenizer.json", tokenizer.content)
    with explain_write_failure(folder / WEIGHTS):
        torch.save({**published, **unused, **decoder}, folder / WEIGHTS)
    vectors = tensors[TABLE][1:].numpy()
    if names is not None and len(vectors):
        _write_vectors(names, vectors, folder)


def _write_vectors(names: Sequence[str], vectors: np.ndarray, folder: Path) -> None:
    """OpenKE's two files: a line of numbers an entity, and its name with the number of that line."""
    with explain_write_failure(folder / VECTORS), open(folder / VECTORS, "w", encoding="utf-8", newline="\n") as file:
        for vector in vectors.astype(np.float32):  # line by line: as text, millions of entities fill the memory
            file.write("\t".join(map(str, vector)) + "\n")
    ids = "".join(f"{name}\t{number}\n" for number, name in enumerate(names))
    checkpoint.write_text(folder / "entity2id.txt", f"{len(names)}\n{ids}")
