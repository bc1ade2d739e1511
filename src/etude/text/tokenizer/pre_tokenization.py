"""The first cut of the common tokenizers, done in Python for common characters, so that words can be remembered.

Before a model such as WordPiece or BPE sees text, a normaliser and a first cut turn it into words. For characters
whose treatment is beyond doubt in every version of Unicode (Latin letters, Hangul syllables, ASCII digits, common
punctuation) a pattern does the same here; a piece with any other character is left to the library. Tests compare
both over all these characters and over random strings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer as Backend

from etude.text.tokenizer import training
from etude.text.tokenizer.tokenizer import Tokenizer

# Latin letters without İ (lower case of two characters) and without those that NFKC rewrites; Hangul syllables.
ASCII_LETTERS = "A-Za-z"
LETTERS = ASCII_LETTERS + "\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u012f\u0134-\u013e\u0141-\u0148\u014a-\u017e가-힣"
DIGITS = "0-9"
MARKS = re.escape("!\"#$%&'()*+,-./:;<=>?@[\\]^`{|}~" + "“”‘’–—·«»")  # NFKC leaves all of these alone; _ is apart


def _names() -> dict[int, str]:
    """GPT-2's visible stand-in for each byte: itself where printable, else a letter from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}


BYTE_NAMES = _names()


@dataclass(frozen=True)
class Cut:
    """How pieces (white space and what follows it) become the words a model is asked for."""

    pattern: re.Pattern[str]
    space: bool  # is white space part of the words, or dropped?
    lower: bool
    bytes: bool
    bare: Backend  # the model alone

    def words(self, piece: str) -> Sequence[str] | None:
        """The words of a piece, or None if it holds anything uncommon."""
        if not self.space:
            piece = piece.lstrip(" \n")
        core = piece[1:] if piece[:1] == " " else piece
        if core.isascii() and core.isalpha():  # many, told without a pattern
            return (piece,)
        words = self.pattern.findall(piece)
        return words if sum(map(len, words)) == len(piece) else None

    def fed(self, word: str) -> str:
        """What the model sees of a word."""
        if self.lower:
            word = word.lower()
        return word.encode().decode("latin-1").translate(BYTE_NAMES) if self.bytes else word


def cut_of(tokenizer: Tokenizer) -> Cut | None:
    """None where the library must do it all."""
    parts = tokenizer.parts
    normalisers = flatten(parts.get("normalizer"), "normalizers")
    steps = flatten(parts.get("pre_tokenizer"), "pretokenizers")
    if len(steps) != 1 or any(not added["special"] for added in parts.get("added_tokens") or []):
        return None
    if any(step["type"] not in ("NFC", "NFKC", "Lowercase", "BertNormalizer") for step in normalisers):
        return None
    bert = [step for step in normalisers if step["type"] == "BertNormalizer"]
    lower = any(step["type"] == "Lowercase" for step in normalisers) or any(step["lowercase"] for step in bert)
    # accents are stripped with lower-casing unless said otherwise
    stripped = any(step["lowercase"] if step["strip_accents"] is None else step["strip_accents"] for step in bert)
    letters = ASCII_LETTERS if stripped else LETTERS
    step = steps[0]
    runs = rf" ?[{letters}]+| ?[{DIGITS}]+| ?[{MARKS}_]+|\A\n"
    if step["type"] == "BertPreTokenizer":
        pattern, space, as_bytes = rf"[{letters}{DIGITS}]+|[{MARKS}_]", False, False
    elif step["type"] == "ByteLevel" and step["use_regex"] and not step["add_prefix_space"]:
        pattern, space, as_bytes = rf"'(?:[stmd]|re|ve|ll)|{runs}", True, True
    elif step["type"] == "Split" and step["pattern"].get("Regex") == training.PIECE_PATTERN:
        pattern, space, as_bytes = runs, True, False
    elif step["type"] == "Split" and step["pattern"].get("Regex") == training.WORD_PATTERN:
        word = f"[{letters}{DIGITS}_]+"
        pattern, space, as_bytes = rf"[{DIGITS}]+(?:[.,][{DIGITS}]+)+|{word}(?:['’]{word})*|[{MARKS}]", False, False
    else:
        return None
    bare = json.loads(tokenizer.content)
    bare |= dict.fromkeys(("normalizer", "pre_tokenizer", "post_processor", "decoder", "truncation", "padding"))
    bare["added_tokens"] = []
    return Cut(re.compile(pattern), space, lower, as_bytes, Backend.from_str(json.dumps(bare, ensure_ascii=False)))


def flatten(part: Any, field: str) -> list[dict[str, Any]]:
    """The steps of a normaliser or pre-tokenizer in a tokenizer.json, sequences opened up."""
    if part is None:
        return []
    return [step for inner in part[field] for step in flatten(inner, field)] if part["type"] == "Sequence" else [part]
