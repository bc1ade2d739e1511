"""GPT-1 (Radford et al. 2018) and GPT-2 (Radford et al. 2019): OpenAIGPTLMHeadModel, GPT2LMHeadModel.

Both store matrices as (in, out) and tie the output layer to the token embedding.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from etude.hub.family import ACTIVATIONS, Config, Family, Field, read_count
from etude.hub.mapping import ConstantBuffer, Rule, Table, TiedCopy, linear, norm, tensor
from etude.models.transformer import Settings

_LAYER = "transformer.h.{i}."


def _layers() -> tuple[Rule, ...]:
    return (
        *linear(f"{_LAYER}attn.c_attn", "model.attention.{i}.qkv", transposed=True),
        *linear(f"{_LAYER}attn.c_proj", "model.attention.{i}.out", transposed=True),
        *norm(f"{_LAYER}ln_1", "model.attention.{i}.norm"),
        *linear(f"{_LAYER}mlp.c_fc", "model.feedforward.{i}.up", transposed=True),
        *linear(f"{_LAYER}mlp.c_proj", "model.feedforward.{i}.down", transposed=True),
        *norm(f"{_LAYER}ln_2", "model.feedforward.{i}.norm"),
    )


def _causal_mask(shape: tuple[int, ...]) -> Tensor:
    return torch.ones(shape).tril()


# buffers that early versions of transformers wrote: the causal mask, and the score of masked positions
_BUFFERS = (
    ConstantBuffer(f"{_LAYER}attn.bias", _causal_mask),
    ConstantBuffer(f"{_LAYER}attn.masked_bias", lambda shape: torch.full(shape, -1e4)),
)

_DECODER = {
    "direction": "causal",
    "positions": "learned",
    "segments": 0,
    "embedding_norm": False,
    "norm_kind": "layer",
    "bias": True,
    "gated": False,
    "first_norm": True,
    "share": "none",
    "window": None,
    "pooler": False,
}

_FIELDS = (
    Field("n_positions", "context", 512),
    Field("n_embd", "width", 768),
    Field("n_layer", "layers", 12),
    Field("n_head", "heads", 12),
    Field("resid_pdrop", "dropout", 0.1),
    Field("embd_pdrop", "embedding_dropout", 0.1),
    Field("attn_pdrop", "attention_dropout", 0.1),
    Field("layer_norm_epsilon", "epsilon", 1e-5),
    Field("initializer_range", "init_deviation", 0.02),
)


def _check_feedforward(settings: Settings) -> list[str]:
    inner, expected = settings.feedforward, 4 * settings.width
    return [f"model.feedforward={inner} (GPT-1 has 4 * width = {expected})"] if inner != expected else []


def _read_feedforward(config: Config, source: str) -> dict[str, Any]:
    return {"feedforward": config.get("n_inner") or 4 * read_count(config, "n_embd", 768, source)}


GPT1 = Family(
    name="gpt1",
    system="GPT-1",
    model_type="openai-gpt",
    objective="causal",
    table=Table(
        prefix="transformer.",
        rules=(
            *tensor("transformer.tokens_embed.weight", "model.embedding.tokens.weight"),
            *tensor("transformer.positions_embed.weight", "model.embedding.positions.weight"),
            *_layers(),
        ),
        copies=(TiedCopy("lm_head.weight", "transformer.tokens_embed.weight"),),
        constants=(
            *_BUFFERS,
            ConstantBuffer("transformer.position_ids", lambda shape: torch.arange(shape[-1]).expand(shape)),
        ),
    ),
    fields=(
        Field("vocab_size", "vocab", 40478),
        # its class calls the tanh approximation gelu
        Field("afn", "activation", "gelu", {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}),
        *_FIELDS,
    ),
    fixed={**_DECODER, "norm": "post"},
    extra_settings=("feedforward",),
    read_extra=lambda config, source: {"feedforward": 4 * read_count(config, "n_embd", 768, source)},
    check_extra=_check_feedforward,
    architectures=(((), "OpenAIGPTLMHeadModel"),),
    finetune={"markers": "new", "language_model": 0.5},
)

GPT2 = Family(
    name="gpt2",
    system="GPT-2",
    model_type="gpt2",
    objective="causal",
    table=Table(
        prefix="transformer.",
        rules=(
            *tensor("transformer.wte.weight", "model.embedding.tokens.weight"),
            *tensor("transformer.wpe.weight", "model.embedding.positions.weight"),
            *_layers(),
            *norm("transformer.ln_f", "model.norm"),
        ),
        copies=(TiedCopy("lm_head.weight", "transformer.wte.weight"),),
        constants=_BUFFERS,
    ),
    fields=(
        Field("vocab_size", "vocab", 50257),
        Field("activation_function", "activation", "gelu_new", ACTIVATIONS),
        *(field.with_default(1024 if field.setting == "context" else field.default) for field in _FIELDS),
    ),
    fixed={**_DECODER, "norm": "pre"},
    extra_settings=("feedforward",),
    read_extra=_read_feedforward,
    write_extra=lambda settings: {"n_inner": settings.feedforward or 4 * settings.width},
    required={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    architectures=(((), "GPT2LMHeadModel"),),
)
