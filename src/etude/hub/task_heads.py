"""A fine-tuned run in the published form: the encoder's table, and rules for the head that its task names.

The task describes its class of `transformers`, the names of its layers there and what of it has no place there
(tasks/published_head.py). Here are the families whose classes have such heads, and the files.
"""

from __future__ import annotations

from dataclasses import replace

from safetensors.torch import load_file
from torch import nn

from etude.errors import UserError
from etude.hub import mapping
from etude.hub.checkpoint_writer import PublishedModel, special_token_ids
from etude.hub.families import match_recipe
from etude.hub.mapping import linear
from etude.hub.readout import to_readout
from etude.hub.tokenizer_files import add_markers, make_tokenizer_configs
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
    "electra": ("Electra", EncoderFamily("ELECTRA", None)),
}


def to_published_with_head(run: Run) -> PublishedModel:
    """The model and its head as transformers has them, or with code of its own; UserError where neither can be."""
    family, why = match_recipe(run.recipe)
    if family is None:
        raise UserError(f"{run.folder} cannot be exported to transformers: {why}.")
    plan = Plan.read(run.folder)
    model, task = plan.build(run.recipe.build_model(), run.tokenizer)
    path = run.folder / "model.safetensors"
    checkpoint.load_strictly(nn.ModuleDict({"model": model, "objective": task}), load_file(path), str(path))
    start, encoder = FAMILIES.get(family.name, (None, None))
    head = None if encoder is None else task.published_head(model, encoder)
    if head is None:
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
        rules += linear(theirs, f"objective.{ours}")
    table = replace(family.table, rules=tuple(rules), copies=())
    weights = {f"model.{name}": value for name, value in model.state_dict().items()}
    if not head.reads_pooler:
        weights = {name: value for name, value in weights.items() if not name.startswith("model.pooler.")}
    weights |= {f"objective.{name}": value for name, value in head.weights.items()}
    tensors = mapping.to_published_names(table, settings, weights, f"{run.folder} as {family.system}")
    config = family.make_config(settings, set()) | special_token_ids(run.tokenizer.special, causal=False)
    config |= {"architectures": [f"{start}{head.ending}"], **head.config}
    tokenizer = add_markers(run.tokenizer)
    files = make_tokenizer_configs(tokenizer, settings.context, segments=settings.segments > 0)
    files["tokenizer.json"] = tokenizer.content
    return PublishedModel(config, {name: value.detach() for name, value in tensors.items()}, files, notes=head.notes)
