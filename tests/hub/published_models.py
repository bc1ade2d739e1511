"""What the tests of import and export share: small reference models, folders of them, and how both sides are run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from etude.hub import ImportedModel
from etude.hub.run_weights import save_final
from etude.nn.packed import Packed, pack
from etude.objectives.base import IGNORE
from etude.objectives.causal import CausalBatch
from etude.objectives.masked import MaskedBatch
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.runs.run import Run
from etude.text.tokenizer.tokenizer import Tokenizer

LENGTHS = [9, 2, 17, 5]
CONTEXT = 24
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(5, 60))]
ENCODER = {
    "vocab_size": len(WORDS),
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": CONTEXT,
}
NARROW = {**ENCODER, "embedding_size": 16}
BYTES = 262  # tokens of the byte-level tokenizer below: six special ones and the bytes
DECODER = {
    "vocab_size": BYTES,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": CONTEXT,
    "bos_token_id": 5,
    "eos_token_id": 5,
}


@dataclass(frozen=True)
class Case:
    config: str
    model: str
    values: dict[str, Any]
    ours: dict[str, Any] = field(default_factory=dict)  # settings of ours that must come out

    @property
    def causal(self) -> bool:
        return self.model.endswith(("LMHeadModel", "ForCausalLM"))


_MODERN = {
    "local_attention": 8,
    "global_attn_every_n_layers": 2,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "cls_token_id": 2,
    "eos_token_id": 3,
    "sep_token_id": 3,
}
_BIASED = {"attention_bias": True, "mlp_bias": True}
CASES = {
    "bert": Case("BertConfig", "BertForPreTraining", ENCODER, {"pooler": True}),
    "bert masked only": Case("BertConfig", "BertForMaskedLM", {**ENCODER, "hidden_act": "relu"}, {"pooler": False}),
    "distilbert": Case(
        "DistilBertConfig",
        "DistilBertForMaskedLM",
        {"vocab_size": len(WORDS), "dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48}
        | {"max_position_embeddings": CONTEXT},
        {"segments": 0},
    ),
    "albert": Case("AlbertConfig", "AlbertForPreTraining", NARROW, {"share": "all"}),
    "albert not shared": Case(
        "AlbertConfig", "AlbertForMaskedLM", {**NARROW, "num_hidden_groups": 3}, {"share": "none"}
    ),
    "electra generator": Case("ElectraConfig", "ElectraForMaskedLM", NARROW, {"embedding_width": 16}),
    "gpt1": Case("OpenAIGPTConfig", "OpenAIGPTLMHeadModel", DECODER, {"norm": "post"}),
    "gpt2": Case("GPT2Config", "GPT2LMHeadModel", DECODER, {"norm": "pre"}),
    "gpt2 wider": Case("GPT2Config", "GPT2LMHeadModel", {**DECODER, "n_inner": 40, "activation_function": "gelu"}),
    "modernbert": Case(
        "ModernBertConfig",
        "ModernBertForMaskedLM",
        {**ENCODER, **_MODERN, **_BIASED, "norm_bias": True, "classifier_bias": True},
        {"window": 4, "dense_every": 2, "rotary_base": 160_000.0, "rotary_window_base": 10_000.0},
    ),
    "llama": Case(
        "LlamaConfig",
        "LlamaForCausalLM",
        {**ENCODER, "vocab_size": BYTES, "tie_word_embeddings": True, "bos_token_id": 5, "eos_token_id": 5},
        {"norm_kind": "rms", "bias": False},
    ),
}


def byte_tokenizer(size: int = BYTES) -> Tokenizer:
    return Tokenizer.train(f"bytebpe:{size}", ["one two three four five six seven eight nine ten"] * 40)


def reference_model(case: Case) -> nn.Module:
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, case.config)(**case.values, attn_implementation="eager")
    model = getattr(transformers, case.model)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # gains and biases too: a table that drops one must show
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def save(model: Any, folder: Path, case: Case) -> Path:
    """A folder as transformers writes it, with a tokenizer."""
    model.save_pretrained(folder)
    if case.causal:
        byte_tokenizer().save(folder)
    else:
        (folder / "vocab.txt").write_text("\n".join(WORDS), encoding="utf-8")
    return folder


def finished(folder: Path, recipe: Recipe, tokenizer: Tokenizer) -> tuple[Run, nn.ModuleDict]:
    """A run as pre-training leaves it, with weights that no initialisation gives."""
    folder.mkdir()
    (folder / "recipe.yaml").write_text(recipe.dump(), encoding="utf-8")
    tokenizer.save(folder)
    learner = nn.ModuleDict(dict(zip(("model", "objective"), build_learner(recipe, tokenizer), strict=True)))
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in learner.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    run = Run(folder)
    save_final(run, learner["model"], learner["objective"], "# a toy\n")
    return run, learner.eval()


def equal(built: tuple[nn.Module, nn.Module], learner: nn.ModuleDict) -> bool:
    here = nn.ModuleDict(dict(zip(("model", "objective"), built, strict=True))).state_dict()
    wanted = learner.state_dict()
    return here.keys() == wanted.keys() and all(torch.equal(here[name], wanted[name]) for name in wanted)


def ours(imported: ImportedModel) -> nn.ModuleDict:
    model, objective = build_learner(imported.recipe, imported.tokenizer)
    learner = nn.ModuleDict({"model": model, "objective": objective})
    imported.load_into(learner)
    return learner.eval()


@dataclass
class Inputs:
    ids: Tensor  # (S, L) padded
    mask: Tensor
    kinds: Tensor
    packed: Packed


def inputs(segments: bool, vocab: int = len(WORDS)) -> Inputs:
    draw = np.random.default_rng(1)
    sequences = [draw.integers(6, vocab, length) for length in LENGTHS]
    packed = pack(sequences)
    ids, mask, kinds = (torch.zeros(len(LENGTHS), max(LENGTHS), dtype=torch.long) for _ in range(3))
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = torch.from_numpy(sequence)
        mask[row, : len(sequence)] = 1
        kinds[row, : len(sequence)] = torch.arange(len(sequence)) % 2
    if segments:
        packed.segments = kinds[mask.bool()]
    return Inputs(ids, mask, kinds, packed)


def run_reference(model: Any, given: Inputs, labels: dict[str, Tensor]) -> Any:
    kinds = {"token_type_ids": given.kinds} if given.packed.segments is not None else {}
    return model(input_ids=given.ids, attention_mask=given.mask, output_hidden_states=True, **kinds, **labels)


def logits(learner: Any, packed: Packed) -> Tensor:
    """(N, V) of our own model."""
    model, objective = learner["model"], learner["objective"]
    states = model(packed)
    if hasattr(objective.head, "dense"):
        return objective.head(states.last) @ model.embedding.tokens.weight.t() + objective.head.bias
    last, table = objective.head(model, states)
    return last @ table.t()


def batch_of(learner: Any, given: Inputs) -> tuple[Any, dict[str, Tensor]]:
    """A batch of our objective, and the same labels in the form of transformers."""
    packed, real = given.packed, given.mask.bool()
    common = {
        "tokens": packed.tokens,
        "positions": packed.positions,
        "segments": packed.segments,
        "layout": packed.layout,
        "rows": np.zeros(1, np.int64),
        "slots": np.zeros(1, np.int64),
    }
    if not hasattr(learner["objective"].head, "dense"):
        after = torch.full_like(given.ids, IGNORE)
        after[:, :-1] = given.ids[:, 1:].masked_fill(given.mask[:, 1:] == 0, IGNORE)
        targets = after[real]
        count = int((targets != IGNORE).sum())
        told = {"labels": given.ids.masked_fill(given.mask == 0, IGNORE)}
        return CausalBatch(**common, counts={"loss": count}, targets=targets), told
    index = torch.arange(0, len(packed.tokens), 3)
    targets = (packed.tokens[index] * 7 + 1) % 50
    flat = torch.full_like(packed.tokens, IGNORE)
    flat[index] = targets
    told = {"labels": torch.full_like(given.ids, IGNORE).masked_scatter(real, flat)}
    labels = torch.tensor([0, 1, 1, 0])
    if learner["objective"].sentence is not None:
        told["next_sentence_label"] = labels
    counts = {"mlm": len(index), "sentence": len(labels)}
    return MaskedBatch(**common, counts=counts, index=index, targets=targets, labels=labels), told
