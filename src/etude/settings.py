"""The base class of every group of settings in a recipe.

Each model, objective and task module defines one `Settings(Strict)`; `recipes/schema.py` combines them.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Strict(BaseModel):
    """Immutable pydantic settings that reject unknown keys and check values when they are set."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class ReadsGraph(Strict):
    """The base of an objective's `Settings` where it learns from a knowledge graph, not from a corpus.

    Verbs that take a recipe and a corpus open a graph folder for it; the recipe has no tokenizer.
    """


class ReadsEntities(Strict):
    """The base of a model's `Settings` where it reads the entities of a text from a frozen table of their vectors."""

    entities: int | None = Field(default=None, ge=1, description="vectors of the table; filled from the table")
    graph: str | None = Field(default=None, description="fingerprint of their graph; filled from the table")
