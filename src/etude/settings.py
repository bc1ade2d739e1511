"""The base of every typed group of settings in a recipe.

Each model, objective and task module defines one `Settings(Strict)`; `recipes/schema.py` joins them.
Unknown keys are errors, values are checked when they are set, and nothing changes after that.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())
