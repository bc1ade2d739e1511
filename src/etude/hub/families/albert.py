"""ALBERT (Lan et al. 2020): a factorised embedding and layers that share everything. AlbertForPreTraining.

transformers always has the projection behind the embedding, also where both widths are equal and the paper
(table 3, E = H) and this code have none: there it is the identity. Its groups of layers are one (all shared) or as
many as layers (none shared); what lies between, and sharing of one branch only (table 4), has no form there or
here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from etude.errors import UserError
from etude.hub.families.bert import ENCODER, FIELDS, OLDER, buffers, embeddings
from etude.hub.family import Family
from etude.hub.mapping import Copy, Fixed, Table, linear, norm, tensor
from etude.models.transformer import Settings

_LAYER = "albert.encoder.albert_layer_groups.{i}.albert_layers.0."
_PROJECTION = "albert.encoder.embedding_hidden_mapping_in"
_DEFAULTS = {
    "vocab_size": 30000,
    "hidden_size": 4096,
    "num_attention_heads": 64,
    "intermediate_size": 16384,
    "hidden_act": "gelu_new",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def _read(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    layers, groups = config.get("num_hidden_layers", 12), config.get("num_hidden_groups", 1)
    if groups not in (1, layers):
        raise UserError(
            f"{where}: num_hidden_groups={groups} of {layers} layers: layers that share in groups have no counterpart "
            "here; those with one group, or with as many as layers, can be read."
        )
    return {"embedding_width": config.get("embedding_size", 128), "share": "all" if groups == 1 else "none"}


def _write(settings: Settings) -> dict[str, Any]:
    shared = settings.share == "all" or settings.layers == 1
    return {
        "embedding_size": settings.embedding_width or settings.width,
        "num_hidden_groups": 1 if shared else settings.layers,
        "inner_group_num": 1,
    }


def _check(settings: Settings) -> list[str]:
    faults = []
    if settings.share not in ("none", "all"):
        faults.append(f"model.share={settings.share} (partial sharing)")
    if settings.segments == 0:
        faults.append("model.segments=0 (ALBERT always adds a segment)")
    return faults


FAMILY = Family(
    name="albert",
    system="ALBERT",
    model_type="albert",
    objective="masked",
    table=Table(
        prefix="albert.",
        rules=(
            *embeddings("albert."),
            *linear(_PROJECTION, "model.embedding.project", when="narrow"),
            *linear([f"{_LAYER}attention.{one}" for one in ("query", "key", "value")], "model.attention.{i}.qkv"),
            *linear(f"{_LAYER}attention.dense", "model.attention.{i}.out"),
            *norm(f"{_LAYER}attention.LayerNorm", "model.attention.{i}.norm"),
            *linear(f"{_LAYER}ffn", "model.feedforward.{i}.up"),
            *linear(f"{_LAYER}ffn_output", "model.feedforward.{i}.down"),
            *norm(f"{_LAYER}full_layer_layer_norm", "model.feedforward.{i}.norm"),
            *linear("albert.pooler", "model.pooler", part="pooler"),
            *linear("predictions.dense", "objective.head.dense", part="masked"),
            *norm("predictions.LayerNorm", "objective.head.norm", part="masked"),
            *tensor("predictions.bias", "objective.head.bias", part="masked"),
            *linear("sop_classifier.classifier", "objective.sentence", part="sentence"),
        ),
        copies=(
            Copy("predictions.decoder.weight", "albert.embeddings.word_embeddings.weight", part="masked"),
            Copy("predictions.decoder.bias", "predictions.bias"),
        ),
        constants=buffers("albert."),
        fixed=(
            Fixed(f"{_PROJECTION}.weight", lambda settings: torch.eye(settings.width), when="full"),
            Fixed(f"{_PROJECTION}.bias", lambda settings: torch.zeros(settings.width), when="full"),
        ),
        older=OLDER,
    ),
    fields=tuple(one.with_default(_DEFAULTS.get(one.theirs, one.default)) for one in FIELDS),
    fixed=ENCODER,
    more=("pooler", "embedding_width", "share"),
    read_more=_read,
    write_more=_write,
    check_more=_check,
    architectures=(
        (("masked", "pooler", "sentence"), "AlbertForPreTraining"),
        (("masked",), "AlbertForMaskedLM"),
        ((), "AlbertModel"),
    ),
    only={"inner_group_num": 1, "position_embedding_type": "absolute"},
    sentence="order",
)
