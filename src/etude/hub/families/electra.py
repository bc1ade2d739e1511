"""ELECTRA (Clark et al. 2020): ElectraForPreTraining (the discriminator), ElectraForMaskedLM (a generator).

BERT's encoder, a projection where the embedding is narrower, and no pooler. transformers keeps the two models in two
folders; here they share the embedding (section 3.2), so a run writes it into both, and reading them together requires
that both hold the same.

Our names: the discriminator is `model.*` with `objective.discriminator.{dense,out}`; the generator is
`objective.generator.*`, without embedding tables of its own, with `objective.generator_head.{dense,norm,bias}`. A
generator alone is an ordinary masked language model. The objective `replaced` knows the size of its generator
(`generator_settings`) and which of its settings give one of a certain size (`objective_for`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from etude.hub.families.bert import ENCODER, FIELDS, OLD_SUFFIXES, REQUIRED, buffers, embeddings, layers
from etude.hub.family import ACTIVATIONS, Config, Family
from etude.hub.mapping import Rule, Table, TiedCopy, linear, norm, tensor
from etude.models.transformer import Settings
from etude.objectives import replaced
from etude.recipes.schema import Recipe

_DEFAULTS = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}


def _make_table(*head: Rule, copies: tuple[TiedCopy, ...] = ()) -> Table:
    return Table(
        prefix="electra.",
        rules=(
            *embeddings("electra."),
            *linear("electra.embeddings_project", "model.embedding.project", when="narrow"),
            *layers("electra."),
            *head,
        ),
        copies=copies,
        constants=buffers("electra."),
        old_suffixes=OLD_SUFFIXES,
    )


def _read(config: Config, source: str) -> dict[str, Any]:
    return {"embedding_width": config.get("embedding_size", 128)}


def _write(settings: Settings) -> dict[str, Any]:
    return {"embedding_size": settings.embedding_width or settings.width}


def _check_segments(settings: Settings) -> list[str]:
    return ["model.segments=0 (ELECTRA always adds a segment)"] if settings.segments == 0 else []


def _make_family(
    objective: str, table: Table, part: str, architecture: str, activations: Mapping[str, str] = ACTIVATIONS
) -> Family:
    fields = (field.with_default(_DEFAULTS.get(field.key, field.default)) for field in FIELDS)
    return Family(
        name="electra",
        system="ELECTRA",
        model_type="electra",
        objective=objective,
        table=table,
        fields=tuple(replace(f, values=activations) if f.key == "hidden_act" else f for f in fields),
        fixed={**ENCODER, "share": "none", "pooler": False},
        extra_settings=("embedding_width",),
        read_extra=_read,
        write_extra=_write,
        check_extra=_check_segments,
        architectures=(((part,), architecture), ((), "ElectraModel")),
        required=REQUIRED,
        head_activation="gelu",  # of the generator's head in transformers, whatever its layers have
    )


GENERATOR = _make_family(
    "masked",
    _make_table(
        *linear("generator_predictions.dense", "objective.head.dense", part="masked"),
        *norm("generator_predictions.LayerNorm", "objective.head.norm", part="masked"),
        *tensor("generator_lm_head.bias", "objective.head.bias", part="masked"),
        copies=(TiedCopy("generator_lm_head.weight", "electra.embeddings.word_embeddings.weight", part="masked"),),
    ),
    "masked",
    "ElectraForMaskedLM",
)

DISCRIMINATOR = _make_family(
    "replaced",
    _make_table(
        *linear("discriminator_predictions.dense", "objective.discriminator.dense", part="discriminator"),
        *linear("discriminator_predictions.dense_prediction", "objective.discriminator.out", part="discriminator"),
    ),
    "discriminator",
    "ElectraForPreTraining",
    # the discriminator's head has the activation of its layers there, the generator's always gelu; here both have one
    {name: own for name, own in ACTIVATIONS.items() if own == "gelu"},
)

# The generator of a discriminator's run: its embedding is the discriminator's.
GENERATOR_TABLE = GENERATOR.table.rename_own(
    {
        "model.": "objective.generator.",
        "model.embedding.": "model.embedding.",
        "model.embedding.project.": "objective.generator.embedding.project.",
        "objective.head.": "objective.generator_head.",
    }
)


def generator_settings(recipe: Recipe) -> Settings:
    """Return the generator's settings of a recipe with the objective `replaced`."""
    return replaced.generator_settings(recipe.objective, recipe.model_settings(Settings))


def objective_for(model: Settings, generator: Settings | None) -> dict[str, Any]:
    """Return the objective of a published discriminator and its generator, if there is one."""
    return {"kind": "replaced", "activation": GENERATOR.head_activation, **replaced.objective_for(model, generator)}
