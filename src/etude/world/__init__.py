"""The built-in world: text, facts and gold labels about a small invented town, in English and in Korean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from etude.world.document import Document
    from etude.world.facts import Entity, Triple
    from etude.world.world import World

__all__ = ["Document", "Entity", "Triple", "World"]


def __getattr__(name: str) -> Any:
    """Loads numpy and the lexicon only for those who use them: `import etude` stays light."""
    if name == "Document":
        from etude.world.document import Document

        return Document
    if name in ("Entity", "Triple"):
        from etude.world import facts

        return getattr(facts, name)
    if name == "World":
        from etude.world.world import World

        return World
    raise AttributeError(f"module 'etude.world' has no attribute '{name}'")
