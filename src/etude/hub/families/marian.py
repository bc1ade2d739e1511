"""Encoder-decoders of `transformers` that have our form: MarianMTModel, and with norms before branches Pegasus's class.

Marian (Junczys-Dowmunt et al. 2018) is the Transformer as it was published: sinusoidal positions, norms behind the
branches. `PegasusForConditionalGeneration` is the same with norms before the branches and a final one on both stacks.
Both put all sines before all cosines, where ours alternate as in the paper. The order of the columns of the residual
stream means nothing, so every tensor that reads or writes it is reordered, and the same model comes out.

T5, BART and their kin have other layers (relative positions, a norm of the embeddings); they are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

from etude.errors import UserError
from etude.hub.family import ACTIVATIONS, Config, published_activation, read_activation
from etude.hub.mapping import ConstantBuffer, ResolvedTable, Rule, TiedCopy, linear, norm, tensor
from etude.models.encoder_decoder import Settings
from etude.objectives import translate

BIAS = "final_logits_bias"  # (1, V) there, (V,) here
SHARED, ENCODER_TABLE, DECODER_TABLE, OUTPUT = (
    "model.shared.weight",
    "model.encoder.embed_tokens.weight",
    "model.decoder.embed_tokens.weight",
    "lm_head.weight",
)
POSITIONS = tuple(f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder"))

# types of config.json -> what they have and the encoder-decoder here has not
REFUSED = {
    "t5": "T5 has relative positions, and norms without a mean",
    "mt5": "mT5 has relative positions, and norms without a mean",
    "umt5": "UMT5 has relative positions, and norms without a mean",
    "longt5": "LongT5 has relative positions, and local attention",
    "bart": "BART has learned positions behind an offset, and a norm of its embeddings",
    "mbart": "mBART has learned positions behind an offset, and a norm of its embeddings",
    "m2m_100": "M2M-100 has positions behind an offset",
    "nllb-moe": "NLLB-MoE has experts",
    "fsmt": "FSMT has positions behind an offset and two vocabularies",
    "prophetnet": "ProphetNet predicts several tokens at a time",
    "led": "LED has local attention",
    "blenderbot": "Blenderbot has learned positions",
}


@dataclass(frozen=True)
class Seq2SeqFamily:
    """A published class of encoder-decoders."""

    system: str
    model_type: str
    architecture: str
    norm: str  # where norms stand: post or pre
    has_two_tables: bool  # whether source and target may have tables of their own, and the output layer too
    saves_positions: bool


MARIAN = Seq2SeqFamily("MarianMT", "marian", "MarianMTModel", "post", True, False)
PEGASUS = Seq2SeqFamily("Pegasus", "pegasus", "PegasusForConditionalGeneration", "pre", False, True)
FAMILIES = (MARIAN, PEGASUS)


def find_family(config: Config, source: str) -> Seq2SeqFamily | None:
    """Return the family of a config.json, None for other kinds of models; UserError for other encoder-decoders."""
    model_type = str(config.get("model_type", ""))
    if model_type in REFUSED:
        raise UserError(
            f"{source}: models of the type {model_type!r} are not supported: {REFUSED[model_type]}. Of "
            f"encoder-decoders, those of the types {' and '.join(family.model_type for family in FAMILIES)} are read."
        )
    return next((family for family in FAMILIES if family.model_type == model_type), None)


# --- tensors ----------------------------------------------------------------------------------------


def make_table(family: Seq2SeqFamily, settings: Settings, objective: translate.Settings) -> ResolvedTable:
    """Return the names there and here of all tensors of a model."""
    rules: list[Rule] = []
    copies: tuple[TiedCopy, ...]
    if settings.tables == "shared":
        rules += tensor(SHARED, "model.embedding.tokens.weight")
        copies = tuple(TiedCopy(name, SHARED) for name in (ENCODER_TABLE, DECODER_TABLE, OUTPUT))
    else:
        rules += tensor(ENCODER_TABLE, "model.embedding.tokens.weight")
        rules += tensor(DECODER_TABLE, "model.target_embedding.tokens.weight")
        copies = (TiedCopy(OUTPUT, DECODER_TABLE),) if objective.tied else ()
        rules += () if objective.tied else tensor(OUTPUT, "objective.output")
    for layer in range(settings.layers):
        rules += _layer_rules(f"model.encoder.layers.{layer}.", layer, "encoder")
    for layer in range(settings.decoder_layers or settings.layers):
        there = f"model.decoder.layers.{layer}."
        rules += _layer_rules(there, layer, "decoder")
        cross = f"model.cross_attention.{layer}."
        rules += linear(f"{there}encoder_attn.q_proj", f"{cross}query")
        rules += linear([f"{there}encoder_attn.{part}_proj" for part in "kv"], f"{cross}key_value")
        rules += linear(f"{there}encoder_attn.out_proj", f"{cross}out")
        rules += norm(f"{there}encoder_attn_layer_norm", f"{cross}norm")
    if family.norm == "pre":
        for side in ("encoder", "decoder"):
            rules += norm(f"model.{side}.layer_norm", f"model.{side}_norm")
    if objective.bias:
        rules += tensor(BIAS, "objective.bias")
    constants = tuple(ConstantBuffer(name, make_positions) for name in POSITIONS)
    return ResolvedTable("model.", tuple(rules), copies, constants)


def _layer_rules(there: str, layer: int, side: str) -> tuple[Rule, ...]:
    """Self-attention and feed-forward, which a layer of either stack has."""
    attention, feedforward = f"model.{side}_attention.{layer}.", f"model.{side}_feedforward.{layer}."
    return (
        *linear([f"{there}self_attn.{part}_proj" for part in "qkv"], f"{attention}qkv"),
        *linear(f"{there}self_attn.out_proj", f"{attention}out"),
        *norm(f"{there}self_attn_layer_norm", f"{attention}norm"),
        *linear(f"{there}fc1", f"{feedforward}up"),
        *linear(f"{there}fc2", f"{feedforward}down"),
        *norm(f"{there}final_layer_norm", f"{feedforward}norm"),
    )


def make_positions(shape: tuple[int, ...]) -> Tensor:
    """(context, D) the sinusoids of both classes: all sines before all cosines."""
    context, width = shape
    angle = np.arange(context)[:, None] / np.power(10_000.0, 2 * (np.arange(width) // 2) / width)  # (context, D)
    return torch.from_numpy(np.concatenate([np.sin(angle[:, ::2]), np.cos(angle[:, 1::2])], 1).astype(np.float32))


def reorder_stream(tensors: Mapping[str, Tensor], width: int, published: bool) -> dict[str, Tensor]:
    """Return our tensors with the columns of the residual stream in the published order, or back in ours."""
    order = torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])
    order = order if published else order.argsort()
    return {
        name: value if (axis := _stream_axis(name)) is None else value.index_select(axis, order)
        for name, value in tensors.items()
    }


def _stream_axis(name: str) -> int | None:
    """The axis of a tensor that runs over the residual stream."""
    layer, kind = name.split(".")[-2:]
    if layer in ("tokens", "qkv", "query", "key_value", "up"):
        return 1 if kind == "weight" else None
    if name in ("objective.output", "objective.bias"):
        return 1 if kind == "output" else None
    if layer in ("out", "down", "norm", "encoder_norm", "decoder_norm"):
        return 0
    raise AssertionError(f"{name}: which axis is the residual stream?")


# --- settings ---------------------------------------------------------------------------------------


def describe_mismatch(settings: Settings, objective: translate.Settings) -> str:
    """Say why no class of transformers has a place for a model; empty where one does."""
    family = match_settings(settings)
    mismatches = []
    for name, expected in (("positions", "sinusoidal"), ("epsilon", 1e-5), ("bias", True)):
        if getattr(settings, name) != expected:
            mismatches.append(f"model.{name}={getattr(settings, name)} ({family.system} has {expected})")
    if settings.activation not in ACTIVATIONS.values():
        mismatches.append(f"model.activation={settings.activation}")
    if not family.has_two_tables:
        if settings.tables != "shared":
            mismatches.append(f"model.tables={settings.tables} ({family.system} has one table)")
        if not objective.tied:
            mismatches.append(f"objective.tied=false ({family.system} has one table)")
    reason = f"the nearest class is {family.architecture}, and it has no place for "
    return reason + "; ".join(mismatches) if mismatches else ""


def match_settings(settings: Settings) -> Seq2SeqFamily:
    """Return the family with norms at the same place."""
    return next(family for family in FAMILIES if family.norm == settings.norm)


def make_config(
    family: Seq2SeqFamily, settings: Settings, objective: translate.Settings, *, start: int, end: int, pad: int
) -> dict[str, Any]:
    """Return config.json; `start` is the token before a target."""
    inner, layers = settings.feedforward or 4 * settings.width, settings.decoder_layers or settings.layers
    config: dict[str, Any] = {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "vocab_size": settings.vocab,
        "d_model": settings.width,
        "encoder_layers": settings.layers,
        "decoder_layers": layers,
        "encoder_attention_heads": settings.heads,
        "decoder_attention_heads": settings.heads,
        "encoder_ffn_dim": inner,
        "decoder_ffn_dim": inner,
        "max_position_embeddings": settings.context,
        "activation_function": published_activation(settings.activation),
        "dropout": settings.dropout,
        "attention_dropout": settings.attention_dropout,
        "activation_dropout": settings.inner_dropout,
        "scale_embedding": settings.scaled,
        "is_encoder_decoder": True,
        "tie_word_embeddings": objective.tied,
        "pad_token_id": pad,
        "eos_token_id": end,
        "decoder_start_token_id": start,
        "bos_token_id": None,
        "forced_eos_token_id": None,
        "dtype": "float32",
    }
    if family.has_two_tables:
        is_shared = settings.tables == "shared" and objective.tied
        config |= {"share_encoder_decoder_embeddings": is_shared, "decoder_vocab_size": settings.vocab}
    return config


# defaults of both config classes, where config.json has no such key
_DEFAULTS = {
    "encoder_layers": 12,
    "decoder_layers": 12,
    "encoder_attention_heads": 16,
    "decoder_attention_heads": 16,
    "encoder_ffn_dim": 4096,
    "decoder_ffn_dim": 4096,
    "d_model": 1024,
    "max_position_embeddings": 1024,
    "activation_function": "gelu",
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "scale_embedding": False,
    "tie_word_embeddings": True,
    "share_encoder_decoder_embeddings": True,
}


def parse_config(family: Seq2SeqFamily, config: Config, source: str) -> tuple[Settings, bool]:
    """Return our settings of a config.json, and whether the output layer is the table of target vectors."""
    values = {**_DEFAULTS, **config}
    for left, right in (("encoder_attention_heads", "decoder_attention_heads"), ("encoder_ffn_dim", "decoder_ffn_dim")):
        if values[left] != values[right]:
            raise UserError(f"{source}: {left}={values[left]} and {right}={values[right]}: here both stacks are alike.")
    target_vocab = values.get("decoder_vocab_size") or values.get("vocab_size")
    if target_vocab != values.get("vocab_size"):
        raise UserError(
            f"{source}: vocab_size={values.get('vocab_size')} and decoder_vocab_size={target_vocab}: one vocabulary "
            "serves both sides here."
        )
    activation = read_activation(values, "activation_function", "gelu", source)
    if values.get("vocab_size") is None:
        raise UserError(f"{source}: config.json has no vocab_size. Take the whole folder of the model.")
    is_tied = bool(values["tie_word_embeddings"])
    is_shared = bool(values["share_encoder_decoder_embeddings"]) if family.has_two_tables else True
    if is_shared and not is_tied:
        raise UserError(
            f"{source}: one table for source and target and another for the output layer (tie_word_embeddings=false) "
            "is not supported: write it with share_encoder_decoder_embeddings=false."
        )
    try:
        settings = Settings(
            layers=values["encoder_layers"], decoder_layers=values["decoder_layers"], width=values["d_model"],
            heads=values["encoder_attention_heads"], feedforward=values["encoder_ffn_dim"],
            vocab=values.get("vocab_size"), context=values["max_position_embeddings"],
            tables="shared" if is_shared else "separate", scaled=bool(values["scale_embedding"]),
            norm="post" if family.norm == "post" else "pre", activation=activation,  # type: ignore[arg-type]
            dropout=values["dropout"], attention_dropout=values["attention_dropout"],
            inner_dropout=values["activation_dropout"],
        )  # fmt: skip
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        raise UserError(f"{source}: config.json describes no model: {name}: {first['msg']}.") from None
    return settings, is_tied
