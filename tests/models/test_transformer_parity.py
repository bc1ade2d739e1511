"""The same numbers as the reference classes of `transformers`: padded there, packed here.

Random weights of a small model of each family are copied over; hidden states of every layer, and gradients of
a few parameters of different kinds, must agree to 1e-5.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from etude.models.transformer import Settings, Transformer, build
from etude.nn.packed import Packed, pack

transformers = pytest.importorskip("transformers", reason="parity needs the package transformers")

LENGTHS = [9, 1, 17, 5, 17]
VOCAB, CONTEXT = 60, 24
Weights = dict[str, Tensor]


def bert_weights(state: Weights, layers: int) -> Weights:
    out = {
        "embedding.tokens.weight": state["embeddings.word_embeddings.weight"],
        "embedding.positions.weight": state["embeddings.position_embeddings.weight"],
        "embedding.segments.weight": state["embeddings.token_type_embeddings.weight"],
    }
    for part in ("weight", "bias"):
        out[f"embedding.norm.{part}"] = state[f"embeddings.LayerNorm.{part}"]
        if f"pooler.dense.{part}" in state:
            out[f"pooler.{part}"] = state[f"pooler.dense.{part}"]
        if f"embeddings_project.{part}" in state:
            out[f"embedding.project.{part}"] = state[f"embeddings_project.{part}"]
        for layer in range(layers):
            there = f"encoder.layer.{layer}"
            heads = [state[f"{there}.attention.self.{name}.{part}"] for name in ("query", "key", "value")]
            out[f"attention.{layer}.qkv.{part}"] = torch.cat(heads)
            out[f"attention.{layer}.out.{part}"] = state[f"{there}.attention.output.dense.{part}"]
            out[f"attention.{layer}.norm.{part}"] = state[f"{there}.attention.output.LayerNorm.{part}"]
            out[f"feedforward.{layer}.up.{part}"] = state[f"{there}.intermediate.dense.{part}"]
            out[f"feedforward.{layer}.down.{part}"] = state[f"{there}.output.dense.{part}"]
            out[f"feedforward.{layer}.norm.{part}"] = state[f"{there}.output.LayerNorm.{part}"]
    return out


def albert_weights(state: Weights, layers: int) -> Weights:
    out = {
        "embedding.tokens.weight": state["embeddings.word_embeddings.weight"],
        "embedding.positions.weight": state["embeddings.position_embeddings.weight"],
        "embedding.segments.weight": state["embeddings.token_type_embeddings.weight"],
    }
    there = "encoder.albert_layer_groups.0.albert_layers.0"
    for part in ("weight", "bias"):
        out[f"embedding.norm.{part}"] = state[f"embeddings.LayerNorm.{part}"]
        out[f"embedding.project.{part}"] = state[f"encoder.embedding_hidden_mapping_in.{part}"]
        out[f"pooler.{part}"] = state[f"pooler.{part}"]
        heads = [state[f"{there}.attention.{name}.{part}"] for name in ("query", "key", "value")]
        out[f"attention.0.qkv.{part}"] = torch.cat(heads)
        out[f"attention.0.out.{part}"] = state[f"{there}.attention.dense.{part}"]
        out[f"attention.0.norm.{part}"] = state[f"{there}.attention.LayerNorm.{part}"]
        out[f"feedforward.0.up.{part}"] = state[f"{there}.ffn.{part}"]
        out[f"feedforward.0.down.{part}"] = state[f"{there}.ffn_output.{part}"]
        out[f"feedforward.0.norm.{part}"] = state[f"{there}.full_layer_layer_norm.{part}"]
    return out


def gpt_weights(state: Weights, layers: int) -> Weights:
    """GPT-1 and GPT-2: matrices are stored input first, hence turned."""
    tokens, positions = ("wte", "wpe") if "wte.weight" in state else ("tokens_embed", "positions_embed")
    out = {
        "embedding.tokens.weight": state[f"{tokens}.weight"],
        "embedding.positions.weight": state[f"{positions}.weight"],
    }
    for part in ("weight", "bias"):
        if f"ln_f.{part}" in state:
            out[f"norm.{part}"] = state[f"ln_f.{part}"]
        for layer in range(layers):
            for ours, theirs in (
                (f"attention.{layer}.qkv", "attn.c_attn"),
                (f"attention.{layer}.out", "attn.c_proj"),
                (f"feedforward.{layer}.up", "mlp.c_fc"),
                (f"feedforward.{layer}.down", "mlp.c_proj"),
            ):
                out[f"{ours}.{part}"] = state[f"h.{layer}.{theirs}.{part}"].t()  # t() leaves a bias as it is
            out[f"attention.{layer}.norm.{part}"] = state[f"h.{layer}.ln_1.{part}"]
            out[f"feedforward.{layer}.norm.{part}"] = state[f"h.{layer}.ln_2.{part}"]
    return out


def llama_weights(state: Weights, layers: int) -> Weights:
    out = {"embedding.tokens.weight": state["embed_tokens.weight"], "norm.weight": state["norm.weight"]}
    for layer in range(layers):
        there = f"layers.{layer}"
        heads = [state[f"{there}.self_attn.{name}_proj.weight"] for name in "qkv"]
        out[f"attention.{layer}.qkv.weight"] = torch.cat(heads)
        out[f"attention.{layer}.out.weight"] = state[f"{there}.self_attn.o_proj.weight"]
        out[f"attention.{layer}.norm.weight"] = state[f"{there}.input_layernorm.weight"]
        out[f"feedforward.{layer}.norm.weight"] = state[f"{there}.post_attention_layernorm.weight"]
        for name in ("gate", "up", "down"):
            out[f"feedforward.{layer}.{name}.weight"] = state[f"{there}.mlp.{name}_proj.weight"]
    return out


def modernbert_weights(state: Weights, layers: int) -> Weights:
    out = {
        "embedding.tokens.weight": state["embeddings.tok_embeddings.weight"],
        "embedding.norm.weight": state["embeddings.norm.weight"],
        "norm.weight": state["final_norm.weight"],
    }
    for layer in range(layers):
        there = f"layers.{layer}"
        out[f"attention.{layer}.qkv.weight"] = state[f"{there}.attn.Wqkv.weight"]
        out[f"attention.{layer}.out.weight"] = state[f"{there}.attn.Wo.weight"]
        if layer:
            out[f"attention.{layer}.norm.weight"] = state[f"{there}.attn_norm.weight"]
        gate, up = state[f"{there}.mlp.Wi.weight"].chunk(2)
        out[f"feedforward.{layer}.gate.weight"], out[f"feedforward.{layer}.up.weight"] = gate, up
        out[f"feedforward.{layer}.down.weight"] = state[f"{there}.mlp.Wo.weight"]
        out[f"feedforward.{layer}.norm.weight"] = state[f"{there}.mlp_norm.weight"]
    return out


BERT_THERE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": CONTEXT,
    "attn_implementation": "eager",
}
BERT_HERE: dict[str, Any] = {
    "layers": 3,
    "width": 32,
    "heads": 4,
    "feedforward": 48,
    "vocab": VOCAB,
    "context": CONTEXT,
    "norm": "post",
    "epsilon": 1e-12,
    "segments": 2,
    "embedding_norm": True,
}
GPT_THERE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": CONTEXT,
    "attn_implementation": "eager",
}
GPT_HERE: dict[str, Any] = {
    "layers": 3,
    "width": 32,
    "heads": 4,
    "vocab": VOCAB,
    "context": CONTEXT,
    "direction": "causal",
    "activation": "gelu_tanh",
}
# name: (configuration and model there, their settings, ours, the mapping)
FAMILIES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any], Callable[[Weights, int], Weights]]] = {
    "bert": ("BertConfig", "BertModel", BERT_THERE, BERT_HERE | {"pooler": True}, bert_weights),
    "electra": (
        "ElectraConfig",
        "ElectraModel",
        BERT_THERE | {"embedding_size": 16},
        BERT_HERE | {"embedding_width": 16},
        bert_weights,
    ),
    "albert": (
        "AlbertConfig",
        "AlbertModel",
        BERT_THERE | {"embedding_size": 16, "hidden_act": "gelu_new"},
        BERT_HERE | {"embedding_width": 16, "share": "all", "activation": "gelu_tanh", "pooler": True},
        albert_weights,
    ),
    "gpt-1": ("OpenAIGPTConfig", "OpenAIGPTModel", GPT_THERE, GPT_HERE | {"norm": "post"}, gpt_weights),
    "gpt-2": ("GPT2Config", "GPT2Model", GPT_THERE, GPT_HERE | {"norm": "pre"}, gpt_weights),
    "llama": (
        "LlamaConfig",
        "LlamaModel",
        BERT_THERE | {"rms_norm_eps": 1e-6},
        GPT_HERE
        | {"feedforward": 48, "activation": "silu", "gated": True, "bias": False, "norm_kind": "rms"}
        | {"positions": "rotary", "epsilon": 1e-6},
        llama_weights,
    ),
    "modernbert": (
        "ModernBertConfig",
        "ModernBertModel",
        BERT_THERE | {"local_attention": 8, "global_attn_every_n_layers": 3, "pad_token_id": 0},
        GPT_HERE
        | {"direction": "both", "feedforward": 48, "activation": "gelu", "gated": True, "bias": False}
        | {"positions": "rotary", "rotary_base": 160_000.0, "rotary_window_base": 10_000.0}
        | {"embedding_norm": True, "first_norm": False, "window": 4, "dense_every": 3},
        modernbert_weights,
    ),
}


def pair_of(family: str) -> tuple[nn.Module, Transformer]:
    config, model, theirs, ours, mapping = FAMILIES[family]
    torch.manual_seed(0)
    settings = getattr(transformers, config)(**theirs)
    there = getattr(transformers, model)(settings).eval()
    with torch.no_grad():
        for parameter in there.parameters():  # gains and biases too: a mapping that drops one must show
            parameter.add_(torch.randn_like(parameter) * 0.1)
    here = build(Settings(**ours)).eval()
    here.load_state_dict(mapping(there.state_dict(), ours["layers"]), strict=True)
    return there, here


def inputs(segments: bool) -> tuple[Tensor, Tensor, Tensor, Packed]:
    """Ids, mask and segments padded; and the same packed."""
    draw = np.random.default_rng(1)
    sequences = [draw.integers(1, VOCAB, length) for length in LENGTHS]
    packed = pack(sequences)
    ids, mask, kinds = (torch.zeros(len(LENGTHS), max(LENGTHS), dtype=torch.long) for _ in range(3))
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = torch.from_numpy(sequence)
        mask[row, : len(sequence)] = 1
        kinds[row, : len(sequence)] = torch.arange(len(sequence)) % 2
    if segments:
        packed.segments = kinds[mask.bool()]
    return ids, mask, kinds, packed


def run_there(there: nn.Module, family: str) -> Any:
    ids, mask, kinds, _ = inputs(True)
    given = {"token_type_ids": kinds} if FAMILIES[family][3].get("segments") else {}
    return there(input_ids=ids, attention_mask=mask, output_hidden_states=True, **given)


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_and_gradients_agree(family: str) -> None:
    there, here = pair_of(family)
    mapping, ours = FAMILIES[family][4], FAMILIES[family][3]
    _, mask, _, packed = inputs(bool(ours.get("segments")))
    real = mask.bool()
    theirs, found = run_there(there, family), here(packed, layers=True)
    assert found.layers is not None
    expected = list(theirs.hidden_states)
    expected[-1] = theirs.last_hidden_state  # some families list the last layer before the final norm
    assert len(found.layers) == len(expected)
    skip_first = family == "electra"  # lists the embedding before its projection
    for layer, (one, other) in enumerate(zip(found.layers, expected, strict=True)):
        if not (skip_first and layer == 0):
            torch.testing.assert_close(one, other[real], rtol=1e-5, atol=1e-5)

    slope = torch.randn(found.last.shape, generator=torch.Generator().manual_seed(9))
    loss_there = (theirs.last_hidden_state[real] * slope).sum()
    loss_here = (found.last * slope).sum()
    if here.pooler is not None:
        pooled = here.pool(found.last, packed.layout)
        torch.testing.assert_close(pooled, theirs.pooler_output, rtol=1e-5, atol=1e-5)
        loss_there, loss_here = loss_there + theirs.pooler_output.sum(), loss_here + pooled.sum()
    loss_there.backward()
    loss_here.backward()
    gradients = mapping({name: p.grad for name, p in there.named_parameters()}, ours["layers"])
    for name, expected_gradient in gradients.items():
        found_gradient = here.get_parameter(name).grad
        assert found_gradient is not None
        scale = float(expected_gradient.abs().max())
        torch.testing.assert_close(found_gradient / scale, expected_gradient / scale, rtol=1e-4, atol=1e-5)


def test_attention_weights_agree_with_bert() -> None:
    there, here = pair_of("bert")
    ids, mask, kinds, packed = inputs(True)
    theirs = there(input_ids=ids, attention_mask=mask, token_type_ids=kinds, output_attentions=True).attentions
    found = here(packed, weights=True).weights
    assert found is not None
    for layer in range(3):
        for row, length in enumerate(LENGTHS):
            torch.testing.assert_close(found[layer][row], theirs[layer][row, :, :length, :length], rtol=1e-5, atol=1e-6)
