"""ALBERT (Lan et al. 2020): a factorised embedding and shared layers. AlbertForPreTraining.

transformers always has the projection behind the embedding. Where both widths are equal the paper (table 3, E = H) and
this code have none: it is written as the identity. Layer groups are one (all shared) or as many as layers (none
shared); anything between, and sharing of one branch only (table 4), cannot be mapped.
"""

from __future__ import annotations

from typing import Any

import torch

from etude.errors import UserError
from etude.hub.families.bert import ENCODER, FIELDS, OLD_SUFFIXES, buffers, embeddings
from etude.hub.family import Config, Family
from etude.hub.mapping import FixedTensor, Table, TiedCopy, linear, norm, tensor
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


def _read(config: Config, source: str) -> dict[str, Any]:
    layers, groups = config.get("num_hidden_layers", 12), config.get("num_hidden_groups", 1)
    if groups not in (1, layers):
        raise UserError(
            f"{source}: num_hidden_groups={groups} of {layers} layers: layers that share weights in groups are not "
            "supported; use one group, or as many as layers."
        )
    return {"embedding_width": config.get("embedding_size", 128), "share": "all" if groups == 1 else "none"}


def _write(settings: Settings) -> dict[str, Any]:
    is_shared = settings.share == "all" or settings.layers == 1
    return {
        "embedding_size": settings.embedding_width or settings.width,
        "num_hidden_groups": 1 if is_shared else settings.layers,
        "inner_group_num": 1,
    }


def _check(settings: Settings) -> list[str]:
    mismatches = []
    if settings.share not in ("none", "all"):
        mismatches.append(f"model.share={settings.share} (partial sharing)")
    if settings.segments == 0:
        mismatches.append("model.segments=0 (ALBERT always adds a segment)")
    return mismatches


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
            *linear([f"{_LAYER}attention.{name}" for name in ("query", "key", "value")], "model.attention.{i}.qkv"),
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
            TiedCopy("predictions.decoder.weight", "albert.embeddings.word_embeddings.weight", part="masked"),
            TiedCopy("predictions.decoder.bias", "predictions.bias", part="masked"),
        ),
        constants=buffers("albert."),
        fixed=(
            FixedTensor(f"{_PROJECTION}.weight", lambda settings: torch.eye(settings.width), when="full"),
            FixedTensor(f"{_PROJECTION}.bias", lambda settings: torch.zeros(settings.width), when="full"),
        ),
        old_suffixes=OLD_SUFFIXES,
    ),
    fields=tuple(field.with_default(_DEFAULTS.get(field.key, field.default)) for field in FIELDS),
    fixed=ENCODER,
    extra_settings=("pooler", "embedding_width", "share"),
    read_extra=_read,
    write_extra=_write,
    check_extra=_check,
    architectures=(
        (("masked", "pooler", "sentence"), "AlbertForPreTraining"),
        (("masked",), "AlbertForMaskedLM"),
        ((), "AlbertModel"),
    ),
    required={"inner_group_num": 1, "position_embedding_type": "absolute"},
    sentence="order",
)
