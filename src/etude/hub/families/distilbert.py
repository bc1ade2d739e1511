"""DistilBERT (Sanh et al. 2019): BERT without segments and pooler. DistilBertModel, DistilBertForMaskedLM."""

from __future__ import annotations

from etude.hub.families.bert import ENCODER, OLD_SUFFIXES, buffers
from etude.hub.family import ACTIVATIONS, Family, Field
from etude.hub.mapping import Table, TiedCopy, linear, norm, tensor

_LAYER = "distilbert.transformer.layer.{i}."

FAMILY = Family(
    name="distilbert",
    system="DistilBERT",
    model_type="distilbert",
    objective="masked",
    table=Table(
        prefix="distilbert.",
        rules=(
            *tensor("distilbert.embeddings.word_embeddings.weight", "model.embedding.tokens.weight"),
            *tensor("distilbert.embeddings.position_embeddings.weight", "model.embedding.positions.weight"),
            *norm("distilbert.embeddings.LayerNorm", "model.embedding.norm"),
            *linear([f"{_LAYER}attention.{name}_lin" for name in "qkv"], "model.attention.{i}.qkv"),
            *linear(f"{_LAYER}attention.out_lin", "model.attention.{i}.out"),
            *norm(f"{_LAYER}sa_layer_norm", "model.attention.{i}.norm"),
            *linear(f"{_LAYER}ffn.lin1", "model.feedforward.{i}.up"),
            *linear(f"{_LAYER}ffn.lin2", "model.feedforward.{i}.down"),
            *norm(f"{_LAYER}output_layer_norm", "model.feedforward.{i}.norm"),
            *linear("vocab_transform", "objective.head.dense", part="masked"),
            *norm("vocab_layer_norm", "objective.head.norm", part="masked"),
            *tensor("vocab_projector.bias", "objective.head.bias", part="masked"),
        ),
        copies=(TiedCopy("vocab_projector.weight", "distilbert.embeddings.word_embeddings.weight", part="masked"),),
        constants=buffers("distilbert."),
        old_suffixes=OLD_SUFFIXES,
    ),
    fields=(
        Field("vocab_size", "vocab", 30522),
        Field("dim", "width", 768),
        Field("n_layers", "layers", 6),
        Field("n_heads", "heads", 12),
        Field("hidden_dim", "feedforward", 3072),
        Field("activation", "activation", "gelu", ACTIVATIONS),
        Field("dropout", "dropout", 0.1, also_sets=("embedding_dropout",)),
        Field("attention_dropout", "attention_dropout", 0.1),
        Field("max_position_embeddings", "context", 512),
        Field("initializer_range", "init_deviation", 0.02),
    ),
    # its class has no key for epsilon; "sinusoidal_pos_embds" only says how the position table was initialised
    fixed={**ENCODER, "share": "none", "segments": 0, "pooler": False, "epsilon": 1e-12},
    constant_keys={"sinusoidal_pos_embds": False},
    architectures=((("masked",), "DistilBertForMaskedLM"), ((), "DistilBertModel")),
)
