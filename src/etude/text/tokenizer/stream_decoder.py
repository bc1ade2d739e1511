"""Text out of ids as they come, one at a time: no piece ends inside a character, and stop strings are seen in time.

A token need not be whole letters. In a byte-level tokenizer (GPT-2's) a character may lie in several tokens, and a
byte that has no letter in the vocabulary is a token of its own in others ("<0xE3>"). What may still change is held
back: an unfinished character, a run of such bytes (the library reads a run as a whole), the beginning of what could
become a stop string. All pieces together are the text that decoding all ids at once gives.
"""

from __future__ import annotations

import codecs
import copy
import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Self

from etude.errors import UserError
from etude.text.tokenizer.tokenizer import Tokenizer

BYTE = re.compile(r"<0x[0-9A-F]{2}>")  # the names of single bytes in tokenizers with a byte fallback
LOST = "\N{REPLACEMENT CHARACTER}"
LONGEST = 4  # bytes of a character in UTF-8, so also the tokens that an unfinished one can wait for


class StreamDecoder:
    """The text that follows `before`, the ids of a text that is already there."""

    def __init__(self, tokenizer: Tokenizer, before: Iterable[int] = ()) -> None:
        self.tokenizer = tokenizer
        decoder = tokenizer.parts.get("decoder") or {}
        self.bytes = codecs.getincrementaldecoder("utf-8")("replace") if decoder.get("type") == "ByteLevel" else None
        # How a token reads depends at most on whether another stands before it, and that one must be letters.
        self.context = [int(id) for id in before if not self._is_byte(int(id))][-1:]
        self.pending: list[int] = []

    def _is_byte(self, id: int) -> bool:
        return BYTE.fullmatch(self.tokenizer.backend.id_to_token(id) or "") is not None

    def push(self, id: int) -> str:
        """The letters that are certain once this token has come; often none, or more than its own."""
        if self.bytes is not None:
            return self.bytes.decode(bytes_of(self.tokenizer.backend.id_to_token(id) or ""))
        self.pending.append(int(id))
        if self._is_byte(id):
            return ""
        piece = self._read()
        if piece.endswith(LOST) and len(self.pending) < LONGEST:
            return ""
        self.context, self.pending = [int(id)], []
        return piece

    def finish(self) -> str:
        """What was held back, now that nothing more comes."""
        if self.bytes is not None:
            return self.bytes.decode(b"", final=True)
        piece, self.pending = self._read(), []
        return piece

    def branch(self) -> Self:
        """A second stream that has come as far."""
        other = copy.copy(self)
        other.pending = list(self.pending)
        if self.bytes is not None:
            other.bytes = codecs.getincrementaldecoder("utf-8")("replace")
            other.bytes.setstate(self.bytes.getstate())
        return other

    def _read(self) -> str:
        before = self.tokenizer.decode(self.context)
        return self.tokenizer.decode([*self.context, *self.pending])[len(before) :]


@cache
def _byte_letters() -> dict[str, int]:
    """GPT-2's letters for bytes: printable ones stand for themselves, the other 68 follow from U+0100 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + number): byte for number, byte in enumerate(others)}


def bytes_of(token: str) -> bytes:
    """The bytes of a token of a byte-level tokenizer; an added token in other letters is its own text."""
    letters = _byte_letters()
    try:
        return bytes(letters[letter] for letter in token)
    except KeyError:
        return token.encode()


class StoppingDecoder:
    """A stream of text that ends before the first stop string: read letter by letter, the first one to be complete."""

    def __init__(self, stream: StreamDecoder, stops: Sequence[str] = ()) -> None:
        if not all(stops):
            raise UserError("A stop string is empty: every text would end at once. Leave it out.")
        self.stream, self.stops = stream, [Tokenizer.normalise(stop) for stop in stops]
        self.stopped = False
        self._held = ""

    def push(self, id: int) -> str:
        return self._pass(self.stream.push(id), last=False)

    def finish(self) -> str:
        return "" if self.stopped else self._pass(self.stream.finish(), last=True)

    def branch(self) -> Self:
        other = copy.copy(self)
        other.stream = self.stream.branch()
        return other

    def _pass(self, piece: str, last: bool) -> str:
        text = self._held + piece
        found = [(start + len(stop), start) for stop in self.stops if (start := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)[1]]
        keep = 0 if last else self._beginning(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _beginning(self, text: str) -> int:
        """How many of the last letters could be the beginning of a stop string."""
        longest = max(map(len, self.stops), default=1) - 1
        sizes = range(min(longest, len(text)), 0, -1)
        return next((size for size in sizes if any(stop.startswith(text[-size:]) for stop in self.stops)), 0)
