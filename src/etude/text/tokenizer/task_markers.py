"""The tokens that GPT-1's fine-tuning adds to a vocabulary: start, delimiter and extract.

Pre-training never saw them, so their vectors are new and learnt with the task (Radford et al. 2018, section 3.3). They
stand behind the last id, in the order of the released code: 40478, 40479 and 40480 beside its 40,478 tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from etude.errors import UserError
from etude.text.tokenizer.special_tokens import TASK_MARKERS


def find_task_markers(components: Mapping[str, Any]) -> dict[str, int]:
    """The ids of the markers by role; none unless a tokenizer.json has all three as special tokens, not as words."""
    special = {token["content"]: token["id"] for token in components.get("added_tokens", ()) if token.get("special")}
    if any(name not in special for name in TASK_MARKERS.values()):
        return {}
    return {role: special[name] for role, name in TASK_MARKERS.items()}


def add_task_markers(content: str, vocab: int) -> str:
    """The text of a tokenizer.json with the markers from the id `vocab` on; as it is where it has them."""
    parts = json.loads(content)
    if find_task_markers(parts):
        return content
    words = parts["model"].get("vocab", ())
    words = {entry[0] for entry in words} if isinstance(words, list) else set(words)
    words |= {token["content"] for token in parts.get("added_tokens", ())}
    for name in TASK_MARKERS.values():
        if name in words:
            raise UserError(f"The tokenizer has a token {name!r} of its own: set transfer.markers=own to go without.")
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [{"id": vocab + number, "content": name, **flags} for number, name in enumerate(TASK_MARKERS.values())]
    parts["added_tokens"] = [*parts.get("added_tokens", ()), *added]
    return json.dumps(parts, ensure_ascii=False)
