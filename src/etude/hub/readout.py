"""Fine-tuned runs and linear probes whose head has no class in `transformers`, exported with a class of their own.

BERT's classifier there reads [CLS] through the pooler, GPT-2's has no bias. A head over the mean of the tokens, over
other layers, or over frozen features fits none of them. Such a run is written as the encoder's own weights and config,
a linear layer, and one Python file that puts them together (hub/readout_code.py).
It opens with

    AutoModelForSequenceClassification.from_pretrained(FOLDER, trust_remote_code=True)

and in no other way: `model_type` is none that transformers knows, so that nobody gets a new random head instead.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from etude.errors import UserError
from etude.hub import mapping
from etude.hub.checkpoint_writer import PublishedModel, special_token_ids
from etude.hub.families import match_encoder
from etude.hub.readout_code import CODE, FILE_NAME
from etude.hub.tokenizer_files import add_framing, describe_word_cuts, make_tokenizer_configs, padding_token
from etude.models import transformer
from etude.models.base import Model
from etude.models.layer_features import chosen_layers
from etude.runs.run import Run
from etude.runs.task_plan import Plan
from etude.tasks.base import Task

AUTO = {"ForSequenceClassification": "AutoModelForSequenceClassification"}
AUTO |= {"ForTokenClassification": "AutoModelForTokenClassification"}


class NoPublishedClass(UserError):
    """Neither a class of transformers nor code of its own over one of its encoders can hold a run."""


def to_readout(run: Run, plan: Plan, model: Model, task: Task, reason: str) -> PublishedModel:
    """The run with code of its own; UserError with `reason` where that cannot hold it either."""
    family, _ = match_encoder(run.recipe)
    head = task.readout(model)
    if family is None or head is None:
        raise NoPublishedClass(reason)
    misfits = list(head.misfits)
    if plan.transfer.mix_norm != "none" and model.mix is not None:
        misfits.append(f"transfer.mix_norm={plan.transfer.mix_norm}")
    if misfits:
        places = "; ".join(misfits)
        raise NoPublishedClass(f"{reason[:-1]}; and an export with code of its own has no place for {places}.")
    settings = run.recipe.model_settings(transformer.Settings)
    special, framing = run.tokenizer.special, model.frame(run.tokenizer.special)
    encoder = family.make_config(settings, set()) | special_token_ids(special, causal=model.causal)
    tensors = _encoder_tensors(run, model, family.table, settings)
    for theirs, ours in head.layers.items():
        for name in ("weight", "bias"):
            tensors[f"{theirs}.{name}"] = head.weights[f"{ours}.{name}"]
    name = f"Readout{head.ending}"
    config: dict[str, Any] = {
        "architectures": [name],
        "model_type": "etude_readout",
        "auto_map": {"AutoConfig": "modeling_readout.ReadoutConfig", AUTO[head.ending]: f"modeling_readout.{name}"},
        "encoder": encoder,
        **_layers_config(plan, model),
        "pooling": head.pooling,
        "reading": head.reading,
        "scale": head.scale,
        "vector": tensors["hidden.weight" if "hidden" in head.layers else "classifier.weight"].shape[1],
        "hidden": tensors["hidden.weight"].shape[0] if "hidden" in head.layers else 0,
        "dtype": "float32",
        **{key: value for key, value in encoder.items() if key.endswith("_token_id")},
        **head.config,
    }
    tokenizer, length = add_framing(run.tokenizer, framing), task.framing.length or settings.context
    pad = padding_token(special, framing) if model.causal else special.pad
    files = make_tokenizer_configs(tokenizer, length, segments=settings.segments > 1, pad=pad)
    files |= {"tokenizer.json": tokenizer.content, FILE_NAME: CODE}
    auto = AUTO[head.ending]
    usage = (
        f"No class of transformers has this head, so {FILE_NAME} holds one. It opens with:",
        f"  from transformers import AutoTokenizer, {auto}",
        f'  model = {auto}.from_pretrained("FOLDER", trust_remote_code=True)',
        '  tokenizer = AutoTokenizer.from_pretrained("FOLDER", trust_remote_code=True)',
    )
    tensors = {name: value.detach() for name, value in tensors.items()}
    notes = (*head.notes, *describe_word_cuts(run.tokenizer, head.ending))
    return PublishedModel(config, tensors, files, notes=notes, usage=usage)


def _encoder_tensors(run: Run, model: Model, table: mapping.Table, settings: transformer.Settings) -> dict[str, Tensor]:
    """The weights of the encoder under the names of its own class there, behind `encoder.`."""
    rules = tuple(rule for rule in table.rules if rule.part == "")
    weights = {
        f"model.{name}": value for name, value in model.base.state_dict().items() if not name.startswith("pooler.")
    }
    plain = replace(table, rules=rules, copies=())
    published = mapping.to_published_names(plain, settings, weights, str(run.folder))
    return {f"encoder.{name.removeprefix(table.prefix)}": value for name, value in published.items()}


def _layers_config(plan: Plan, model: Model) -> dict[str, object]:
    """Which hidden states are read, and the weights of their sum."""
    if plan.transfer.layers == "last":
        return {"layers": None, "layer_weights": None}
    weights = None
    if model.mix is not None:
        weights = [float(value) for value in (model.mix.gamma * model.mix.mixing_weights).detach()]
    return {"layers": chosen_layers(plan.transfer.layers, model.base.state_count), "layer_weights": weights}
