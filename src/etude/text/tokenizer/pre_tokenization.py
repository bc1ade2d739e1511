"""Pre-tokenization in Python for common characters, so that the tokens of words can be cached.

Before a model such as WordPiece or BPE sees text, a normalizer and a pre-tokenizer turn it into words. For characters
whose treatment is beyond doubt in every version of Unicode (Latin letters, Hangul syllables, ASCII digits, common
punctuation) one regular expression does the same here; a piece with any other character is left to the `tokenizers`
library. Tests compare both over all these characters and over random strings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer as Backend

from etude.text.tokenizer import training
from etude.text.tokenizer.tokenizer import Component, Tokenizer

# Latin letters without İ (lower case of two characters) and without those that NFKC rewrites; Hangul syllables.
ASCII_LETTERS = "A-Za-z"
LETTERS = ASCII_LETTERS + "\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u012f\u0134-\u013e\u0141-\u0148\u014a-\u017e가-힣"
DIGITS = "0-9"
PUNCTUATION = re.escape("!\"#$%&'()*+,-./:;<=>?@[\\]^`{|}~" + "“”‘’–—·«»")  # NFKC leaves all of these alone; _ is apart


def _map_bytes() -> dict[int, str]:
    """Return GPT-2's visible letter for each byte: itself where printable, else a letter from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    unprintable = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(unprintable)}


BYTE_LETTERS = _map_bytes()


@dataclass(frozen=True)
class FastPreTokenizer:
    """A normalizer and pre-tokenizer of common characters.

    It works on pieces: white space with the characters up to the next white space.
    """

    pattern: re.Pattern[str]
    keeps_space: bool  # is white space part of the words, or dropped?
    lower: bool
    byte_level: bool
    model: Backend  # the tokenizer's model without normalizer and pre-tokenizer

    def split(self, piece: str) -> Sequence[str] | None:
        """Return the words of a piece, or None if it holds an uncommon character."""
        if not self.keeps_space:
            piece = piece.lstrip(" \n")
        core = piece[1:] if piece[:1] == " " else piece
        if core.isascii() and core.isalpha():  # most pieces, and faster than the pattern
            return (piece,)
        words = self.pattern.findall(piece)
        return words if sum(map(len, words)) == len(piece) else None

    def to_model_input(self, word: str) -> str:
        """Return the word as the model sees it: lower case, bytes as letters."""
        if self.lower:
            word = word.lower()
        return word.encode().decode("latin-1").translate(BYTE_LETTERS) if self.byte_level else word


def build_pre_tokenizer(tokenizer: Tokenizer) -> FastPreTokenizer | None:
    """Return a fast pre-tokenizer that equals the tokenizer's own; None where there is none."""
    components = tokenizer.components
    normalizers = list_steps(components.get("normalizer"), "normalizers")
    steps = list_steps(components.get("pre_tokenizer"), "pretokenizers")
    if len(steps) != 1 or any(not added["special"] for added in components.get("added_tokens") or []):
        return None
    if any(step["type"] not in ("NFC", "NFKC", "Lowercase", "BertNormalizer") for step in normalizers):
        return None
    bert = [step for step in normalizers if step["type"] == "BertNormalizer"]
    lower = any(step["type"] == "Lowercase" for step in normalizers) or any(step["lowercase"] for step in bert)
    # accents are stripped with lower-casing unless set otherwise
    strips_accents = any(step["lowercase"] if step["strip_accents"] is None else step["strip_accents"] for step in bert)
    letters = ASCII_LETTERS if strips_accents else LETTERS
    step = steps[0]
    runs = rf" ?[{letters}]+| ?[{DIGITS}]+| ?[{PUNCTUATION}_]+|\A\n"
    if step["type"] == "BertPreTokenizer":
        pattern, keeps_space, byte_level = rf"[{letters}{DIGITS}]+|[{PUNCTUATION}_]", False, False
    elif step["type"] == "ByteLevel" and step["use_regex"] and not step["add_prefix_space"]:
        pattern, keeps_space, byte_level = rf"'(?:[stmd]|re|ve|ll)|{runs}", True, True
    elif step["type"] == "Split" and step["pattern"].get("Regex") == training.PIECE_PATTERN:
        pattern, keeps_space, byte_level = runs, True, False
    elif step["type"] == "Split" and step["pattern"].get("Regex") == training.WORD_PATTERN:
        word = f"[{letters}{DIGITS}_]+"
        pattern = rf"[{DIGITS}]+(?:[.,][{DIGITS}]+)+|{word}(?:['’]{word})*|[{PUNCTUATION}]"
        keeps_space, byte_level = False, False
    else:
        return None
    content = json.loads(tokenizer.content)
    content |= dict.fromkeys(("normalizer", "pre_tokenizer", "post_processor", "decoder", "truncation", "padding"))
    content["added_tokens"] = []
    model = Backend.from_str(json.dumps(content, ensure_ascii=False))
    return FastPreTokenizer(re.compile(pattern), keeps_space, lower, byte_level, model)


def list_steps(component: Component | None, field: str) -> list[Component]:
    """Return the steps of a normalizer or pre-tokenizer in a tokenizer.json, sequences flattened."""
    if component is None:
        return []
    if component["type"] != "Sequence":
        return [component]
    return [step for inner in component[field] for step in list_steps(inner, field)]
