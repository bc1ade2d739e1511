"""ModernBERT (Warner et al. 2024) and Llama (Touvron et al. 2023): ModernBertForMaskedLM, LlamaForCausalLM.

Rotary positions, gated feed-forward, no biases. ModernBERT has sliding-window layers between dense ones, with a rotary
base of their own, and no norm before its first attention; Llama has RMS norms. ModernBERT files written by transformers
4 use other keys (`global_attn_every_n_layers`, `global_rope_theta`); both are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from etude.errors import UserError
from etude.hub.family import ACTIVATIONS, Config, Family, Field, read_count
from etude.hub.mapping import ConstantBuffer, Table, TiedCopy, linear, norm, tensor
from etude.models.transformer import Settings
from etude.nn.rotary import compute_frequencies

_THETA = {"full_attention": 160_000.0, "sliding_attention": 10_000.0}
_DENSE, _BANDED = "full_attention", "sliding_attention"
_OLD_THETA = {_DENSE: "global_rope_theta", _BANDED: "local_rope_theta"}

_FIELDS = (
    Field("hidden_size", "width", 768),
    Field("num_attention_heads", "heads", 12),
    Field("attention_dropout", "attention_dropout", 0.0),
    Field("initializer_range", "init_deviation", 0.02),
)

_MODERN = {
    "positions": "rotary",
    "segments": 0,
    "norm": "pre",
    "gated": True,
    "share": "none",
    "pooler": False,
}


def _read_rotary_base(parameters: Mapping[str, Any], default: float, source: str) -> float:
    """Return the base of rotary positions; scaled ones are refused."""
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind != "default":
        raise UserError(f"{source}: rotary positions of the type {kind!r} are not supported; 'default' is.")
    return float(parameters.get("rope_theta", default))


def _read_bias(config: Mapping[str, Any], keys: tuple[str, ...], source: str) -> bool:
    values = {key: bool(config.get(key, False)) for key in keys}
    if len(set(values.values())) > 1:
        values_text = ", ".join(f"{key}={value}" for key, value in values.items())
        raise UserError(
            f"{source}: {values_text}: here all projections have a bias or none, so all of these must be equal."
        )
    return next(iter(values.values()))


# --- ModernBERT ---------------------------------------------------------------------------------------

_BIASES = ("attention_bias", "mlp_bias", "norm_bias", "classifier_bias")
_M_LAYER = "model.layers.{i}."


def _read_modernbert(config: Config, source: str) -> dict[str, Any]:
    layers = read_count(config, "num_hidden_layers", 22, source)
    every = read_count(config, "global_attn_every_n_layers", 3, source)
    kinds = config.get("layer_types") or [_BANDED if layer % every else _DENSE for layer in range(layers)]
    bases = config.get("rope_parameters") or {}
    scaling = _scaling(config)
    base = {
        kind: _read_rotary_base({**scaling, **(bases.get(kind) or {})}, config.get(old, _THETA[kind]), source)
        for kind, old in _OLD_THETA.items()
    }
    values = {"bias": _read_bias(config, _BIASES, source), "rotary_base": base[_DENSE]}
    if _BANDED not in kinds:
        return values
    every = next((layer for layer, kind in enumerate(kinds) if layer and kind == _DENSE), max(2, layers))
    if kinds != [_BANDED if layer % every else _DENSE for layer in range(layers)]:
        raise UserError(
            f"{source}: layer_types must be dense at layers 0, n, 2n ... and banded between; they are {kinds}."
        )
    window = read_count(config, "local_attention", 128, source) // 2
    return {**values, "window": window, "dense_every": every, "rotary_window_base": base[_BANDED]}


def _scaling(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return config.get("rope_scaling") or {}


def _write_modernbert(settings: Settings) -> dict[str, Any]:
    every = settings.dense_every if settings.window is not None else 1
    local = settings.rotary_window_base or settings.rotary_base
    return {
        **dict.fromkeys(_BIASES, settings.bias),
        "decoder_bias": True,
        "layer_types": [_BANDED if layer % every else _DENSE for layer in range(settings.layers)],
        "local_attention": 2 * settings.window if settings.window is not None else 128,
        "rope_parameters": {
            _DENSE: {"rope_type": "default", "rope_theta": settings.rotary_base},
            _BANDED: {"rope_type": "default", "rope_theta": local},
        },
        "global_attn_every_n_layers": every,
        "global_rope_theta": settings.rotary_base,
        "local_rope_theta": local,
    }


MODERNBERT = Family(
    name="modernbert",
    system="ModernBERT",
    model_type="modernbert",
    objective="masked",
    table=Table(
        prefix="model.",
        rules=(
            *tensor("model.embeddings.tok_embeddings.weight", "model.embedding.tokens.weight"),
            *norm("model.embeddings.norm", "model.embedding.norm"),
            *norm(f"{_M_LAYER}attn_norm", "model.attention.{i}.norm", start=1),
            *linear(f"{_M_LAYER}attn.Wqkv", "model.attention.{i}.qkv"),
            *linear(f"{_M_LAYER}attn.Wo", "model.attention.{i}.out"),
            *norm(f"{_M_LAYER}mlp_norm", "model.feedforward.{i}.norm"),
            *linear(f"{_M_LAYER}mlp.Wi", ["model.feedforward.{i}.gate", "model.feedforward.{i}.up"]),
            *linear(f"{_M_LAYER}mlp.Wo", "model.feedforward.{i}.down"),
            *norm("model.final_norm", "model.norm"),
            *linear("head.dense", "objective.head.dense", part="masked"),
            *norm("head.norm", "objective.head.norm", part="masked"),
            *tensor("decoder.bias", "objective.head.bias", part="masked"),
        ),
        copies=(TiedCopy("decoder.weight", "model.embeddings.tok_embeddings.weight", part="masked"),),
    ),
    fields=(
        *_FIELDS,
        Field("vocab_size", "vocab", 50368),
        Field("num_hidden_layers", "layers", 22),
        Field("intermediate_size", "feedforward", 1152),
        Field("hidden_activation", "activation", "gelu", ACTIVATIONS),
        Field("max_position_embeddings", "context", 8192),
        Field("norm_eps", "epsilon", 1e-5),
        Field("embedding_dropout", "embedding_dropout", 0.0),
        Field("mlp_dropout", "dropout", 0.0),
    ),
    fixed={**_MODERN, "direction": "both", "norm_kind": "layer", "embedding_norm": True, "first_norm": False},
    extra_settings=("bias", "rotary_base", "rotary_window_base", "window", "dense_every"),
    read_extra=_read_modernbert,
    write_extra=_write_modernbert,
    required={"decoder_bias": True},
    head_activation_key="classifier_activation",
    architectures=((("masked",), "ModernBertForMaskedLM"), ((), "ModernBertModel")),
)

# --- Llama --------------------------------------------------------------------------------------------

_L_LAYER = "model.layers.{i}."


def _read_llama(config: Config, source: str) -> dict[str, Any]:
    heads = read_count(config, "num_attention_heads", 32, source)
    groups = config.get("num_key_value_heads") or heads
    if groups != heads:
        raise UserError(
            f"{source}: num_key_value_heads={groups} for {heads} heads: grouped-query attention is not supported."
        )
    size = read_count(config, "hidden_size", 4096, source) / heads
    if (config.get("head_dim") or size) != size:
        raise UserError(f"{source}: head_dim={config['head_dim']}: heads here are hidden_size / heads = {size:g} wide.")
    rope = {
        "rope_theta": config.get("rope_theta", 10_000.0),
        **_scaling(config),
        **(config.get("rope_parameters") or {}),
    }
    return {
        "bias": _read_bias(config, ("attention_bias", "mlp_bias"), source),
        "rotary_base": _read_rotary_base(rope, 10_000.0, source),
    }


def _write_llama(settings: Settings) -> dict[str, Any]:
    return {
        "num_key_value_heads": settings.heads,
        "head_dim": settings.width // settings.heads,
        "attention_bias": settings.bias,
        "mlp_bias": settings.bias,
        "rope_parameters": {"rope_type": "default", "rope_theta": settings.rotary_base},
        "rope_theta": settings.rotary_base,  # the key of transformers 4
    }


def _list_llama_buffers(settings: Settings) -> tuple[ConstantBuffer, ...]:
    """Frequencies of the rotation, which old versions of transformers wrote for each layer, computed in float32."""
    frequencies = compute_frequencies(settings.width // settings.heads, settings.rotary_base)
    return (ConstantBuffer(f"{_L_LAYER}self_attn.rotary_emb.inv_freq", lambda shape: frequencies, tolerance=1e-6),)


LLAMA = Family(
    name="llama",
    system="Llama",
    model_type="llama",
    objective="causal",
    table=Table(
        prefix="model.",
        rules=(
            *tensor("model.embed_tokens.weight", "model.embedding.tokens.weight"),
            *norm(f"{_L_LAYER}input_layernorm", "model.attention.{i}.norm"),
            *linear([f"{_L_LAYER}self_attn.{name}_proj" for name in "qkv"], "model.attention.{i}.qkv"),
            *linear(f"{_L_LAYER}self_attn.o_proj", "model.attention.{i}.out"),
            *norm(f"{_L_LAYER}post_attention_layernorm", "model.feedforward.{i}.norm"),
            *linear(f"{_L_LAYER}mlp.gate_proj", "model.feedforward.{i}.gate"),
            *linear(f"{_L_LAYER}mlp.up_proj", "model.feedforward.{i}.up"),
            *linear(f"{_L_LAYER}mlp.down_proj", "model.feedforward.{i}.down"),
            *norm("model.norm", "model.norm"),
        ),
        copies=(TiedCopy("lm_head.weight", "model.embed_tokens.weight"),),
        derive_constants=_list_llama_buffers,
    ),
    fields=(
        *(field.with_default({"width": 4096, "heads": 32}.get(field.setting, field.default)) for field in _FIELDS),
        Field("vocab_size", "vocab", 32000),
        Field("num_hidden_layers", "layers", 32),
        Field("intermediate_size", "feedforward", 11008),
        Field("hidden_act", "activation", "silu", ACTIVATIONS),
        Field("max_position_embeddings", "context", 2048),
        Field("rms_norm_eps", "epsilon", 1e-6),
    ),
    fixed={
        **_MODERN,
        "direction": "causal",
        "norm_kind": "rms",
        "embedding_norm": False,
        "first_norm": True,
        "window": None,
    },
    extra_settings=("bias", "rotary_base"),
    read_extra=_read_llama,
    write_extra=_write_llama,
    tied=False,
    architectures=(((), "LlamaForCausalLM"),),
)
