"""How many characters a tokenizer.json can make of one: a text must not become a thousand times itself.

Components that replace text can be chained, and each multiplies: `Replace a -> aa` ten times over makes 1,024 letters
of one. The bound is computed from the components alone, before any text is read.
"""

from __future__ import annotations

import base64
import binascii
import struct
from typing import Any

SPACE_RUNS = " {2,}"  # in tokenizers that come from SentencePiece: a match has two characters at least
MAX_EXPANSION = 64  # NFKD, the widest of Unicode's own, makes 18 characters of one


def compute_expansion(components: dict[str, Any]) -> float:
    """Return an upper bound on the characters that normalizer, pre-tokenizer and decoder make of one."""
    parts = (components.get(name) for name in ("normalizer", "pre_tokenizer", "decoder"))
    return max((_expand(part) for part in parts), default=1.0)


def _expand(component: object) -> float:
    if not isinstance(component, dict):
        return 1.0
    kind = component.get("type")
    if kind == "Sequence":
        product = 1.0
        for members in component.values():
            for member in members if isinstance(members, list) else ():
                product *= _expand(member)
        return product
    if kind == "Replace":
        return _replacement_expansion(component.get("pattern"), str(component.get("content", "")))
    if kind == "Prepend":
        return 1.0 + len(str(component.get("prepend", "")))
    if kind == "Precompiled":
        return _precompiled_expansion(component.get("precompiled_charsmap"))
    if kind in ("Metaspace", "WordPiece", "BPEDecoder", "CTC"):
        texts = (component.get(name) for name in ("replacement", "prefix", "suffix", "pad_token"))
        return 1.0 + max((len(text) for text in texts if isinstance(text, str)), default=0)
    return 1.0


def _replacement_expansion(pattern: object, content: str) -> float:
    if isinstance(pattern, dict) and isinstance(pattern.get("String"), str) and pattern["String"]:
        return max(1.0, len(content) / len(pattern["String"]))
    if isinstance(pattern, dict) and pattern.get("Regex") == SPACE_RUNS:
        return max(1.0, len(content) / 2)
    return 1.0 + len(content)  # an expression may match nothing between any two characters


def _precompiled_expansion(charsmap: object) -> float:
    """Return the longest replacement of SentencePiece's table: a trie, then texts that end at a zero byte."""
    if not isinstance(charsmap, str):
        return 1.0
    try:
        table = base64.b64decode(charsmap)
        (trie_bytes,) = struct.unpack_from("<I", table)
    except (binascii.Error, ValueError, struct.error):
        return 1.0  # the library refuses it
    return max(map(len, table[4 + trie_bytes :].split(b"\0")), default=1)
