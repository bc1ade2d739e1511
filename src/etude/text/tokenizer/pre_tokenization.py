"""Pre-tokenization in Python for common characters, so that the tokens of words can be cached.

Before a model such as WordPiece or BPE sees text, a normalizer and a pre-tokenizer turn it into words. For characters
whose treatment is beyond doubt in every version of Unicode (Latin letters, Hangul syllables, ASCII digits, common
punctuation) one regular expression does the same here; a piece with any other character is left to the `tokenizers`
library. Tests compare both over all these characters and over random strings.

Most patterns cut where the kind of the characters changes. For them `split_pieces` does without the expression: it
looks up the kinds of all bytes of many pieces and cuts them all at once (held to the expression by a property test).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from typing import NamedTuple

import numpy as np
from tokenizers.models import Model

from etude.text.tokenizer import training
from etude.text.tokenizer.text_batch import find_non_ascii
from etude.text.tokenizer.tokenizer import Component, Tokenizer
from etude.text.tokenizer.word_cache import SpanList

# Latin letters without İ (lower case of two characters) and without those that NFKC rewrites; Hangul syllables.
ASCII_LETTERS = "A-Za-z"
LETTERS = ASCII_LETTERS + "\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u012f\u0134-\u013e\u0141-\u0148\u014a-\u017e가-힣"
DIGITS = "0-9"
PUNCTUATION = re.escape(
    "!\"#$%&'()*+,-./:;<=>?@[\\]^`{|}~" + "“”‘’–—·«»《》〈〉「」『』"
)  # NFKC leaves all of these alone; _ is apart


def _map_bytes() -> dict[int, str]:
    """Return GPT-2's visible letter for each byte: itself where printable, else a letter from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    unprintable = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(unprintable)}


BYTE_LETTERS = _map_bytes()
BYTE_CODES = np.array([ord(BYTE_LETTERS[byte]) for byte in range(256)], "<u2")


UNCOMMON, LETTER, NUMBER, MARK, SPACE, BREAK = range(6)  # kinds of characters
CONTRACTIONS = ("s", "t", "m", "d", "re", "ve", "ll")  # behind an apostrophe, in GPT-2's pattern


class Cut(Enum):
    """Where pieces are cut into words."""

    RUNS = "runs"  # where kinds change; a space goes with what follows it
    CONTRACTIONS = "contractions"  # the same, with the endings of GPT-2's pattern
    MARKS = "marks"  # letters and digits together, marks one by one; white space is dropped
    PATTERN = "pattern"  # as the expression has it: marks inside of numbers and words


class PieceWords(NamedTuple):
    """The words of several pieces."""

    words: SpanList
    counts: np.ndarray  # (pieces,) int64: words of each
    is_common: np.ndarray  # (pieces,) bool: False where a piece holds an uncommon character, and has no words here


