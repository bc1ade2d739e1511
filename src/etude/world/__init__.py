"""The built-in world: text, facts and gold labels about a small invented town, in English and in Korean."""

from __future__ import annotations

from etude.world.document import Document
from etude.world.facts import Entity, Triple
from etude.world.world import World

__all__ = ["Document", "Entity", "Triple", "World"]
