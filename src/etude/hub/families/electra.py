"""ELECTRA (Clark et al. 2020), both parts: ElectraForPreTraining (the discriminator), ElectraForMaskedLM (a generator).

BERT's encoder, a projection where the embedding is narrower, and no pooler. transformers keeps the two parts in two
folders; here they share the embedding by use (section 3.2), so a run writes it into both, and reading them together
asks that both hold the same.

Names here: the discriminator is `model.*` with `objective.discriminator.{dense,out}`; the generator is
`objective.generator.*`, without tables of its own, with `objective.generator_head.{dense,norm,bias}`. A generator
alone is an ordinary masked language model. The objective `replaced` says of what size its generator is:
`generator_settings(objective, model)`, and which of its own settings ask for a given one: `objective_for(model,
generator)`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from etude.errors import UserError
from etude.hub.families.bert import ENCODER, FIELDS, OLDER, ONLY, buffers, embeddings, layers
from etude.hub.family import Family
from etude.hub.mapping import Copy, Rule, Table, linear, norm, tensor
from etude.models.transformer import Settings
from etude.recipes.schema import Recipe

_DEFAULTS = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}


def _table(*head: Rule, copies: tuple[Copy, ...] = ()) -> Table:
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
        older=OLDER,
    )


def _read(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    return {"embedding_width": config.get("embedding_size", 128)}


def _write(settings: Settings) -> dict[str, Any]:
    return {"embedding_size": settings.embedding_width or settings.width}


def _needs_segments(settings: Settings) -> list[str]:
    return ["model.segments=0 (ELECTRA always adds a segment)"] if settings.segments == 0 else []


def _family(objective: str, table: Table, part: str, architecture: str) -> Family:
    return Family(
        name="electra",
        system="ELECTRA",
        model_type="electra",
        objective=objective,
        table=table,
        fields=tuple(one.with_default(_DEFAULTS.get(one.theirs, one.default)) for one in FIELDS),
        fixed={**ENCODER, "share": "none", "pooler": False},
        more=("embedding_width",),
        read_more=_read,
        write_more=_write,
        check_more=_needs_segments,
        architectures=(((part,), architecture), ((), "ElectraModel")),
        only=ONLY,
        head_activation="gelu",  # the generator's head in transformers has this one, whatever its layers have
    )


GENERATOR = _family(
    "masked",
    _table(
        *linear("generator_predictions.dense", "objective.head.dense", part="masked"),
        *norm("generator_predictions.LayerNorm", "objective.head.norm", part="masked"),
        *tensor("generator_lm_head.bias", "objective.head.bias", part="masked"),
        copies=(Copy("generator_lm_head.weight", "electra.embeddings.word_embeddings.weight", part="masked"),),
    ),
    "masked",
    "ElectraForMaskedLM",
)

DISCRIMINATOR = _family(
    "replaced",
    _table(
        *linear("discriminator_predictions.dense", "objective.discriminator.dense", part="discriminator"),
        *linear("discriminator_predictions.dense_prediction", "objective.discriminator.out", part="discriminator"),
    ),
    "discriminator",
    "ElectraForPreTraining",
)

# The generator beside a discriminator: its tables are the discriminator's.
BESIDE = GENERATOR.table.renamed(
    {
        "model.": "objective.generator.",
        "model.embedding.": "model.embedding.",
        "model.embedding.project.": "objective.generator.embedding.project.",
        "objective.head.": "objective.generator_head.",
    }
)


def _replaced() -> ModuleType:
    name = "etude.objectives.replaced"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise UserError(
            "A discriminator of ELECTRA needs the objective 'replaced', which this version of etude does not have. "
            "A generator (ElectraForMaskedLM) can be read."
        ) from None


def generator_settings(recipe: Recipe) -> Settings:
    """The generator of a recipe with the objective `replaced`."""
    return _replaced().generator_settings(recipe.objective, recipe.model)


def objective_for(model: Settings, generator: Settings | None) -> dict[str, Any]:
    """The objective of a published discriminator, with the generator that lies beside it, if any."""
    return {"kind": "replaced", "activation": GENERATOR.head_activation, **_replaced().objective_for(model, generator)}
