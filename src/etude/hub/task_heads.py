"""A fine-tuned run in the published form: the encoder's table, and rules for the head that its task names.

The task describes its class of `transformers`, the names of its layers there and what of it has no place there
(tasks/published_head.py). Here are the families whose classes have such heads, and the files.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from etude.errors import UserError
from etude.hub import mapping
from etude.hub.checkpoint_writer import PublishedModel, special_token_ids
from etude.hub.families import match_encoder
from etude.hub.mapping import tensor
from etude.hub.readout import to_readout
from etude.hub.tokenizer_files import (
    add_framing,
    add_markers,
    describe_word_cuts,
    make_tokenizer_configs,
    padding_token,
)
from etude.hub.weights import read_safetensors
from etude.models import transformer
from etude.runs.run import Run
from etude.runs.task_plan import Plan
from etude.tasks.published_head import EncoderFamily
from etude.train import checkpoint

# the start of the names of their classes, and what those have before the last layer of a sequence classifier
FAMILIES = {
    "bert": ("Bert", EncoderFamily("BERT", "pooler")),
    "albert": ("Albert", EncoderFamily("ALBERT", "pooler")),
    "distilbert": ("DistilBert", EncoderFamily("DistilBERT", "mlp")),
    "electra": ("Electra", EncoderFamily("ELECTRA", "gelu")),
    "modernbert": ("ModernBert", EncoderFamily("ModernBERT", "norm", span_layer="classifier")),
    "gpt1": ("OpenAIGPT", EncoderFamily("GPT-1", "last", endings=("ForSequenceClassification",))),
}

SMALLEST = 1e-3  # weight of a norm that can be divided by without losing digits


def to_published_with_head(run: Run) -> PublishedModel:
    """The model and its head as transformers has them, or with code of its own; UserError where neither can be."""
    family, why = match_encoder(run.recipe)
    if family is None:
        raise UserError(f"{run.folder} cannot be exported to transformers: {why}.")
    plan = Plan.read(run.folder)
    model, task = plan.build(run.recipe.build_model(), run.tokenizer)
    path = run.folder / "model.safetensors"
    checkpoint.load_strictly(nn.ModuleDict({"model": model, "objective": task}), read_safetensors(path), str(path))
    start, encoder = FAMILIES.get(family.name, (None, None))
    head = None if encoder is None else task.published_head(model, encoder)
    if encoder is not None and encoder.endings is not None and head is not None and head.ending not in encoder.endings:
        head = None
    if encoder is None or head is None:
        reason = f"it has no class for the task {plan.kind} over {family.system}."
        return to_readout(run, plan, model, task, f"{run.folder} cannot be exported to transformers: {reason}")
    misfits = list(head.misfits)
    if plan.transfer.frozen or plan.transfer.layers != "last":
        misfits.insert(0, "features (transfer.frozen, transfer.layers): there the last layer is read, with its pooler")
    if misfits:
        reason = f"it has no class for the task {plan.kind} with {'; '.join(misfits)}."
        return to_readout(run, plan, model, task, f"{run.folder} cannot be exported to transformers: {reason}")
    settings = run.recipe.model_settings(transformer.Settings)
    rules = [rule for rule in family.table.rules if rule.part in ("", "pooler" if head.reads_pooler else "")]
    for theirs, ours in head.layers.items():
        rules += tensor(f"{theirs}.weight", f"objective.{ours}.weight")
        rules += tensor(f"{theirs}.bias", f"objective.{ours}.bias") if head.has_bias else ()
    table = replace(family.table, rules=tuple(rules), copies=())
    weights = {f"model.{name}": value for name, value in model.state_dict().items()}
    if not head.reads_pooler:
        weights = {name: value for name, value in weights.items() if not name.startswith("model.pooler.")}
    weights |= {f"objective.{name}": value for name, value in head.weights.items()}
    notes = [*head.notes, *describe_word_cuts(run.tokenizer, head.ending)]
    if not head.has_bias and not _move_bias(weights, f"objective.{head.layers['score']}", _last_norm(settings)):
        reason = f"its {family.system} has no bias in the last layer, and this one fits not into the norm before it."
        return to_readout(run, plan, model, task, f"{run.folder} cannot be exported to transformers: {reason}")
    if not head.has_bias:
        notes.append("the last layer there has no bias: that of this run is in the last norm; logits are the same")
    tensors = mapping.to_published_names(table, settings, weights, f"{run.folder} as {family.system}")
    special, pad = run.tokenizer.special, None
    config = family.make_config(settings, set()) | special_token_ids(special, causal=False)
    if model.causal:
        framing = model.frame(special)
        pad = padding_token(special, framing)  # its class reads the last token that is no padding
        ends = {"bos_token_id": next(iter(framing.before), None), "eos_token_id": framing.after[-1]}
        config |= {"pad_token_id": pad, **ends, "cls_token_id": None, "sep_token_id": None}
    config |= {"architectures": [f"{start}{head.ending}"], **head.config}
    if encoder.vector == "norm":
        idle = make_idle_layers(weights["model.norm.weight"], weights.get("model.norm.bias"))
        if idle is None:
            reason = f"its {family.system} repeats the last norm, and the weights of this one are too small for that."
            return to_readout(run, plan, model, task, f"{run.folder} cannot be exported to transformers: {reason}")
        tensors |= idle
        config |= {"classifier_activation": "linear", "classifier_pooling": "cls"}
    tokenizer = add_framing(run.tokenizer, model.frame(special)) if model.causal else add_markers(run.tokenizer)
    length = task.framing.length or settings.context
    files = make_tokenizer_configs(tokenizer, length, segments=settings.segments > 1, pad=pad)
    files["tokenizer.json"] = tokenizer.content
    tensors = {name: value.detach() for name, value in tensors.items()}
    return PublishedModel(config, tensors, files, notes=tuple(notes))


def make_idle_layers(weight: Tensor, bias: Tensor | None) -> dict[str, Tensor] | None:
    """The layer and the norm before the last layer of ModernBERT's classes, made to change nothing.

    The layer undoes what the model's last norm (`weight`, `bias`) does after it has made the mean 0 and the variance 1,
    and the norm does the same again. None where that would lose digits.
    """
    if float(weight.abs().min()) < SMALLEST * (1.0 if bias is None else max(1.0, float(bias.abs().max()))):
        return None
    tensors = {"head.dense.weight": torch.diag(1 / weight), "head.norm.weight": weight.clone()}
    if bias is not None:
        tensors |= {"head.dense.bias": -bias / weight, "head.norm.bias": bias.clone()}
    return tensors


def _last_norm(settings: transformer.Settings) -> str:
    """The norm whose output is the last hidden state, of a model with norms behind the sums."""
    return f"model.feedforward.{settings.layers - 1}.norm"


def _move_bias(weights: dict[str, Tensor], layer: str, norm: str) -> bool:
    """Put the bias of a linear layer into that of the norm before it; False where no shift of its input has the effect.

    W h + b = W (h + d) where W d = b: the shortest such d, which exists unless the rows of W depend on each other.
    """
    weight = weights[f"{layer}.weight"].double()  # (outputs, D)
    bias = weights.pop(f"{layer}.bias").double()  # (outputs,)
    shift = torch.linalg.lstsq(weight, bias[:, None], driver="gelsd").solution[:, 0]  # (D,)
    moved = (weights[f"{norm}.bias"].double() + shift).float()
    rounded = moved.double() - weights[f"{norm}.bias"].double()  # what is left of the shift in float32
    if not torch.allclose(weight @ shift, bias, atol=1e-6, rtol=1e-6) or not torch.allclose(
        weight @ rounded, bias, atol=1e-5, rtol=1e-5
    ):
        return False
    weights[f"{norm}.bias"] = moved
    return True
