"""ERNIE (Zhang et al. 2019): the tensors of its release, knowledge_bert's BertForPreTraining.

BERT's names, and for entities beside them `self_ent`, `output_ent`, `dense_ent` and `LayerNorm_ent`. Which of these a
layer has follows from its kind, `layer_types` in ernie_config.json: so the table depends on the settings. transformers
has no such class (its "Ernie" is another model); hub/ernie_files.py reads and writes the release.
"""

from __future__ import annotations

from etude.hub.families.bert import FAMILY as BERT
from etude.hub.families.bert import OLD_SUFFIXES, buffers, embeddings, layers
from etude.hub.mapping import Rule, Table, linear, norm
from etude.models.ernie import Settings

SELF = ("query", "key", "value")


def make_table(settings: Settings) -> Table:
    """Return the table of a model: BERT's, and the rules of each layer that reads entities."""
    heads = tuple(rule for rule in BERT.table.rules if rule.part)
    rules: list[Rule] = [*embeddings("bert."), *layers("bert."), *heads]
    for layer in range(settings.layers):
        rules += _layer_rules(settings, layer)
    rules += linear("cls.predictions_ent.transform.dense", "objective.entity_head.dense", part="alignment")
    rules += norm("cls.predictions_ent.transform.LayerNorm", "objective.entity_head.norm", part="alignment")
    return Table(
        prefix="bert.",
        rules=tuple(rules),
        copies=BERT.table.copies,
        constants=buffers("bert."),
        old_suffixes={
            **OLD_SUFFIXES,
            "LayerNorm_ent.gamma": "LayerNorm_ent.weight",
            "LayerNorm_ent.beta": "LayerNorm_ent.bias",
        },
    )


def _layer_rules(settings: Settings, layer: int) -> list[Rule]:
    """The rules of what a layer has beside BERT's."""
    kind = settings.kind_of(layer)
    if kind == "sim":
        return []
    published, fused = f"bert.encoder.layer.{layer}.", f"model.feedforward.{layer}."
    rules = [*linear(f"{published}intermediate.dense_ent", f"{fused}entity_up")]
    if layer != settings.last_fused:
        rules += linear(f"{published}output.dense_ent", f"{fused}entity_down")
        rules += norm(f"{published}output.LayerNorm_ent", f"{fused}entity_norm")
    if kind == "norm":
        attention, own = f"{published}attention.", f"model.entity_attention.{layer}."
        rules += linear([f"{attention}self_ent.{name}" for name in SELF], f"{own}qkv")
        rules += linear(f"{attention}output_ent.dense", f"{own}out")
        rules += norm(f"{attention}output_ent.LayerNorm", f"{own}norm")
    return rules


def unused_names(settings: Settings) -> dict[str, tuple[int, ...]]:
    """Published tensors that no output depends on, with their shapes: the entity output of the last fused layer."""
    layer = settings.last_fused
    if layer is None:
        return {}
    output, width = f"bert.encoder.layer.{layer}.output.", settings.entity_width
    inner = settings.feedforward or 4 * settings.width
    return {
        f"{output}dense_ent.weight": (width, inner),
        f"{output}dense_ent.bias": (width,),
        f"{output}LayerNorm_ent.weight": (width,),
        f"{output}LayerNorm_ent.bias": (width,),
    }