@dataclass(frozen=True)
class FastPreTokenizer:
    """A normalizer and pre-tokenizer of common characters.

    It works on pieces: white space with the characters up to the next white space.
    """

    pattern: re.Pattern[str]
    cut: Cut
    kinds: np.ndarray  # (0x10001,) uint8: kind of each code point; the last is that of all from U+10000 on
    keeps_space: bool  # is white space part of the words, or dropped?
    lower: bool
    byte_level: bool
    model: Model  # of the tokenizer

    def split(self, piece: str) -> Sequence[str] | None:
        """Return the words of a piece, or None if it holds an uncommon character."""
        if not self.keeps_space:
            piece = piece.lstrip(" \n")
        core = piece[1:] if piece[:1] == " " else piece
        if core.isascii() and core.isalpha():  # most pieces, and faster than the pattern
            return (piece,)
        words = self.pattern.findall(piece)
        return words if sum(map(len, words)) == len(piece) else None

    def split_pieces(self, pieces: SpanList) -> PieceWords:
        """Return the words of pieces that lie end to end, as `split` does."""
        if self.cut is Cut.PATTERN:
            return self._split_by_pattern(pieces)
        kinds = self._find_kinds(pieces.encoded)
        ends = pieces.starts + pieces.lengths
        is_first = np.zeros(len(kinds), bool)
        is_first[pieces.starts] = True
        previous = np.concatenate([[UNCOMMON], kinds[:-1]]).astype(np.uint8)
        previous[pieces.starts] = UNCOMMON
        if self.cut is Cut.MARKS:
            is_bad = kinds == UNCOMMON
            is_start = (kinds != previous) & (kinds == LETTER)
            is_start |= (kinds == MARK) & self._find_characters(pieces.encoded)
        else:
            second = np.zeros(len(kinds), bool)
            second[1:] = is_first[:-1]
            # white space is one space, one break, or a break and a space, and something follows a space
            is_bad = (kinds == UNCOMMON) | ((kinds == BREAK) & ~is_first)
            is_bad |= (kinds == SPACE) & ~(is_first | (second & (previous == BREAK)))
            is_bad[ends - 1] |= kinds[ends - 1] == SPACE
            is_start = ((kinds != previous) & (previous != SPACE)) | is_first
            if self.cut is Cut.CONTRACTIONS:
                _cut_contractions(pieces.encoded, is_first, is_start, self.lower)
        is_common = np.ones(len(pieces), bool)
        is_common[np.searchsorted(pieces.starts, np.flatnonzero(is_bad), "right") - 1] = False
        starts = np.flatnonzero(is_start)
        numbers = np.searchsorted(pieces.starts, starts, "right") - 1
        starts, numbers = starts[is_common[numbers]], numbers[is_common[numbers]]
        counts = np.bincount(numbers, minlength=len(pieces))
        word_ends = np.minimum(np.append(starts[1:], len(kinds)), ends[numbers])
        return PieceWords(replace(pieces, starts=starts, lengths=word_ends - starts), counts, is_common)

    def _find_kinds(self, encoded: bytes) -> np.ndarray:
        """Return the kind of each byte's character, (B,) uint8."""
        ascii_kinds = self.kinds[:128].tobytes() + bytes(128)
        kinds = np.frombuffer(bytearray(encoded.translate(ascii_kinds)), np.uint8)
        if not encoded.isascii():
            leads, codes = find_non_ascii(encoded)
            lead_kinds = self.kinds.take(codes, mode="clip")
            for behind, least in enumerate((0, 0, 0x800, 0x10000)):  # characters of two bytes, of three, of four
                chosen = codes >= least
                kinds[leads[chosen] + behind] = lead_kinds[chosen]
        return kinds

    @staticmethod
    def _find_characters(encoded: bytes) -> np.ndarray:
        """Mark the first byte of each character, (B,) bool."""
        return (np.frombuffer(encoded, np.uint8) & 0xC0) != 0x80

    def _split_by_pattern(self, pieces: SpanList) -> PieceWords:
        splits = [self.split(piece) for piece in pieces.decode()]
        is_common = np.fromiter((words is not None for words in splits), bool, len(splits))
        counts = np.fromiter((len(words or ()) for words in splits), np.int64, len(splits))
        encoded = [word.encode() for words in splits for word in words or ()]
        return PieceWords(SpanList.join(encoded), counts, is_common)

    def find_plain(self, words: SpanList) -> np.ndarray:
        """Whether each of the words that lie end to end is letters or digits, with a space before them or without."""
        first = words.starts + (np.frombuffer(words.encoded, np.uint8)[words.starts] == ord(" "))
        kinds = self._find_kinds(words.encoded)[first]
        return (kinds == LETTER) | (kinds == NUMBER)

    def to_model_inputs(self, words: SpanList) -> list[str]:
        """Return words that lie end to end as the model sees them: lower case, bytes as letters."""
        if not len(words):
            return []
        separated = np.zeros(len(words.encoded) + len(words), np.uint8)  # a zero byte behind each word
        places = np.ones(len(separated), bool)
        places[words.starts + words.lengths + np.arange(len(words))] = False
        separated[places] = np.frombuffer(words.encoded, np.uint8)
        data = separated[:-1]
        if self.lower:
            data = np.frombuffer(data.tobytes().decode().lower().encode(), np.uint8)
        if self.byte_level:
            return BYTE_CODES.take(data).tobytes().decode("utf-16-le").split(BYTE_LETTERS[0])
        return data.tobytes().decode().split("\0")  # no word of common characters holds it


