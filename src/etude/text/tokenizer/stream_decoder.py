"""Incremental decoding of generated ids, with stop strings.

A token need not be whole characters. In a byte-level tokenizer (GPT-2's) a character may span several tokens, and with
byte fallback a byte of an unknown character is a token of its own ("<0xE3>"). What may still change is held back: an
incomplete character, a run of such bytes (the library decodes a run as a whole), the beginning of what could become a
stop string. All pieces together are the text that decoding all ids at once gives.
"""

from __future__ import annotations

import codecs
import copy
import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Self
from weakref import WeakKeyDictionary

from etude.errors import UserError
from etude.text.tokenizer.pre_tokenization import BYTE_LETTERS
from etude.text.tokenizer.tokenizer import Tokenizer

BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")  # tokens of single bytes in tokenizers with a byte fallback
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
MAX_CHAR_BYTES = 4  # in UTF-8; also the tokens that an incomplete character can wait for


class StreamDecoder:
    """Decodes ids one by one; `before` are the ids of the prompt, whose text is not repeated."""

    def __init__(self, tokenizer: Tokenizer, before: Iterable[int] = ()) -> None:
        self.tokenizer = tokenizer
        decoder = tokenizer.components.get("decoder") or {}
        is_byte_level = decoder.get("type") == "ByteLevel"
        self.byte_decoder = codecs.getincrementaldecoder("utf-8")("replace") if is_byte_level else None
        if tokenizer not in _TOKEN_BYTES:
            _TOKEN_BYTES[tokenizer] = TokenBytes(tokenizer)
        self.token_bytes = _TOKEN_BYTES[tokenizer]
        # How a token is decoded depends at most on whether another precedes it, and that one must be letters.
        self.context: list[int] = []
        if self.byte_decoder is None:
            self.context = next(([int(id)] for id in reversed(list(before)) if not self._is_byte(int(id))), [])
        self.pending: list[int] = []

    def _is_byte(self, id: int) -> bool:
        return BYTE_TOKEN.fullmatch(self.tokenizer.backend.id_to_token(id) or "") is not None

    def push(self, id: int) -> str:
        """Add an id and return the text that is now certain: often none, or more than the token's own."""
        if self.byte_decoder is not None:
            return self.byte_decoder.decode(self.token_bytes[id])
        self.pending.append(int(id))
        if self._is_byte(id):
            return ""
        piece = self._decode_pending()
        if piece.endswith(REPLACEMENT) and len(self.pending) < MAX_CHAR_BYTES:
            return ""
        self.context, self.pending = [int(id)], []
        return piece

    def push_all(self, ids: Iterable[int]) -> str:
        """Add several ids and return the text that is now certain."""
        if self.byte_decoder is None:
            return "".join(map(self.push, ids))
        return self.byte_decoder.decode(b"".join(map(self.token_bytes.__getitem__, ids)))

    def finish(self) -> str:
        """Return the text held back so far, now that no id follows."""
        if self.byte_decoder is not None:
            return self.byte_decoder.decode(b"", final=True)
        piece, self.pending = self._decode_pending(), []
        return piece

    def branch(self) -> Self:
        """Return an independent copy in the same state."""
        clone = copy.copy(self)
        clone.pending = list(self.pending)
        if self.byte_decoder is not None:
            clone.byte_decoder = codecs.getincrementaldecoder("utf-8")("replace")
            clone.byte_decoder.setstate(self.byte_decoder.getstate())
        return clone

    def _decode_pending(self) -> str:
        before = self.tokenizer.decode(self.context)
        return self.tokenizer.decode([*self.context, *self.pending])[len(before) :]


@cache
def _byte_letters() -> dict[str, int]:
    """Return the byte of each of GPT-2's byte letters."""
    return {letter: byte for byte, letter in BYTE_LETTERS.items()}


@cache
def token_to_bytes(token: str) -> bytes:
    """Return the bytes of a byte-level token; an added token in other letters stands for its own text."""
    letters = _byte_letters()
    try:
        return bytes(letters[letter] for letter in token)
    except KeyError:
        return token.encode()


class TokenBytes(dict[int, bytes]):
    """The bytes of tokens of a byte-level tokenizer by their ids, each found once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._find_token = tokenizer.backend.id_to_token

    def __missing__(self, id: int) -> bytes:
        self[id] = value = token_to_bytes(self._find_token(id) or "")
        return value


_TOKEN_BYTES: WeakKeyDictionary[Tokenizer, TokenBytes] = WeakKeyDictionary()


class StoppingDecoder:
    """Decodes ids up to the first stop string: the one that is complete first, character by character."""

    def __init__(self, stream: StreamDecoder, stops: Sequence[str] = ()) -> None:
        if not all(stops):
            raise UserError("A stop string is empty: every text would end at once. Leave it out.")
        self.stream, self.stops = stream, [Tokenizer.normalise(stop) for stop in stops]
        self.stopped = False
        self._pending = ""

    def push(self, id: int) -> str:
        return self._cut_at_stop(self.stream.push(id), last=False)

    def push_all(self, ids: Iterable[int]) -> str:
        """Add several ids; which of them completes a stop string is not told."""
        return self._cut_at_stop(self.stream.push_all(ids), last=False)

    def finish(self) -> str:
        return "" if self.stopped else self._cut_at_stop(self.stream.finish(), last=True)

    def branch(self) -> Self:
        clone = copy.copy(self)
        clone.stream = self.stream.branch()
        return clone

    def _cut_at_stop(self, piece: str, last: bool) -> str:
        if not self.stops:
            return piece
        text = self._pending + piece
        hits = [(start + len(stop), start) for stop in self.stops if (start := text.find(stop)) >= 0]
        if hits:
            self.stopped, self._pending = True, ""
            return text[: min(hits)[1]]
        keep = 0 if last else self._count_stop_prefix(text)
        self._pending = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _count_stop_prefix(self, text: str) -> int:
        """Count the last characters that could be the beginning of a stop string."""
        longest = max(map(len, self.stops), default=1) - 1
        sizes = range(min(longest, len(text)), 0, -1)
        return next((size for size in sizes if any(stop.startswith(text[-size:]) for stop in self.stops)), 0)
