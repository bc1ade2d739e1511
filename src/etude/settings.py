"""The base class of every group of settings in a recipe, and the check of files that hold plain values.

Each model, objective and task module defines one `Settings(Strict)`; `recipes/schema.py` combines them.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from etude.errors import UserError

Shape = TypeVar("Shape")
Count = Annotated[int, Field(ge=0, lt=1 << 62)]  # of a file: bytes, tokens, rows


class Strict(BaseModel):
    """Immutable pydantic settings that reject unknown keys and infinite numbers, and check values when they are set."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)


class ReadsGraph(Strict):
    """The base of an objective's `Settings` where it learns from a knowledge graph, not from a corpus.

    Verbs that take a recipe and a corpus open a graph folder for it; the recipe has no tokenizer.
    """


class ReadsEntities(Strict):
    """The base of a model's `Settings` where it reads the entities of a text from a frozen table of their vectors."""

    entities: int | None = Field(default=None, ge=1, description="vectors of the table; filled from the table")
    graph: str | None = Field(default=None, description="fingerprint of their graph; filled from the table")


def check_values(values: object, shape: type[Shape], where: str, advice: str) -> Shape:
    """Return plain values (of JSON or YAML) that have the shape of a TypedDict; UserError names the first fault.

    Types are exact: true is no number, and "3" is a word. Further keys may be there. `advice` says what to do.
    """
    try:
        _adapter(cast(Any, shape)).validate_python(values, strict=True)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, fault["loc"]))
        raise UserError(f"{where} is damaged: {place or 'its content'}: {fault['msg'].lower()}. {advice}") from None
    return cast(Shape, values)


def read_json(path: Path, shape: type[Shape], advice: str) -> Shape:
    """Read a JSON file of the shape of a TypedDict; UserError names the file and what is wrong with it."""
    try:
        values = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise UserError(f"{path} is damaged: it is not JSON. {advice}") from None
    return check_values(values, shape, str(path), advice)


@lru_cache
def _adapter(shape: Any) -> TypeAdapter[Any]:
    return TypeAdapter(shape)