def _cut_contractions(encoded: bytes, is_first: np.ndarray, is_start: np.ndarray, lower: bool) -> None:
    """Cut behind an apostrophe's ending instead of behind the apostrophe; `lower`: in letters of either case."""
    data = np.frombuffer((encoded.lower() if lower else encoded) + bytes(3), np.uint8)
    # an apostrophe that is a word of its own
    places = np.flatnonzero((data[: len(is_first)] == ord("'")) & is_start)
    places = places[(places + 1 < len(is_first))]
    places = places[is_start[places + 1] & ~is_first[places + 1]]  # the ending is in the same piece
    for ending in CONTRACTIONS:
        chosen = places
        for distance, letter in enumerate(ending, start=1):
            chosen = chosen[data[chosen + distance] == ord(letter)]
        if len(ending) > 1:  # of the same piece
            chosen = chosen[~is_start[chosen + 2]]
        is_start[chosen + 1] = False
        behind = chosen + 1 + len(ending)
        is_start[behind[behind < len(is_first)]] = True


@cache  # looking at every code point takes ten times as long as the rest of an encoder
def _list_kinds(letters: str, has_numbers: bool) -> np.ndarray:
    """Return the kind of each code point below U+10000, and UNCOMMON for all above, read-only."""
    kinds = np.full(0x10001, UNCOMMON, np.uint8)
    everything = "".join(map(chr, range(0x10000)))
    for kind, members in (
        (LETTER, letters), (NUMBER if has_numbers else LETTER, DIGITS), (MARK, PUNCTUATION + "_"), (SPACE, " "),
        (BREAK, "\n"),
    ):  # fmt: skip
        kinds[[ord(letter) for letter in re.findall(f"[{members}]", everything)]] = kind
    kinds.flags.writeable = False
    return kinds


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
        pattern, cut, byte_level = rf"[{letters}{DIGITS}]+|[{PUNCTUATION}_]", Cut.MARKS, False
    elif step["type"] == "ByteLevel" and step["use_regex"] and not step["add_prefix_space"]:
        # lower case comes first: DON'T is cut as don't is. Without re.IGNORECASE, to which ſ is an s
        endings = [*CONTRACTIONS, *("".join(f"[{a}{a.upper()}]" for a in ending) for ending in CONTRACTIONS if lower)]
        pattern, cut, byte_level = rf"'(?:{'|'.join(endings)})|{runs}", Cut.CONTRACTIONS, True
    elif step["type"] == "Split" and step["pattern"].get("Regex") == training.PIECE_PATTERN:
        pattern, cut, byte_level = runs, Cut.RUNS, False
    elif step["type"] == "Split" and step["pattern"].get("Regex") == training.WORD_PATTERN:
        word = f"[{letters}{DIGITS}_]+"
        pattern = rf"[{DIGITS}]+(?:[.,][{DIGITS}]+)+|{word}(?:['’]{word})*|[{PUNCTUATION}]"
        cut, byte_level = Cut.PATTERN, False
    else:
        return None
    keeps_space = cut in (Cut.RUNS, Cut.CONTRACTIONS)
    kinds = _list_kinds(letters, has_numbers=keeps_space)
    return FastPreTokenizer(re.compile(pattern), cut, kinds, keeps_space, lower, byte_level, tokenizer.backend.model)


def list_steps(component: Component | None, field: str) -> list[Component]:
    """Return the steps of a normalizer or pre-tokenizer in a tokenizer.json, sequences flattened."""
    if component is None:
        return []
    if component["type"] != "Sequence":
        return [component]
    return [step for inner in component[field] for step in list_steps(inner, field)]
