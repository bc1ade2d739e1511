"""BERT (Devlin et al. 2019): BertModel, BertForMaskedLM, BertForPreTraining."""

from __future__ import annotations

import torch

from etude.hub.family import ACTIVATIONS, Family, Field
from etude.hub.mapping import ConstantBuffer, Rule, Table, TiedCopy, linear, norm, tensor
from etude.models.transformer import Settings


def embeddings(prefix: str) -> tuple[Rule, ...]:
    """Rules for the embedding tables and their norm; ALBERT and ELECTRA have the same names."""
    return (
        *tensor(f"{prefix}embeddings.word_embeddings.weight", "model.embedding.tokens.weight"),
        *tensor(f"{prefix}embeddings.position_embeddings.weight", "model.embedding.positions.weight"),
        *tensor(f"{prefix}embeddings.token_type_embeddings.weight", "model.embedding.segments.weight", when="segments"),
        *norm(f"{prefix}embeddings.LayerNorm", "model.embedding.norm"),
    )


def layers(prefix: str) -> tuple[Rule, ...]:
    """Rules for one layer of the encoder; ELECTRA has the same names."""
    layer = f"{prefix}encoder.layer.{{i}}."
    attention = f"{layer}attention."
    return (
        *linear([f"{attention}self.{name}" for name in ("query", "key", "value")], "model.attention.{i}.qkv"),
        *linear(f"{attention}output.dense", "model.attention.{i}.out"),
        *norm(f"{attention}output.LayerNorm", "model.attention.{i}.norm"),
        *linear(f"{layer}intermediate.dense", "model.feedforward.{i}.up"),
        *linear(f"{layer}output.dense", "model.feedforward.{i}.down"),
        *norm(f"{layer}output.LayerNorm", "model.feedforward.{i}.norm"),
    )


def buffers(prefix: str) -> tuple[ConstantBuffer, ...]:
    """Buffers in files written by early versions of transformers."""
    return (
        ConstantBuffer(f"{prefix}embeddings.position_ids", lambda shape: torch.arange(shape[-1]).expand(shape)),
        ConstantBuffer(f"{prefix}embeddings.token_type_ids", torch.zeros),
    )


OLD_SUFFIXES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}  # the names of TensorFlow

FIELDS = (
    Field("vocab_size", "vocab", 30522),
    Field("hidden_size", "width", 768),
    Field("num_hidden_layers", "layers", 12),
    Field("num_attention_heads", "heads", 12),
    Field("intermediate_size", "feedforward", 3072),
    Field("hidden_act", "activation", "gelu", ACTIVATIONS),
    Field("hidden_dropout_prob", "dropout", 0.1, also_sets=("embedding_dropout",)),
    Field("attention_probs_dropout_prob", "attention_dropout", 0.1),
    Field("max_position_embeddings", "context", 512),
    Field("type_vocab_size", "segments", 2),
    Field("initializer_range", "init_deviation", 0.02),
    Field("layer_norm_eps", "epsilon", 1e-12),
)

ENCODER = {
    "direction": "both",
    "positions": "learned",
    "embedding_norm": True,
    "norm": "post",
    "norm_kind": "layer",
    "bias": True,
    "gated": False,
    "first_norm": True,
    "window": None,
}

REQUIRED = {"is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute"}


def _check_segments(settings: Settings) -> list[str]:
    return ["model.segments=0 (BERT always adds a segment)"] if settings.segments == 0 else []


FAMILY = Family(
    name="bert",
    system="BERT",
    model_type="bert",
    objective="masked",
    table=Table(
        prefix="bert.",
        rules=(
            *embeddings("bert."),
            *layers("bert."),
            *linear("bert.pooler.dense", "model.pooler", part="pooler"),
            *linear("cls.predictions.transform.dense", "objective.head.dense", part="masked"),
            *norm("cls.predictions.transform.LayerNorm", "objective.head.norm", part="masked"),
            *tensor("cls.predictions.bias", "objective.head.bias", part="masked"),
            *linear("cls.seq_relationship", "objective.sentence", part="sentence"),
        ),
        copies=(
            TiedCopy("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight", part="masked"),
            TiedCopy("cls.predictions.decoder.bias", "cls.predictions.bias", part="masked"),
        ),
        constants=buffers("bert."),
        old_suffixes=OLD_SUFFIXES,
    ),
    fields=FIELDS,
    fixed={**ENCODER, "share": "none"},
    extra_settings=("pooler",),
    check_extra=_check_segments,
    architectures=(
        (("masked", "pooler", "sentence"), "BertForPreTraining"),
        (("masked",), "BertForMaskedLM"),
        ((), "BertModel"),
    ),
    required=REQUIRED,
    sentence="next",
)
